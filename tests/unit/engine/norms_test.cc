#include "engine/layer_norm.h"
#include "engine/rms_norm.h"
#include "kernel_checks.h"
#include "support/catch.h"

namespace hpsim {
namespace {

struct NormData {
  NormData(std::int64_t num_rows, std::int64_t features, double epsilon)
      : rows(num_rows),
        dim(features),
        eps(epsilon),
        x(drawn("x", num_rows * features)),
        w(drawn("w", features)),
        b(drawn("b", features)),
        dy(drawn("dy", num_rows * features)) {}

  std::int64_t rows;
  std::int64_t dim;
  double eps;
  Reals x, w, b, dy;
};

/// dx is empty if it was not asked for, db for rms_norm.
template <class T>
struct NormResults {
  std::vector<T> y, dx, dw, db;
  bool intact = true;

  bool operator==(const NormResults& other) const {
    return same_bits(y, other.y) && same_bits(dx, other.dx) && same_bits(dw, other.dw) &&
           same_bits(db, other.db);
  }
};

/// Offset of the k-th buffer: all of them move, by different numbers of elements.
std::int64_t shifted(std::int64_t offset, std::int64_t k) {
  return offset * (2 * k + 1) % kOffsets;
}

struct LayerNorm {
  template <class T>
  static NormResults<T> run(const NormData& data, const Split& split, std::int64_t offset,
                            bool with_dx = true) {
    Placed<T> x(data.x, shifted(offset, 0)), dy(data.dy, shifted(offset, 1));
    Placed<T> y(data.rows * data.dim, shifted(offset, 2));
    Placed<T> dx(data.rows * data.dim, shifted(offset, 3));
    Blocked<T> w(data.w, 1, split, shifted(offset, 4)), b(data.b, 1, split, shifted(offset, 5));
    Blocked<T> dw(data.dim, 1, split, shifted(offset, 6));
    Blocked<T> db(data.dim, 1, split, shifted(offset, 7));
    layer_norm_forward(x.data(), data.rows, w.blocks(), b.blocks(), data.eps, y.data());
    layer_norm_backward(x.data(), dy.data(), data.rows, w.blocks(), data.eps,
                        with_dx ? dx.data() : nullptr, dw.blocks(), db.blocks());
    return {y.values(), with_dx ? dx.values() : std::vector<T>{}, dw.values(), db.values(),
            y.is_intact_around() && dx.is_intact_around() && dw.is_padding_intact() &&
                db.is_padding_intact()};
  }

  /// 1 / sqrt(var + eps) of one row.
  static long double factor(const NormData& data, const long double* x) {
    const auto dim = static_cast<std::size_t>(data.dim);
    const long double mean = dot(Reals(x, x + dim), Reals(dim, 1)) / dim;
    long double square = 0;
    for (std::size_t i = 0; i < dim; ++i)
      square += (x[i] - mean) * (x[i] - mean);
    return 1 / std::sqrt(square / dim + data.eps);
  }

  static Reals formula(const NormData& data) {
    Reals y;
    const auto dim = static_cast<std::size_t>(data.dim);
    for (std::size_t row = 0; row < data.x.size(); row += dim) {
      const long double* x = data.x.data() + row;
      const long double mean = dot(Reals(x, x + dim), Reals(dim, 1)) / dim;
      for (std::size_t i = 0; i < dim; ++i)
        y.push_back((x[i] - mean) * factor(data, x) * data.w[i] + data.b[i]);
    }
    return y;
  }
  static constexpr bool kHasBias = true;
};

struct RmsNorm {
  template <class T>
  static NormResults<T> run(const NormData& data, const Split& split, std::int64_t offset,
                            bool with_dx = true) {
    Placed<T> x(data.x, shifted(offset, 0)), dy(data.dy, shifted(offset, 1));
    Placed<T> y(data.rows * data.dim, shifted(offset, 2));
    Placed<T> dx(data.rows * data.dim, shifted(offset, 3));
    Blocked<T> w(data.w, 1, split, shifted(offset, 4));
    Blocked<T> dw(data.dim, 1, split, shifted(offset, 6));
    rms_norm_forward(x.data(), data.rows, w.blocks(), data.eps, y.data());
    rms_norm_backward(x.data(), dy.data(), data.rows, w.blocks(), data.eps,
                      with_dx ? dx.data() : nullptr, dw.blocks());
    return {y.values(),
            with_dx ? dx.values() : std::vector<T>{},
            dw.values(),
            {},
            y.is_intact_around() && dx.is_intact_around() && dw.is_padding_intact()};
  }

  static long double factor(const NormData& data, const long double* x) {
    const auto dim = static_cast<std::size_t>(data.dim);
    const Reals row(x, x + dim);
    return 1 / std::sqrt(dot(row, row) / dim + data.eps);
  }

