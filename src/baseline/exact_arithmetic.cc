#include "baseline/exact_arithmetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <type_traits>

#include "base/check.h"
#include "base/error.h"

namespace hpsim {

namespace {

/// Of a help text: how a run gets more bits.
std::string_view way_to_more_bits(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return "";
    case DType::Float32:
      return "dtype \"float64\", ";
    default:
      return "a wider dtype in mp_policy or numerics, ";
  }
}

}  // namespace

/// Not inlined, and `compute` is called through std::function, whose target the compiler then
/// cannot see: no arithmetic of it can move across the calls that clear and read the flag.
template <class T>
[[gnu::noinline]] void ExactArithmetic<T>::piece(const std::string& what,
                                                 const std::function<void()>& compute) const {
  rounded_.reset();
  std::feclearexcept(FE_INEXACT);
  compute();
  const bool is_inexact = std::fetestexcept(FE_INEXACT) != 0;
  if (rounded_) {
    refuse(what, *rounded_);
  } else if (is_inexact) {
    refuse(what, std::is_same_v<T, float> ? DType::Float32 : DType::Float64);
  }
}

template <class T>
void ExactArithmetic<T>::refuse(const std::string& what, DType dtype) const {
  const int num_bits = -std::ilogb(unit_roundoff(dtype));
  Diagnostic diagnostic;
  diagnostic.file = scenario_.file;
  diagnostic.pointer = "/numerics/mode";
  diagnostic.message =
      fmt::format("exact mode, but at step {} {} is not exact in {}", step_, what, name_of(dtype));
  diagnostic.help = fmt::format(
      "numbers must stay within the {} bits of {}: make data.init, data.input or data.target "
      "\"max\" smaller, use fewer samples or features, powers of two for lr, weight_decay and "
      "factors, {}or mode \"derived\"",
      num_bits, name_of(dtype), way_to_more_bits(dtype));
  throw Error(ErrorKind::InvalidScenario, {diagnostic});
}

template <class T>
PlainTensor<T> ExactArithmetic<T>::constant(std::int64_t rows, std::int64_t cols,
                                            const AlignedVector<double>& values) const {
  return {rows, cols, AlignedVector<T>(values.begin(), values.end())};
}

template <class T>
PlainTensor<T> ExactArithmetic<T>::slice(const Tensor& tensor, std::int64_t begin,
                                         std::int64_t count) const {
  const auto first = tensor.data.begin() + begin;
  return {1, count, AlignedVector<T>(first, first + count)};
}

template <class T>
void ExactArithmetic<T>::round(Tensor& tensor, DType dtype) const {
  if (round_to(dtype, tensor.data.data(), tensor.elems())) rounded_ = dtype;
}

template <class T>
void ExactArithmetic<T>::check_rounding(const Tensor& tensor, DType dtype, double factor) const {
  std::vector<double> values(tensor.data.begin(), tensor.data.end());
  for (double& value : values)
    value *= factor;
  if (round_to(dtype, values.data(), tensor.elems())) rounded_ = dtype;
}

template <class T>
PlainTensor<T> ExactArithmetic<T>::block(const Tensor& tensor, std::int64_t first,
                                         std::int64_t count) const {
  return plain_rows(tensor, first, count);
}

template <class T>
PlainTensor<T> ExactArithmetic<T>::rows(const Tensor& tensor,
                                        const std::vector<std::int64_t>& rows) const {
  Tensor result(static_cast<std::int64_t>(rows.size()), tensor.cols);
  result.map() = tensor.map()(rows, Eigen::all);
  return result;
}

template <class T>
void ExactArithmetic<T>::clear_rows(Tensor& tensor, const std::vector<std::int64_t>& rows) const {
  for (const std::int64_t row : rows)
    tensor.map().row(row).setZero();
}

template <class T>
void ExactArithmetic<T>::replace_rows(Tensor& tensor, const Tensor& by,
                                      const std::vector<std::int64_t>& rows,
                                      const std::vector<DType>& dtypes) const {
  Tensor source = this->rows(by, rows);
  for (const DType dtype : dtypes)
    round(source, dtype);
  tensor.map()(rows, Eigen::all) = source.map();
}

template <class T>
void ExactArithmetic<T>::assign(Tensor& tensor, std::int64_t begin, const Tensor& part) const {
  std::copy(part.data.begin(), part.data.end(), tensor.data.begin() + begin);
}

template <class T>
PlainTensor<T> ExactArithmetic<T>::linear(const Tensor& x, const Tensor& weight,
                                          const Tensor* bias) const {
  Tensor y(x.rows, weight.rows);
  y.map().noalias() = x.map() * weight.map().transpose();
  if (bias != nullptr) y.map().rowwise() += bias->map().row(0);
  return y;
}

template <class T>
PlainTensor<T> ExactArithmetic<T>::weight_gradient(const Tensor& dy, const Tensor& x) const {
  Tensor gradient(dy.cols, x.cols);
  gradient.map().noalias() = dy.map().transpose() * x.map();
  return gradient;
}

template <class T>
PlainTensor<T> ExactArithmetic<T>::bias_gradient(const Tensor& dy) const {
  Tensor gradient(1, dy.cols);
  gradient.map() = dy.map().colwise().sum();
  return gradient;
}

template <class T>
PlainTensor<T> ExactArithmetic<T>::input_gradient(const Tensor& dy, const Tensor& weight) const {
  Tensor dx(dy.rows, weight.cols);
  dx.map().noalias() = dy.map() * weight.map();
  return dx;
}

