#pragma once

#include <Eigen/Core>
#include <cstdint>

#include "baseline/plain_tensor.h"
#include "baseline/tracked_arithmetic.h"

namespace hpsim {

/// Softmax of every row, p = exp(z) / l with z = s - max s and l = sum exp(z), and where its errors
/// come from. Which element is the maximum does not matter: its error is in exp(z) and l alike.
///
/// With c = u² / 3, element j's exponent has an absolute error e_j, relative in exp(z_j), of
///   E_j = Var(s_j) + c z_j² + 16 c      the difference rounded, exp within 4u
/// and l one of its own, relative, of c n (sum p² + 1): the rule of sums over l². To first order
///   dp_j = p_j (e_j - sum_k p_k e_k) + own,
/// so Var(p_j) = p_j² (E_j (1 - 2 p_j) + sum_k p_k² E_k + c n (sum p² + 1) + 2c), the last for the
/// quotient, or for 1 / l and a product.
struct TrackedSoftmax {
  RowMatrix<double> p;
  RowMatrix<double> exponent;    ///< E, or its root where rows share errors (Inheritance::spread)
  Eigen::VectorXd sum_rounding;  ///< own, of l, relative
  Eigen::VectorXd log_sum;       ///< max s + log l
  Eigen::VectorXd log_l;         ///< log l
  Eigen::VectorXd num_terms;     ///< n: elements that a row sees
};

/// How a sum inherits from terms that may share errors: variances times squares of coefficients
/// where they are independent, else deviations times absolute values, squared in the end.
struct Inheritance {
  bool is_shared = false;

  [[nodiscard]] RowMatrix<double> weight(const RowMatrix<double>& coefficients) const {
    return is_shared ? RowMatrix<double>(coefficients.cwiseAbs())
                     : RowMatrix<double>(coefficients.cwiseAbs2());
  }
  [[nodiscard]] RowMatrix<double> spread(const RowMatrix<double>& variances) const {
    return is_shared ? RowMatrix<double>(variances.cwiseSqrt()) : variances;
  }
  [[nodiscard]] RowMatrix<double> variance(const RowMatrix<double>& sums) const {
    return is_shared ? RowMatrix<double>(sums.cwiseAbs2()) : sums;
  }
};

/// `is_causal`: row i sees elements 0..i only. Rows share errors as `rounding` says.
[[nodiscard]] TrackedSoftmax softmax(const Rounding& rounding, const RowMatrix<double>& s,
                                     const RowMatrix<double>& s_variance, bool is_causal);

/// Var(p), where the rest does not need where it comes from.
[[nodiscard]] RowMatrix<double> variance_of(const Rounding& rounding, const TrackedSoftmax& row);

/// What row elements inherit as sum_k w_jk x_k with w_jk = (j == k) - p_k, over the spreads x: for
/// shared errors sum |w| x, else sum w² x; both are x_j (1 - 2 p_j) + sum_k weight(p_k) x_k.
[[nodiscard]] RowMatrix<double> inherit_centred(const Inheritance& inheritance,
                                                const RowMatrix<double>& p,
                                                const RowMatrix<double>& spreads);

/// What ds = p (dp - D), D = sum p dp, inherits from the exponents, as a spread: of every element j
///   ds_j e_j - sum_l (ds_j p_l + p_j ds_l) e_l,
/// errors e independent by their variances, or by deviations and absolute values.
[[nodiscard]] RowMatrix<double> inherit_from_exponents(const Inheritance& inheritance,
                                                       const TrackedSoftmax& rows,
                                                       const RowMatrix<double>& ds);

}  // namespace hpsim
