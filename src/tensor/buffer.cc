#include "tensor/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

namespace hpsim {
namespace {

constexpr std::size_t kCacheLineBytes = 64;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

}  // namespace

template <class T>
Buffer<T>::Buffer(std::int64_t elems) : elems_(elems) {
  const std::size_t wanted = static_cast<std::size_t>(elems) * sizeof(T);
  const std::size_t alignment = wanted >= kHugePageBytes ? kHugePageBytes : kCacheLineBytes;
  const std::size_t bytes = std::max(alignment, (wanted + alignment - 1) / alignment * alignment);
  void* memory = std::aligned_alloc(alignment, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  // Only advice: where the kernel does not follow it, the memory is merely slower.
  if (alignment == kHugePageBytes) madvise(memory, bytes, MADV_HUGEPAGE);
  data_.reset(static_cast<T*>(memory));
}

template <class T>
void Buffer<T>::Free::operator()(T* data) const {
  std::free(data);
}

template <class T>
Buffer<T> BufferPool<T>::take(std::int64_t elems) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->elems() >= elems && (best == free_.end() || it->elems() < best->elems())) best = it;
  }
  if (best == free_.end()) return Buffer<T>(elems);
  Buffer<T> buffer = std::move(*best);
  free_.erase(best);
  return buffer;
}

template <class T>
void BufferPool<T>::give_back(Buffer<T> buffer) {
  free_.push_back(std::move(buffer));
}

template class Buffer<float>;
template class Buffer<double>;
template class BufferPool<float>;
template class BufferPool<double>;

}  // namespace hpsim
