#include "exec/shared_memory.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>

#include "base/error.h"
#include "base/units.h"

namespace hpsim {

namespace {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

long futex(const std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* timeout) {
  return syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

}  // namespace

Deadline deadline_after(double seconds) {
  constexpr double kLongest = 1e9;  // 31 years
  const auto span = std::chrono::duration<double>(std::clamp(seconds, 0.0, kLongest));
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(span);
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::shared_ptr<std::byte> map_shared(std::int64_t size_bytes) {
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(size_bytes, 1));
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ErrorKind::Environment,
                fmt::format("cannot map {} of memory shared by the ranks: {}",
                            format_bytes(size_bytes), std::strerror(errno)),
                "use a smaller scenario or fewer ranks, or raise the limit of the address space");
  }
  return {static_cast<std::byte*>(memory), [size](std::byte* p) { munmap(p, size); }};
}

bool wait_while_equal(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                      Deadline deadline) {
  while (word.load(std::memory_order_acquire) == expected) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    timespec timeout{};
    timeout.tv_sec = static_cast<time_t>(left.count() / 1'000'000'000);
    timeout.tv_nsec = static_cast<long>(left.count() % 1'000'000'000);
    futex(word, FUTEX_WAIT, expected, &timeout);  // may return for no reason: the loop decides
  }
  return true;
}

void wake_all(const std::atomic<std::uint32_t>& word) {
  futex(word, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace hpsim
