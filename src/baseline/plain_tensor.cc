#include "baseline/plain_tensor.h"

#include <sys/mman.h>

#include <cstdint>

namespace hpsim {

void advise_huge_pages(void* begin, std::size_t size_bytes) {
  constexpr std::uintptr_t kHugePage = std::uintptr_t{1} << 21;
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  const std::uintptr_t aligned = (first + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t end = (first + size_bytes) / kHugePage * kHugePage;
  // A wish; where it is refused, pages are small.
  if (end > aligned) madvise(reinterpret_cast<void*>(aligned), end - aligned, MADV_HUGEPAGE);
}

}  // namespace hpsim
