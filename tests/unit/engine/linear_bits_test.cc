// Ranks that compute the same thing must get the same bits, wherever their buffers begin.

#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "engine/linear.h"
#include "support/catch.h"
#include "tensor/fill.h"

namespace hpsim {
namespace {

/// Elements that begin `offset` elements behind a multiple of 64 bytes.
template <class T>
class Placed {
 public:
  Placed(std::int64_t elems, std::int64_t offset)
      : elems_(elems), memory_(static_cast<std::size_t>(elems + offset) * sizeof(T) + 64) {
    void* aligned = memory_.data();
    std::size_t space = memory_.size();
    REQUIRE(std::align(64, memory_.size() - 64, aligned, space) != nullptr);
    data_ = static_cast<T*>(aligned) + offset;
  }
  Placed(const char* name, std::int64_t elems, std::int64_t offset) : Placed(elems, offset) {
    fill(data_, elems, fill_key(name, 3), 0, {.kind = FillSpec::Kind::Uniform, .bound = 1});
  }
  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] std::vector<T> values() const { return {data_, data_ + elems_}; }

 private:
  std::int64_t elems_;
  std::vector<std::byte> memory_;
  T* data_ = nullptr;
};

struct Shape3 {
  std::int64_t batch, in, out;
};

/// Where the buffers begin, in elements.
struct Offsets {
  std::int64_t read = 0;
  std::int64_t weight = 0;
  std::int64_t written = 0;
};

template <class T>
struct Results {
  std::vector<T> y, dx, dw, db;
};

template <class T>
RowBlocks<T> whole(T* data, std::int64_t rows, std::int64_t cols) {
  return {
      .data = data, .rows = rows, .row_elems = cols, .block_stride = rows * cols, .num_blocks = 1};
}

template <class T>
Results<T> compute(const Shape3& shape, const Offsets& at) {
  const auto& [batch, in, out] = shape;
  Placed<T> x("x", batch * in, at.read), dy("dy", batch * out, at.read);
  Placed<T> w("w", out * in, at.weight), b("b", out, at.weight);
  Placed<T> y(batch * out, at.written), dx(batch * in, at.written);
  Placed<T> dw(out * in, at.written), db(out, at.written);
  linear_forward<T>(x.data(), batch, whole(w.data(), out, in), whole(b.data(), out, 1), y.data());
  linear_input_gradient<T>(dy.data(), batch, whole(w.data(), out, in), dx.data());
  linear_parameter_gradients<T>(x.data(), dy.data(), batch, whole(dw.data(), out, in),
                                whole(db.data(), out, 1));
  return {y.values(), dx.values(), dw.values(), db.values()};
}

/// How many elements differ in any bit.
template <class T>
std::int64_t num_different(const std::vector<T>& a, const std::vector<T>& b) {
  REQUIRE(a.size() == b.size());
  std::int64_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    count += std::memcmp(&a[i], &b[i], sizeof(T)) != 0 ? 1 : 0;
  return count;
}

constexpr Shape3 kShapes[] = {{1, 1, 1},   {1, 37, 1},   {1, 1, 37},   {2, 3, 5},     {3, 17, 9},
                              {4, 33, 31}, {4, 65, 1},   {5, 7, 13},   {5, 19, 1},    {5, 1, 19},
                              {6, 4, 4},   {8, 16, 16},  {9, 2, 3},    {13, 5, 3},    {16, 64, 48},
                              {17, 1, 1},  {33, 65, 67}, {40, 300, 3}, {64, 256, 130}};

template <class T>
void check_bits() {
  for (const Shape3& shape : kShapes) {
    const Results<T> expected = compute<T>(shape, {});
    for (std::int64_t offset = 1; offset < 16; ++offset) {
      for (const Offsets& at : {Offsets{offset, offset, offset}, Offsets{offset, 0, 0},
                                Offsets{0, offset, 0}, Offsets{0, 0, offset}}) {
        CAPTURE(shape.batch, shape.in, shape.out, at.read, at.weight, at.written, sizeof(T));
        const Results<T> got = compute<T>(shape, at);
        CHECK(num_different(got.y, expected.y) == 0);
        CHECK(num_different(got.dx, expected.dx) == 0);
        CHECK(num_different(got.dw, expected.dw) == 0);
        CHECK(num_different(got.db, expected.db) == 0);
      }
    }
  }
}

TEST_CASE("a linear has the same bits wherever its buffers begin: float32") {
  check_bits<float>();
}

TEST_CASE("a linear has the same bits wherever its buffers begin: float64") {
  check_bits<double>();
}

}  // namespace
}  // namespace hpsim
