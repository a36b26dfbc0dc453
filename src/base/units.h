#pragma once

#include <cstdint>
#include <string>

namespace hpsim {

/// Bytes for people, binary prefixes, three significant digits at most:
/// 0 -> "0 B", 1023 -> "1023 B", 1024 -> "1 KiB", 1536 -> "1.5 KiB", 4194304 -> "4 MiB".
[[nodiscard]] std::string format_bytes(std::int64_t bytes);

/// Seconds for people: 0.0000021 -> "2.1 us", 0.0421 -> "42.1 ms", 3.2 -> "3.20 s".
[[nodiscard]] std::string format_seconds(double seconds);

/// 1234567 -> "1,234,567".
[[nodiscard]] std::string format_count(std::int64_t count);

}  // namespace hpsim
