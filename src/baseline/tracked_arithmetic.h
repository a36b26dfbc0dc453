#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "baseline/plain_tensor.h"
#include "model/model_spec.h"

namespace hpsim {

/// Float64 values, and for each the variance of the rounding error that the same computation in the
/// run's dtype may carry. No variance at all: the values are exact in that dtype.
struct TrackedTensor {
  PlainTensor<double> value;
  AlignedVector<double> variance;  ///< like value.data, or empty

  [[nodiscard]] bool is_exact() const { return variance.empty(); }
  [[nodiscard]] RowMap<double> variance_map() { return {variance.data(), value.rows, value.cols}; }
  [[nodiscard]] ConstRowMap<double> variance_map() const {
    return {variance.data(), value.rows, value.cols};
  }
};

struct TrackedScalar {
  double value = 0;
  double variance = 0;
};

/// A sum of squares, or of other terms, while it grows.
struct TrackedSum {
  double sum = 0;
  double sum_of_squares = 0;  ///< of its terms
  double inherited = 0;       ///< variance, or standard deviation where samples share errors
  double count = 0;
};

struct ExpertRoutes;  // baseline/expert_routes.h

/// What the dtype of a run does to numbers.
struct Rounding {
  double unit_roundoff = 0;
  double confidence = 0;  ///< k: errors are within k standard deviations
  /// Whether errors may be common to all samples, as those of parameters are: then what samples
  /// inherit adds up as standard deviations, not as variances.
  bool is_shared = false;

  /// Variance of one rounding of a result of size 1, uniform in ±u: the run's, and the baseline's
  /// own, which counts where the run is in float64 too.
  [[nodiscard]] double variance() const {
    return (unit_roundoff * unit_roundoff + 0x1p-53 * 0x1p-53) / 3;
  }
  /// Variance of a sum of two errors.
  [[nodiscard]] double join(double a, double b) const;
};

/// Variance of one rounding of `value` to a dtype; zero stays zero.
[[nodiscard]] double rounding_variance(DType dtype, double value);

/// See TrackedArithmetic::round.
void round_tracked(TrackedTensor& tensor, DType dtype);

/// Zeros that carry variances.
[[nodiscard]] TrackedTensor tracked_zeros(std::int64_t rows, std::int64_t cols);

/// Arithmetic of the derived mode. Every operation carries the variance on (README, "Bounds"):
///   a sum of n terms t   inherits sum (dy/dx)² Var(x), adds u² n / 3 (sum t² + y²)
///   a function           inherits f'² Var(x), adds u² y² / 3 per elementary operation
///   relu within k sigma of its kink: the gradient may be passed on or not, both count
/// The rule of sums holds for every order, also for sums of partial sums of ranks.
///
/// Errors are taken as independent, whose variances add up, though elements of an activation may
/// have errors in common. Where one error reaches a result on two ways through random weights, the
/// sum of variances is off by a factor of two at most, (a + b)² <= 2 (a² + b²), whatever the signs.
/// Where a sum of n terms reads errors that are common to them, relative to each term, the error is
/// that of the sum y, relative: the rule counts n roundings of y, more than such an error is made
/// of. Where one error reaches a result twice by construction (sum, which joins what several
/// operations made of one activation), deviations add up. Where the gradient of a parameter is a
/// sum over rows, n of which have the same token and are equal but for what attention adds, they
/// round alike: what they inherit counts n times, as (a sum of n errors)² <= n (sum of squares).
class TrackedArithmetic {
 public:
  using Tensor = TrackedTensor;
  using Scalar = TrackedScalar;
  using Sum = TrackedSum;
  using Number = double;
  static constexpr bool kIsExact = false;

  explicit TrackedArithmetic(const Rounding& rounding) : rounding_(rounding) {}

  /// The tokens that all rows are made of.
  void set_tokens(const Tensor& tokens);

  /// The exact mode's unit of refusal; here it only computes.
  void piece(const std::string& /*what*/, const std::function<void()>& compute) { compute(); }

