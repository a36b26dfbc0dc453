#include "baseline/tracked_arithmetic.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "base/check.h"
#include "baseline/activation_point.h"

namespace hpsim {
namespace {

double square(double x) {
  return x * x;
}

double variance_of(const TrackedTensor& tensor, std::size_t i) {
  return tensor.is_exact() ? 0 : tensor.variance[i];
}

/// Variance, in units of dy², of a relu gradient that is passed on or not when its input is
/// `deviations` standard deviations from the kink. The branch differs with p = P(N > deviations); a
/// sum of such differences is sub-Gaussian with the proxy (1 - 2p) / (2 ln((1 - p) / p)) (Kearns
/// and Saul 1998), from 1/4 at the kink to about 1/k² at k; p² is for the shift of its mean.
double kink_variance(double deviations) {
  const double p = 0.5 * std::erfc(deviations / std::numbers::sqrt2);
  const double log_odds = std::log((1 - p) / p);
  const double proxy = log_odds < 1e-6 ? 0.25 : (1 - 2 * p) / (2 * log_odds);
  return proxy + p * p;
}

}  // namespace

double rounding_variance(DType dtype, double value) {
  const double relative = unit_roundoff(dtype) * value;
  const double absolute = smallest_subnormal(dtype) / 2;
  return value == 0 ? 0 : (square(relative) + square(absolute)) / 3;
}

void round_tracked(TrackedTensor& tensor, DType dtype) {
  if (tensor.is_exact()) {
    round_to(dtype, tensor.value.data.data(), tensor.value.elems());
    return;
  }
  const double absolute = square(smallest_subnormal(dtype) / 2) / 3;
  for (std::size_t i = 0; i < tensor.variance.size(); ++i) {
    const double value = tensor.value.data[i];
    if (value == 0 && tensor.variance[i] > 0) tensor.variance[i] += absolute;
    tensor.variance[i] += rounding_variance(dtype, value);
  }
}

TrackedTensor tracked_zeros(std::int64_t rows, std::int64_t cols) {
  TrackedTensor tensor;
  tensor.value = PlainTensor<double>(rows, cols);
  tensor.variance = zeroed_vector<double>(tensor.value.data.size());
  return tensor;
}

double Rounding::join(double a, double b) const {
  return is_shared ? square(std::sqrt(a) + std::sqrt(b)) : a + b;
}

RowMap<double> TrackedArithmetic::scratch(std::size_t slot, std::int64_t rows, std::int64_t cols) {
  AlignedVector<double>& storage = scratch_[slot];
  const auto size = static_cast<std::size_t>(rows * cols);
  if (storage.size() < size) storage = zeroed_vector<double>(size);
  return {storage.data(), rows, cols};
}

void TrackedArithmetic::add_rounding(TrackedTensor& result, double units) {
  result.variance_map().array() +=
      units * rounding_.variance() * result.value.map().array().square();
}

void TrackedArithmetic::set_term_rounding(DType dtype, double roundings) {
  term_rounding_ = roundings * square(unit_roundoff(dtype)) / 3;
}

void TrackedArithmetic::add_term_rounding(TrackedTensor& result) {
  if (term_rounding_ == 0) return;
  result.variance_map().array() += term_rounding_ * result.value.map().array().square();
}

void TrackedArithmetic::round(TrackedTensor& tensor, DType dtype) {
  round_tracked(tensor, dtype);
}

void TrackedArithmetic::cast(TrackedTensor& tensor, DType dtype) {
  round_tracked(tensor, dtype);
  round_to(dtype, tensor.value.data.data(), tensor.value.elems());
}

TrackedTensor TrackedArithmetic::constant(std::int64_t rows, std::int64_t cols,
                                          AlignedVector<double> values) {
  return {PlainTensor<double>(rows, cols, std::move(values)), {}};
}

TrackedTensor TrackedArithmetic::zeros(std::int64_t rows, std::int64_t cols) {
  return tracked_zeros(rows, cols);
}

TrackedTensor TrackedArithmetic::slice(const TrackedTensor& tensor, std::int64_t begin,
                                       std::int64_t count) {
  const auto part = [&](const AlignedVector<double>& all) {
    return all.empty() ? all
                       : AlignedVector<double>(all.begin() + begin, all.begin() + begin + count);
  };
  return {PlainTensor<double>(1, count, part(tensor.value.data)), part(tensor.variance)};
}

void TrackedArithmetic::assign(TrackedTensor& tensor, std::int64_t begin,
                               const TrackedTensor& part) {
  HPSIM_CHECK(!tensor.is_exact() && !part.is_exact(), "parts of a gradient carry variances");
  std::copy(part.value.data.begin(), part.value.data.end(), tensor.value.data.begin() + begin);
  std::copy(part.variance.begin(), part.variance.end(), tensor.variance.begin() + begin);
}

TrackedTensor TrackedArithmetic::block(const TrackedTensor& tensor, std::int64_t first,
                                       std::int64_t count) {
  return {plain_rows(tensor.value, first, count), {}};
}

TrackedTensor TrackedArithmetic::rows(const TrackedTensor& tensor,
                                      const std::vector<std::int64_t>& rows) {
  TrackedTensor result = tracked_zeros(static_cast<std::int64_t>(rows.size()), tensor.value.cols);
  result.value.map() = tensor.value.map()(rows, Eigen::all);
  if (tensor.is_exact()) {
    result.variance.clear();
  } else {
    result.variance_map() = tensor.variance_map()(rows, Eigen::all);
  }
  return result;
}

void TrackedArithmetic::clear_rows(TrackedTensor& tensor, const std::vector<std::int64_t>& rows) {
  for (const std::int64_t row : rows) {
    tensor.value.map().row(row).setZero();
    if (!tensor.is_exact()) tensor.variance_map().row(row).setZero();
  }
}

void TrackedArithmetic::replace_rows(TrackedTensor& tensor, const TrackedTensor& by,
                                     const std::vector<std::int64_t>& rows,
                                     const std::vector<DType>& dtypes) {
  TrackedTensor source = this->rows(by, rows);
  if (source.is_exact()) source.variance = zeroed_vector<double>(source.value.data.size());
  if (tensor.is_exact()) tensor.variance = zeroed_vector<double>(tensor.value.data.size());
  for (const DType dtype : dtypes)
    round(source, dtype);
  tensor.value.map()(rows, Eigen::all) = source.value.map();
  tensor.variance_map()(rows, Eigen::all) = source.variance_map();
}

/// Var(y) = Va (b² + Vb) + a² (Vb + c b²) with c = u² n / 3; the caller adds c y² once y is whole.
template <class Multiply>
TrackedTensor TrackedArithmetic::product(const TrackedTensor& a, const TrackedTensor& b,
                                         TrackedTensor result, double num_terms,
                                         const Multiply& multiply) {
  auto value = result.value.map();
  auto variance = result.variance_map();
  value.noalias() = multiply(a.value.map(), b.value.map());
  auto a_square = scratch(0, a.value.rows, a.value.cols);
  auto b_spread = scratch(1, b.value.rows, b.value.cols);
  a_square = a.value.map().cwiseAbs2();
  b_spread = (num_terms * rounding_.variance() + term_rounding_) * b.value.map().cwiseAbs2();
  if (!b.is_exact()) b_spread += b.variance_map();
  variance.noalias() = multiply(a_square, b_spread);
  if (!a.is_exact()) {
    b_spread = b.value.map().cwiseAbs2();
    if (!b.is_exact()) b_spread += b.variance_map();
    variance.noalias() += multiply(a.variance_map(), b_spread);
  }
  return result;
}

void TrackedArithmetic::set_tokens(const TrackedTensor& tokens) {
  std::map<double, double> num_rows;
  for (const double token : tokens.value.data)
    ++num_rows[token];
  kin_.clear();
  for (const double token : tokens.value.data)
    kin_.push_back(num_rows.at(token));
}

TrackedTensor TrackedArithmetic::with_kin(const TrackedTensor& rows,
                                          const std::vector<double>& kin) {
  TrackedTensor result = rows;
  for (std::size_t row = 0; !rows.is_exact() && row < kin.size(); ++row)
    result.variance_map().row(static_cast<Eigen::Index>(row)) *= kin[row];
  return result;
}

/// Over samples with errors in common: sigma(y) = |a| sigma(b) + sigma(a) |b|.
template <class Multiply>
void TrackedArithmetic::inherit_shared(const TrackedTensor& a, const TrackedTensor& b,
                                       TrackedTensor& result, const Multiply& multiply) {
  auto deviation = scratch(2, result.value.rows, result.value.cols);
  auto of_a = scratch(0, a.value.rows, a.value.cols);
  auto of_b = scratch(1, b.value.rows, b.value.cols);
  deviation.setZero();
  if (!b.is_exact()) {
    of_a = a.value.map().cwiseAbs();
    of_b = b.variance_map().cwiseSqrt();
    deviation.noalias() += multiply(of_a, of_b);
  }
  if (!a.is_exact()) {
    of_a = a.variance_map().cwiseSqrt();
    of_b = b.value.map().cwiseAbs();
    deviation.noalias() += multiply(of_a, of_b);
  }
  result.variance_map() += deviation.cwiseAbs2();
}

TrackedTensor TrackedArithmetic::linear(const TrackedTensor& x, const TrackedTensor& weight,
                                        const TrackedTensor* bias) {
  const auto multiply = [](const auto& a, const auto& b) { return a * b.transpose(); };
  const double num_terms = static_cast<double>(x.value.cols) + (bias != nullptr ? 1 : 0);
  TrackedTensor y =
      product(x, weight, tracked_zeros(x.value.rows, weight.value.rows), num_terms, multiply);
  if (bias != nullptr) {
    const Eigen::RowVectorXd added = bias->value.map();
    y.value.map().rowwise() += added;
    Eigen::RowVectorXd variance = num_terms * rounding_.variance() * added.cwiseAbs2();
    if (!bias->is_exact()) variance += bias->variance_map();
    y.variance_map().rowwise() += variance;
  }
  add_rounding(y, num_terms);
  add_term_rounding(y);
  return y;
}

TrackedTensor TrackedArithmetic::weight_gradient(const TrackedTensor& dy, const TrackedTensor& x) {
  return row_products(dy, x, static_cast<double>(x.value.rows), kin_);
}

TrackedTensor TrackedArithmetic::weight_gradient(const TrackedTensor& dy, const TrackedTensor& x,
                                                 const std::vector<std::int64_t>& rows,
                                                 std::int64_t num_rows) {
  std::vector<double> kin;
  for (const std::int64_t row : rows) {
    if (!kin_.empty()) kin.push_back(kin_[static_cast<std::size_t>(row)]);
  }
  return row_products(dy, x, static_cast<double>(num_rows), kin);
}

TrackedTensor TrackedArithmetic::row_products(const TrackedTensor& dy, const TrackedTensor& x,
                                              double num_terms, const std::vector<double>& kin) {
  const auto multiply = [](const auto& a, const auto& b) { return a.transpose() * b; };
  TrackedTensor result = tracked_zeros(dy.value.cols, x.value.cols);
  if (rounding_.is_shared) {
    const TrackedTensor exact_dy{dy.value, {}};
    const TrackedTensor exact_x{x.value, {}};
    result = product(exact_dy, exact_x, std::move(result), num_terms, multiply);
    inherit_shared(dy, x, result, multiply);
  } else if (kin.empty()) {
    result = product(dy, x, std::move(result), num_terms, multiply);
  } else {
    result = product(with_kin(dy, kin), with_kin(x, kin), std::move(result), num_terms, multiply);
  }
  add_rounding(result, num_terms);
  add_term_rounding(result);
  return result;
}

TrackedTensor TrackedArithmetic::bias_gradient(const TrackedTensor& dy) {
  TrackedTensor ones = constant(dy.value.rows, 1, {});
  ones.value.data.assign(static_cast<std::size_t>(dy.value.rows), 1.0);
  TrackedTensor gradient = weight_gradient(dy, ones);  // one column
  std::swap(gradient.value.rows, gradient.value.cols);
  return gradient;
}

TrackedTensor TrackedArithmetic::input_gradient(const TrackedTensor& dy,
                                                const TrackedTensor& weight) {
  const auto multiply = [](const auto& a, const auto& b) { return a * b; };
  const auto num_terms = static_cast<double>(dy.value.cols);
  TrackedTensor dx =
      product(dy, weight, tracked_zeros(dy.value.rows, weight.value.cols), num_terms, multiply);
  add_rounding(dx, num_terms);
  add_term_rounding(dx);
  return dx;
}

TrackedTensor TrackedArithmetic::activation(const ModuleSpec& spec, const TrackedTensor& x) {
  TrackedTensor y = tracked_zeros(x.value.rows, x.value.cols);
  for (std::size_t i = 0; i < x.value.data.size(); ++i) {
    const double at = x.value.data[i];
    const double variance = variance_of(x, i);
    if (spec.type == ModuleType::Relu) {
      const bool reaches = square(at) <= square(rounding_.confidence) * variance;
      y.value.data[i] = at > 0 ? at : 0;
      y.variance[i] = at > 0 || reaches ? variance : 0;
    } else {
      const ActivationPoint point = activation_at(spec, at);
      y.value.data[i] = point.value;
      y.variance[i] = square(point.slope) * variance + rounding_.variance() * point.value_rounding;
    }
  }
  return y;
}

TrackedTensor TrackedArithmetic::activation_gradient(const ModuleSpec& spec, const TrackedTensor& x,
                                                     const TrackedTensor& dy) {
  TrackedTensor dx = tracked_zeros(x.value.rows, x.value.cols);
  for (std::size_t i = 0; i < x.value.data.size(); ++i) {
    const double at = x.value.data[i];
    const double variance = variance_of(x, i);
    const double dy_value = dy.value.data[i];
    const double dy_variance = variance_of(dy, i);
    if (spec.type == ModuleType::Relu) {
      const bool reaches = variance > 0 && square(at) <= square(rounding_.confidence) * variance;
      dx.value.data[i] = at > 0 ? dy_value : 0;
      dx.variance[i] = at > 0 || reaches ? dy_variance : 0;
      if (reaches) {
        dx.variance[i] += square(dy_value) * kink_variance(std::abs(at) / std::sqrt(variance));
      }
    } else {
      const ActivationPoint point = activation_at(spec, at);
      const double slope_variance =
          square(point.curvature) * variance + rounding_.variance() * point.slope_rounding;
      dx.value.data[i] = dy_value * point.slope;
      dx.variance[i] = dy_variance * (square(point.slope) + slope_variance) +
                       square(dy_value) * slope_variance +
                       rounding_.variance() * square(dy_value * point.slope);
    }
  }
  return dx;
}

TrackedTensor TrackedArithmetic::sum(const TrackedTensor& a, const TrackedTensor& b) {
  TrackedTensor result = tracked_zeros(a.value.rows, a.value.cols);
  result.value.map() = a.value.map() + b.value.map();
  for (std::size_t i = 0; i < result.variance.size(); ++i)
    result.variance[i] = square(std::sqrt(variance_of(a, i)) + std::sqrt(variance_of(b, i)));
  add_rounding(result, 1);
  return result;
}

TrackedTensor TrackedArithmetic::difference(const TrackedTensor& a, const TrackedTensor& b) {
  TrackedTensor result = tracked_zeros(a.value.rows, a.value.cols);
  result.value.map() = a.value.map() - b.value.map();
  if (!a.is_exact()) result.variance_map() += a.variance_map();
  if (!b.is_exact()) result.variance_map() += b.variance_map();
  add_rounding(result, 1);
  return result;
}

TrackedTensor TrackedArithmetic::scaled_columns(const TrackedTensor& x,
                                                const TrackedTensor& factors) {
  HPSIM_CHECK(x.is_exact(), "data are exact");
  TrackedTensor result = tracked_zeros(x.value.rows, x.value.cols);
  const Eigen::RowVectorXd row = factors.value.map();
  result.value.map() = x.value.map() * row.asDiagonal();
  if (!factors.is_exact()) {
    const Eigen::RowVectorXd variance = factors.variance_map();
    result.variance_map() = x.value.map().cwiseAbs2() * variance.asDiagonal();
  }
  add_rounding(result, 1);
  return result;
}

TrackedTensor TrackedArithmetic::column_products(const TrackedTensor& a, const TrackedTensor& b) {
  const auto num_samples = static_cast<double>(a.value.rows);
  TrackedTensor result = tracked_zeros(1, a.value.cols);
  const RowMatrix<double> terms = a.value.map().cwiseProduct(b.value.map());
  result.value.map() = terms.colwise().sum();
  result.variance_map() =
      (num_samples * rounding_.variance() + term_rounding_) * terms.cwiseAbs2().colwise().sum();
  RowMatrix<double> inherited = RowMatrix<double>::Zero(terms.rows(), terms.cols());
  if (!b.is_exact()) inherited = a.value.map().cwiseAbs2().cwiseProduct(b.variance_map());
  if (rounding_.is_shared) {
    inherited = inherited.cwiseSqrt().eval();
    if (!a.is_exact()) {
      inherited += b.value.map().cwiseAbs().cwiseProduct(a.variance_map().cwiseSqrt());
    }
    result.variance_map() += inherited.colwise().sum().cwiseAbs2();
  } else {
    if (!a.is_exact()) inherited += b.value.map().cwiseAbs2().cwiseProduct(a.variance_map());
    for (std::size_t row = 0; row < kin_.size(); ++row)
      inherited.row(static_cast<Eigen::Index>(row)) *= kin_[row];
    result.variance_map() += inherited.colwise().sum();
  }
  add_rounding(result, num_samples);
  add_term_rounding(result);
  return result;
}

TrackedTensor TrackedArithmetic::scaled(const TrackedTensor& x, double factor) {
  TrackedTensor result = tracked_zeros(x.value.rows, x.value.cols);
  result.value.map() = factor * x.value.map();
  if (!x.is_exact()) result.variance_map() = square(factor) * x.variance_map();
  add_rounding(result, 1);
  return result;
}

TrackedTensor TrackedArithmetic::scaled_rows(const TrackedTensor& x,
                                             const std::vector<double>& factors) {
  TrackedTensor result = tracked_zeros(x.value.rows, x.value.cols);
  for (std::int64_t row = 0; row < x.value.rows; ++row) {
    const double factor = factors[static_cast<std::size_t>(row)];
    if (factor == 0) continue;
    result.value.map().row(row) = factor * x.value.map().row(row);
    if (!x.is_exact()) {
      result.variance_map().row(row) = square(factor) * x.variance_map().row(row);
    }
  }
  add_rounding(result, 1);
  return result;
}

void TrackedArithmetic::scale_gradient(TrackedTensor& gradient, double scaling_factor,
                                       double divisor) {
  // Errors that all terms of a gradient have in common: of 2/n, k and 1/F as numbers of the dtype,
  // and of the products with k and 1/F.
  constexpr double kCommonRoundings = 5;
  const double factor = scaling_factor / divisor;
  if (factor != 1) {
    gradient.value.map() *= factor;
    gradient.variance_map() *= square(factor);
  }
  add_rounding(gradient, kCommonRoundings);
}

void TrackedArithmetic::add_squares(TrackedSum& sum, const TrackedTensor& x) {
  const auto value = x.value.map().array();
  sum.sum += value.square().sum();
  sum.sum_of_squares += value.square().square().sum();
  sum.count += static_cast<double>(x.value.elems());
  if (x.is_exact()) return;
  const auto variance = x.variance_map().array();
  sum.inherited += rounding_.is_shared
                       ? (4 * value.square() * variance + 2 * variance.square()).sqrt().sum()
                       : (4 * value.square() * variance + 2 * variance.square()).sum();
}

void TrackedArithmetic::add_terms(TrackedSum& sum, const TrackedTensor& terms) {
  sum.sum += terms.value.map().sum();
  sum.sum_of_squares += terms.value.map().squaredNorm();
  sum.count += static_cast<double>(terms.value.elems());
  if (terms.is_exact()) return;
  sum.inherited +=
      rounding_.is_shared ? terms.variance_map().cwiseSqrt().sum() : terms.variance_map().sum();
}

void TrackedArithmetic::add_sum(TrackedSum& sum, const TrackedSum& part) {
  sum.sum += part.sum;
  sum.sum_of_squares += part.sum_of_squares;
  sum.inherited += part.inherited;
  sum.count += part.count;
}

TrackedScalar TrackedArithmetic::finish(const TrackedSum& sum, double factor) {
  // Of the factor as a number of the dtype, its two parts, and the product.
  constexpr double kFactorRoundings = 3;
  const double inherited = rounding_.is_shared ? square(sum.inherited) : sum.inherited;
  const double rounding =
      rounding_.variance() *
      (sum.count * (sum.sum_of_squares + square(sum.sum)) + kFactorRoundings * square(sum.sum));
  return {factor * sum.sum, square(factor) * (inherited + rounding)};
}

void TrackedArithmetic::add(TrackedScalar& total, const TrackedScalar& term) {
  total.value += term.value;
  total.variance =
      rounding_.join(total.variance, term.variance) + rounding_.variance() * square(total.value);
}

}  // namespace hpsim
