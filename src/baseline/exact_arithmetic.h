#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "baseline/plain_tensor.h"
#include "model/model_spec.h"
#include "scenario/scenario.h"

namespace hpsim {

/// Arithmetic of the exact mode, in the scenario's dtype T: every operation must be exact, so that
/// no order of sums can give another result. The proof is the processor's INEXACT flag.
template <class T>
class ExactArithmetic {
 public:
  using Tensor = PlainTensor<T>;
  using Scalar = T;
  using Sum = T;
  static constexpr bool kIsExact = true;

  using Number = T;

  ExactArithmetic(const Scenario& scenario, std::int64_t step) : scenario_(scenario), step_(step) {}

  void set_tokens(const Tensor& /*tokens*/) const {}
  void set_dtype(DType /*dtype*/) const {}
  void set_term_rounding(DType /*dtype*/, double /*roundings*/) const {}
  void clear_term_rounding() const {}
  [[nodiscard]] ExactArithmetic without_rounding() const { return *this; }

  /// Runs `compute` with the flag cleared before it.
  /// \throws Error (InvalidScenario) if it was raised, or `round` changed a value: "step 3: the
  ///         gradient of ... is not exact"
  void piece(const std::string& what, const std::function<void()>& compute) const;

  /// Rounds to a dtype that has fewer numbers than T; that must change nothing.
  void round(Tensor& tensor, DType dtype) const;
  void cast(Tensor& tensor, DType dtype) const { round(tensor, dtype); }
  /// The same of all elements times `factor`.
  void check_rounding(const Tensor& tensor, DType dtype, double factor) const;

  [[nodiscard]] Tensor constant(std::int64_t rows, std::int64_t cols,
                                const AlignedVector<double>& values) const;
  [[nodiscard]] Tensor zeros(std::int64_t rows, std::int64_t cols) const { return {rows, cols}; }
  [[nodiscard]] Tensor slice(const Tensor& tensor, std::int64_t begin, std::int64_t count) const;
  void assign(Tensor& tensor, std::int64_t begin, const Tensor& part) const;
  [[nodiscard]] Tensor block(const Tensor& tensor, std::int64_t first, std::int64_t count) const;
  [[nodiscard]] Tensor rows(const Tensor& tensor, const std::vector<std::int64_t>& rows) const;
  void clear_rows(Tensor& tensor, const std::vector<std::int64_t>& rows) const;
  void replace_rows(Tensor& tensor, const Tensor& by, const std::vector<std::int64_t>& rows,
                    const std::vector<DType>& dtypes) const;
  [[nodiscard]] static const PlainTensor<T>& values(const Tensor& tensor) { return tensor; }

  // As TrackedArithmetic.
  [[nodiscard]] Tensor linear(const Tensor& x, const Tensor& weight, const Tensor* bias) const;
  [[nodiscard]] Tensor weight_gradient(const Tensor& dy, const Tensor& x) const;
  [[nodiscard]] Tensor bias_gradient(const Tensor& dy) const;
  [[nodiscard]] Tensor input_gradient(const Tensor& dy, const Tensor& weight) const;
  /// \pre spec.type is Relu, the only activation that is exact
  [[nodiscard]] Tensor activation(const ModuleSpec& spec, const Tensor& x) const;
  [[nodiscard]] Tensor activation_gradient(const ModuleSpec& spec, const Tensor& x,
                                           const Tensor& dy) const;
  [[nodiscard]] Tensor sum(const Tensor& a, const Tensor& b) const;
  [[nodiscard]] Tensor embedding(const Tensor& tokens, const Tensor& weight) const;
  [[nodiscard]] Tensor embedding_gradient(const Tensor& dy, const Tensor& tokens,
                                          std::int64_t num_rows) const;
  [[nodiscard]] Tensor difference(const Tensor& a, const Tensor& b) const;
  [[nodiscard]] Tensor scaled_columns(const Tensor& x, const Tensor& factors) const;
  [[nodiscard]] Tensor column_products(const Tensor& a, const Tensor& b) const;
  [[nodiscard]] Tensor scaled(const Tensor& x, double factor) const;
  [[nodiscard]] Tensor scaled_rows(const Tensor& x, const std::vector<double>& factors) const;
  void scale_gradient(Tensor& gradient, double scaling_factor, double divisor) const;
  void add_squares(Sum& sum, const Tensor& x) const;
  void add_sum(Sum& sum, const Sum& part) const { sum += part; }
  [[nodiscard]] Scalar finish(const Sum& sum, double factor) const;
  void add(Scalar& total, const Scalar& term) const { total += term; }

  /// One sgd update in place, then rounding and clamping, which are exact mode's way to stay in
  /// range and lie outside the flag. `dtype` is that of the parameter, `num_updates` what it had
  /// before. \pre the optimizer is sgd
  void update(const std::string& name, DType dtype, std::int64_t num_updates, Tensor& parameter,
              std::vector<Tensor>& state, const Tensor& gradient) const;

 private:
  void refuse(const std::string& what, DType dtype) const;

  const Scenario& scenario_;
  std::int64_t step_;
  mutable std::optional<DType> rounded_;  ///< by a rounding of this piece that changed a value
};

extern template class ExactArithmetic<float>;
extern template class ExactArithmetic<double>;

}  // namespace hpsim