  /// In which dtype sums and functions are computed from here on.
  void set_dtype(DType dtype) { rounding_.unit_roundoff = unit_roundoff(dtype); }
  /// From here on sums of products are sums of terms of ranks, each rounded `roundings` times to
  /// `dtype`: a sum of terms t adds u² / 3 (sum t² + y²) for each, as partial sums whose terms
  /// have random signs, or one, do.
  void set_term_rounding(DType dtype, double roundings);
  void clear_term_rounding() { term_rounding_ = 0; }
  /// For values alone, of some rows.
  [[nodiscard]] TrackedArithmetic without_rounding() const { return TrackedArithmetic({}); }

  /// A result is rounded to a dtype that has fewer numbers than the carrier. What is exact becomes
  /// the number that the run has, too; else the variance grows by u² y² / 3, and by half the
  /// smallest subnormal number, squared, / 3.
  void round(Tensor& tensor, DType dtype);
  /// The same, but the value becomes a number of the dtype where it is not exact, too: of numbers
  /// whose error is small beside the rounding, which is then the same.
  void cast(Tensor& tensor, DType dtype);

  [[nodiscard]] Tensor constant(std::int64_t rows, std::int64_t cols, AlignedVector<double> values);
  [[nodiscard]] Tensor zeros(std::int64_t rows, std::int64_t cols);
  /// Elements [begin, begin + count) as one row, and back.
  [[nodiscard]] Tensor slice(const Tensor& tensor, std::int64_t begin, std::int64_t count);
  void assign(Tensor& tensor, std::int64_t begin, const Tensor& part);
  /// Values of rows [first, first + count).
  [[nodiscard]] Tensor block(const Tensor& tensor, std::int64_t first, std::int64_t count);
  [[nodiscard]] static Tensor rows(const Tensor& tensor, const std::vector<std::int64_t>& rows);
  void clear_rows(Tensor& tensor, const std::vector<std::int64_t>& rows);
  /// By those of a tensor of the same shape, which may be rounded to `dtypes` on the way.
  void replace_rows(Tensor& tensor, const Tensor& by, const std::vector<std::int64_t>& rows,
                    const std::vector<DType>& dtypes);
  [[nodiscard]] static const PlainTensor<double>& values(const Tensor& tensor) {
    return tensor.value;
  }

  /// x Wᵀ + b; `bias` may be null.
  [[nodiscard]] Tensor linear(const Tensor& x, const Tensor& weight, const Tensor* bias);
  [[nodiscard]] Tensor weight_gradient(const Tensor& dy, const Tensor& x);  ///< dyᵀ x
  /// Likewise, where dy and x are `rows` of `num_rows` and all others are 0.
  [[nodiscard]] Tensor weight_gradient(const Tensor& dy, const Tensor& x,
                                       const std::vector<std::int64_t>& rows,
                                       std::int64_t num_rows);
  [[nodiscard]] Tensor bias_gradient(const Tensor& dy);  ///< sum over samples
  [[nodiscard]] Tensor input_gradient(const Tensor& dy, const Tensor& weight);  ///< dy W
  [[nodiscard]] Tensor activation(const ModuleSpec& spec, const Tensor& x);
  [[nodiscard]] Tensor activation_gradient(const ModuleSpec& spec, const Tensor& x,
                                           const Tensor& dy);

  /// a + b of any kinship: deviations add up. For gradients of an activation that several
  /// operations read too: their order is no matter, since each is itself a sum, whose rule counts
  /// its n terms n times.
  [[nodiscard]] Tensor sum(const Tensor& a, const Tensor& b);

  // tracked_lookup.cc. Rows of `weight` by `tokens`, one a row.
  [[nodiscard]] Tensor embedding(const Tensor& tokens, const Tensor& weight);
  /// Of `num_rows` rows: what dy has for each.
  [[nodiscard]] Tensor embedding_gradient(const Tensor& dy, const Tensor& tokens,
                                          std::int64_t num_rows);

  // tracked_gate.cc: silu(a) b.
  [[nodiscard]] Tensor silu_gate(const Tensor& a, const Tensor& b);
  [[nodiscard]] std::array<Tensor, 2> silu_gate_gradients(const Tensor& a, const Tensor& b,
                                                          const Tensor& dy);

  // tracked_norms.cc: layer_norm and rms_norm; `bias` may be null.
  [[nodiscard]] Tensor norm(const ModuleSpec& spec, const Tensor& x, const Tensor& weight,
                            const Tensor* bias);
  [[nodiscard]] Tensor norm_weight_gradient(const ModuleSpec& spec, const Tensor& x,
                                            const Tensor& dy);
  [[nodiscard]] Tensor norm_input_gradient(const ModuleSpec& spec, const Tensor& x,
                                           const Tensor& weight, const Tensor& dy);

