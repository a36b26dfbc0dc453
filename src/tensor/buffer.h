#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace hpsim {

/// Uninitialised memory for elements of T, 64-byte aligned; from 2 MiB on aligned to, and advised
/// to use, huge pages (a fresh 4 KiB page costs tens of times more per byte). Movable.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t elems);

  [[nodiscard]] T* data() { return data_.get(); }
  [[nodiscard]] const T* data() const { return data_.get(); }
  [[nodiscard]] std::int64_t elems() const { return elems_; }

 private:
  struct Free {
    void operator()(T* data) const;
  };
  std::unique_ptr<T, Free> data_;
  std::int64_t elems_ = 0;
};

/// Keeps released buffers for the next that asks for as many elements or fewer.
template <class T>
class BufferPool {
 public:
  /// A buffer of at least `elems`; contents are arbitrary.
  [[nodiscard]] Buffer<T> take(std::int64_t elems);
  void give_back(Buffer<T> buffer);

 private:
  std::vector<Buffer<T>> free_;
};

}  // namespace hpsim
