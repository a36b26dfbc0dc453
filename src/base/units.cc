#include "base/units.h"

#include <fmt/format.h>

#include <array>

namespace hpsim {

std::string format_bytes(std::int64_t bytes) {
  static constexpr std::array<const char*, 6> kPrefixes = {"KiB", "MiB", "GiB",
                                                           "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double scaled = static_cast<double>(bytes) / 1024;
  std::size_t prefix = 0;
  // 1023.5 would print as "1024" with three digits or fewer, so it moves to the next prefix.
  while (scaled >= 1023.5 && prefix + 1 < kPrefixes.size()) {
    scaled /= 1024;
    ++prefix;
  }
  const int digits = scaled >= 1000 ? 4 : 3;
  return fmt::format("{:.{}g} {}", scaled, digits, kPrefixes[prefix]);
}

std::string format_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string format_count(std::int64_t count) {
  std::string text = fmt::format("{}", count);
  const std::size_t first_digit = text.front() == '-' ? 1 : 0;
  for (std::size_t at = text.size(); at > first_digit + 3;) {
    at -= 3;
    text.insert(at, 1, ',');
  }
  return text;
}

}  // namespace hpsim
