#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace hpsim {

inline constexpr std::size_t kVectorAlignment = 64;

template <class T>
struct AlignedAllocator {
  using value_type = T;

  AlignedAllocator() = default;
  template <class U>
  AlignedAllocator(const AlignedAllocator<U>& /*other*/) {}

  [[nodiscard]] T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{kVectorAlignment}));
  }
  void deallocate(T* begin, std::size_t /*count*/) {
    ::operator delete (begin, std::align_val_t{kVectorAlignment});
  }
  template <class U>
  bool operator==(const AlignedAllocator<U>& /*other*/) const {
    return true;
  }
};

/// Numbers that Eigen computes with. It begins sums and vector functions with the first element at
/// a multiple of a vector's size: from storage that starts anywhere, the same scenario would give
/// other last bits wherever the heap lies otherwise, down to the length of a file's name.
template <class T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

}  // namespace hpsim