template <class T>
PlainTensor<T> ExactArithmetic<T>::activation(const ModuleSpec& spec, const Tensor& x) const {
  HPSIM_CHECK(spec.type == ModuleType::Relu, "{} is not exact", name_of(spec.type));
  Tensor y(x.rows, x.cols);
  y.map() = x.map().cwiseMax(T(0));
  return y;
}

template <class T>
PlainTensor<T> ExactArithmetic<T>::activation_gradient(const ModuleSpec& spec, const Tensor& x,
                                                       const Tensor& dy) const {
  HPSIM_CHECK(spec.type == ModuleType::Relu, "{} is not exact", name_of(spec.type));
  Tensor dx(x.rows, x.cols);
  dx.map() = (x.map().array() > T(0)).select(dy.map().array(), T(0));
  return dx;
}

template <class T>
PlainTensor<T> ExactArithmetic<T>::sum(const Tensor& a, const Tensor& b) const {
  Tensor result(a.rows, a.cols);
  result.map() = a.map() + b.map();
  return result;
}

template <class T>
PlainTensor<T> ExactArithmetic<T>::embedding(const Tensor& tokens, const Tensor& weight) const {
  Tensor y(tokens.rows, weight.cols);
  for (std::int64_t row = 0; row < tokens.rows; ++row)
    y.map().row(row) = weight.map().row(token_at(tokens, row, weight.rows));
  return y;
}

template <class T>
PlainTensor<T> ExactArithmetic<T>::embedding_gradient(const Tensor& dy, const Tensor& tokens,
                                                      std::int64_t num_rows) const {
  Tensor gradient(num_rows, dy.cols);
  for (std::int64_t row = 0; row < dy.rows; ++row)
    gradient.map().row(token_at(tokens, row, num_rows)) += dy.map().row(row);
  return gradient;
}

template <class T>
PlainTensor<T> ExactArithmetic<T>::difference(const Tensor& a, const Tensor& b) const {
  Tensor result(a.rows, a.cols);
  result.map() = a.map() - b.map();
  return result;
}

template <class T>
PlainTensor<T> ExactArithmetic<T>::scaled_columns(const Tensor& x, const Tensor& factors) const {
  Tensor result(x.rows, x.cols);
  result.map() = x.map() * factors.map().row(0).asDiagonal();
  return result;
}

template <class T>
PlainTensor<T> ExactArithmetic<T>::column_products(const Tensor& a, const Tensor& b) const {
  Tensor result(1, a.cols);
  result.map() = a.map().cwiseProduct(b.map()).colwise().sum();
  return result;
}

template <class T>
PlainTensor<T> ExactArithmetic<T>::scaled(const Tensor& x, double factor) const {
  Tensor result(x.rows, x.cols);
  result.map() = static_cast<T>(factor) * x.map();
  return result;
}

template <class T>
PlainTensor<T> ExactArithmetic<T>::scaled_rows(const Tensor& x,
                                               const std::vector<double>& factors) const {
  Tensor result(x.rows, x.cols);
  for (std::int64_t row = 0; row < x.rows; ++row) {
    const auto factor = static_cast<T>(factors[static_cast<std::size_t>(row)]);
    if (factor != 0) result.map().row(row) = factor * x.map().row(row);
  }
  return result;
}

template <class T>
void ExactArithmetic<T>::scale_gradient(Tensor& gradient, double scaling_factor,
                                        double divisor) const {
  gradient.map() *= static_cast<T>(scaling_factor);
  gradient.map() *= static_cast<T>(1 / divisor);
}

template <class T>
void ExactArithmetic<T>::add_squares(Sum& sum, const Tensor& x) const {
  sum += x.map().squaredNorm();
}

template <class T>
T ExactArithmetic<T>::finish(const Sum& sum, double factor) const {
  return sum * static_cast<T>(factor);
}

template <class T>
void ExactArithmetic<T>::update(const std::string& name, DType dtype, std::int64_t num_updates,
                                Tensor& parameter, std::vector<Tensor>& state,
                                const Tensor& gradient) const {
  const OptimizerSpec& spec = scenario_.training.optimizer;
  HPSIM_CHECK(spec.kind == OptimizerSpec::Kind::Sgd, "only sgd is exact");
  const auto weight = parameter.map();
  RowMatrix<T> direction = gradient.map();
  piece(fmt::format("the update of \"{}\"", name), [&] {
    if (spec.weight_decay != 0) direction += static_cast<T>(spec.weight_decay) * weight;
    if (spec.momentum != 0) {
      const auto momentum = static_cast<T>(spec.momentum);
      auto buffer = state[0].map();
      if (num_updates > 0) {
        buffer = momentum * buffer + direction;
      } else {
        buffer = direction;
      }
      if (spec.nesterov) {
        direction += momentum * buffer;
      } else {
        direction = buffer;
      }
    }
    parameter.map() -= static_cast<T>(spec.lr) * direction;
    for (Tensor& tensor : state)
      round(tensor, dtype);
    if (!spec.round_to) round(parameter, dtype);
  });
  for (T& value : parameter.data) {
    if (spec.round_to) {
      const double unit = *spec.round_to;
      value = static_cast<T>(std::nearbyint(static_cast<double>(value) / unit) * unit);
    }
    if (spec.clamp) {
      const auto limit = static_cast<T>(*spec.clamp);
      value = std::clamp(value, static_cast<T>(-limit), limit);
    }
  }
  piece(fmt::format("the update of \"{}\"", name), [&] { round(parameter, dtype); });
}

template class ExactArithmetic<float>;
template class ExactArithmetic<double>;

}  // namespace hpsim