  // tracked_attention.cc: samples are `positions` rows each.
  [[nodiscard]] Tensor attention(const ModuleSpec& spec, std::int64_t positions, const Tensor& q,
                                 const Tensor& k, const Tensor& v);
  /// Of q, k, v.
  [[nodiscard]] std::array<Tensor, 3> attention_gradients(const ModuleSpec& spec,
                                                          std::int64_t positions, const Tensor& q,
                                                          const Tensor& k, const Tensor& v,
                                                          const Tensor& dy);

  // tracked_experts.cc: routes by softmax of the logits, one a row and expert, and what the experts
  // make of x. Matrices of all experts stand under one another.
  [[nodiscard]] ExpertRoutes route(const ModuleSpec& spec, const Tensor& logits,
                                   const std::vector<std::int64_t>& unused_rows = {});
  [[nodiscard]] Tensor experts(const ModuleSpec& spec, const Tensor& x, const Tensor& logits,
                               const Tensor& w1, const Tensor& w2, const Tensor& w3);
  /// Of x, logits, w1, w2, w3.
  [[nodiscard]] std::array<Tensor, 5> experts_gradients(const ModuleSpec& spec, const Tensor& x,
                                                        const Tensor& logits, const Tensor& w1,
                                                        const Tensor& w2, const Tensor& w3,
                                                        const Tensor& dy);

  // tracked_cross_entropy.cc: -log softmax(y)[target] of every row, and its gradient.
  [[nodiscard]] Tensor cross_entropy(const Tensor& y, const Tensor& targets);
  [[nodiscard]] Tensor cross_entropy_gradient(const Tensor& y, const Tensor& targets);

  [[nodiscard]] Tensor difference(const Tensor& a, const Tensor& b);
  /// Each row of x times the one row `factors`.
  [[nodiscard]] Tensor scaled_columns(const Tensor& x, const Tensor& factors);
  /// Per column the sum over rows of a b: one row.
  [[nodiscard]] Tensor column_products(const Tensor& a, const Tensor& b);
  [[nodiscard]] Tensor scaled(const Tensor& x, double factor);
  /// Each row by its own factor; 0 makes exact zeros.
  [[nodiscard]] Tensor scaled_rows(const Tensor& x, const std::vector<double>& factors);
  /// G out of a sum over all samples: times k, times 1 / F.
  void scale_gradient(Tensor& gradient, double scaling_factor, double divisor);

  void add_squares(Sum& sum, const Tensor& x);
  void add_terms(Sum& sum, const Tensor& terms);
  void add_sum(Sum& sum, const Sum& part);
  /// The sum times `factor`.
  [[nodiscard]] Scalar finish(const Sum& sum, double factor);
  void add(Scalar& total, const Scalar& term);

 private:
  [[nodiscard]] RowMap<double> scratch(std::size_t slot, std::int64_t rows, std::int64_t cols);
  template <class Multiply>
  [[nodiscard]] Tensor product(const Tensor& a, const Tensor& b, Tensor result, double num_terms,
                               const Multiply& multiply);
  template <class Multiply>
  void inherit_shared(const Tensor& a, const Tensor& b, Tensor& result, const Multiply& multiply);
  /// Adds `units` times u² y² / 3 to every variance.
  void add_rounding(Tensor& result, double units);
  /// As set_term_rounding says of y.
  void add_term_rounding(Tensor& result);

  /// The tensor with the variances of each row times its number of `kin`, if there are any.
  [[nodiscard]] static Tensor with_kin(const Tensor& rows, const std::vector<double>& kin);
  /// dyᵀ x as a sum of `num_terms`, most of which may be 0.
  [[nodiscard]] Tensor row_products(const Tensor& dy, const Tensor& x, double num_terms,
                                    const std::vector<double>& kin);

  Rounding rounding_;
  double term_rounding_ = 0;                      ///< variance, relative
  std::vector<double> kin_;                       ///< per row, rows of its token; or none
  std::array<AlignedVector<double>, 3> scratch_;  ///< kept between products: fresh pages are slow
};

}  // namespace hpsim