  static Reals formula(const NormData& data) {
    Reals y;
    const auto dim = static_cast<std::size_t>(data.dim);
    for (std::size_t i = 0; i < data.x.size(); ++i) {
      const long double* row = data.x.data() + i / dim * dim;
      y.push_back(data.x[i] * factor(data, row) * data.w[i % dim]);
    }
    return y;
  }
  static constexpr bool kHasBias = false;
};

/// With values in [-1, 1) and factors 1 / deviation up to s, no result is the sum of more than
/// dim + rows terms of size (1 + s)², each off by a few roundings; derivatives are off by
/// kStep⁴ (1 + s)⁵ more.
template <class Norm, class T>
long double tolerance(const NormData& data) {
  long double s = 0;
  for (std::size_t row = 0; row < data.x.size(); row += static_cast<std::size_t>(data.dim))
    s = std::max(s, Norm::factor(data, data.x.data() + row));
  const auto terms = static_cast<long double>(data.dim + data.rows + 8);
  return 8 * terms * std::numeric_limits<T>::epsilon() * (1 + s) * (1 + s) +
         std::pow(kStep, 4) * std::pow(1 + s, 5) * terms;
}

template <class Norm>
void check_against_formula(const NormData& drawn_data) {
  NormData data = drawn_data;
  const NormResults<double> got = Norm::template run<double>(data, {}, 0);
  const NormResults<float> rounded = Norm::template run<float>(data, {}, 0);
  const long double fine = tolerance<Norm, double>(data);
  const long double coarse = tolerance<Norm, float>(data);
  const Reals y = Norm::formula(data);
  const auto loss = [&] { return dot(Norm::formula(data), data.dy); };
  const Reals dx = gradient(loss, data.x);
  const Reals dw = gradient(loss, data.w);
  CAPTURE(data.rows, data.dim, data.eps);
  CHECK(largest_difference(got.y, y) <= fine);
  CHECK(largest_difference(got.dx, dx) <= fine);
  CHECK(largest_difference(got.dw, dw) <= fine);
  CHECK(largest_difference(rounded.y, y) <= coarse);
  CHECK(largest_difference(rounded.dx, dx) <= coarse);
  CHECK(largest_difference(rounded.dw, dw) <= coarse);
  if (!Norm::kHasBias) return;
  const Reals db = gradient(loss, data.b);
  CHECK(largest_difference(got.db, db) <= fine);
  CHECK(largest_difference(rounded.db, db) <= coarse);
}

std::vector<NormData> all_norms() {
  std::vector<NormData> all;
  for (const std::int64_t rows : {0, 1, 3, 6}) {
    for (const std::int64_t dim : {1, 2, 5, 16, 37})
      all.emplace_back(rows, dim, dim % 2 == 0 ? 0.25 : 1e-5);
  }
  return all;
}

TEMPLATE_TEST_CASE("norms: values and gradients of their formulas", "", LayerNorm, RmsNorm) {
  for (const NormData& data : all_norms())
    check_against_formula<TestType>(data);
}

TEMPLATE_TEST_CASE("norms: the same bits however weights are cut, padding left alone", "",
                   LayerNorm, RmsNorm) {
  for (const NormData& data : all_norms()) {
    const NormResults<float> whole = TestType::template run<float>(data, {}, 0);
    for (const Split& split : all_splits()) {
      const NormResults<float> got = TestType::template run<float>(data, split, 0);
      CAPTURE(data.rows, data.dim, static_cast<int>(split.kind), split.shards);
      CHECK(got == whole);
      CHECK(got.intact);
    }
  }
}

TEMPLATE_TEST_CASE("norms: the same bits wherever buffers lie", "", LayerNorm, RmsNorm) {
  const Split split{Split::Kind::Ceil, 3};
  for (const NormData& data : {NormData(3, 37, 1e-5), NormData(2, 100, 1e-5), NormData(5, 7, 1)}) {
    const NormResults<float> floats = TestType::template run<float>(data, split, 0);
    const NormResults<double> doubles = TestType::template run<double>(data, split, 0);
    for (std::int64_t offset = 1; offset < kOffsets; ++offset) {
      CAPTURE(data.dim, offset);
      CHECK(TestType::template run<float>(data, split, offset) == floats);
      CHECK(TestType::template run<double>(data, split, offset) == doubles);
    }
  }
}

TEMPLATE_TEST_CASE("norms: gradients of parameters alone", "", LayerNorm, RmsNorm) {
  const NormData data(4, 9, 1e-5);
  NormResults<double> all = TestType::template run<double>(data, {}, 0);
  const NormResults<double> got = TestType::template run<double>(data, {}, 0, false);
  all.dx.clear();
  CHECK(got == all);
  CHECK(got.intact);
}

TEST_CASE("norms by hand") {
  // A row of mean 2 and variance 4, eps 0; one of mean square 4.
  double x[] = {0, 4}, w[] = {3, 5}, b[] = {1, 2}, y[2];
  const RowBlocks<double> weight{.data = w, .rows = 2, .row_elems = 1};
  const RowBlocks<double> bias{.data = b, .rows = 2, .row_elems = 1};
  layer_norm_forward(x, 1, weight, bias, 0, y);
  CHECK(y[0] == -1 * 3 + 1);
  CHECK(y[1] == 1 * 5 + 2);
  x[0] = -2, x[1] = 2;
  rms_norm_forward(x, 1, weight, 0, y);
  CHECK(y[0] == -3);
  CHECK(y[1] == 5);
}

}  // namespace
}  // namespace hpsim
