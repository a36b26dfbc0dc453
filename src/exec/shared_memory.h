#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace hpsim {

/// On the clock that all processes of a machine share.
using Deadline = std::chrono::steady_clock::time_point;

/// From now; far in the future if `seconds` is too long for the clock.
[[nodiscard]] Deadline deadline_after(double seconds);

/// Nanoseconds of the same clock, for times that one process writes and another reads.
[[nodiscard]] std::int64_t now_ns();

/// Zeroed memory that this process shares with every child forked later. It takes room only where
/// it is touched, has no name, and goes with its last owner.
/// \throws Error (Environment) if the machine refuses
[[nodiscard]] std::shared_ptr<std::byte> map_shared(std::int64_t size_bytes);

/// Sleeps until `word`, in shared memory, differs from `expected`; false once the deadline passed.
[[nodiscard]] bool wait_while_equal(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                                    Deadline deadline);

/// Wakes every process that sleeps in wait_while_equal on `word`.
void wake_all(const std::atomic<std::uint32_t>& word);

}  // namespace hpsim
