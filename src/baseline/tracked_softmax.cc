#include "baseline/tracked_softmax.h"

#include <cmath>

namespace hpsim {
namespace {

/// Variance of an error within 4u, in units of u²/3.
constexpr double kFunctionRounding = 16;

}  // namespace

TrackedSoftmax softmax(const Rounding& rounding, const RowMatrix<double>& s,
                       const RowMatrix<double>& s_variance, bool is_causal) {
  const double c = rounding.variance();
  const Eigen::Index rows = s.rows();
  TrackedSoftmax result;
  result.p = RowMatrix<double>::Zero(rows, s.cols());
  result.exponent = result.p;
  result.sum_rounding = result.log_sum = result.log_l = result.num_terms =
      Eigen::VectorXd::Zero(rows);
  for (Eigen::Index i = 0; i < rows; ++i) {
    const Eigen::Index count = is_causal ? i + 1 : s.cols();
    const double largest = s.row(i).head(count).maxCoeff();
    const Eigen::RowVectorXd z = (s.row(i).head(count).array() - largest).matrix();
    const Eigen::RowVectorXd powers = z.array().exp().matrix();
    const double l = powers.sum();
    result.p.row(i).head(count) = powers / l;
    result.exponent.row(i).head(count) =
        s_variance.row(i).head(count) + (c * (z.array().square() + kFunctionRounding)).matrix();
    const auto n = static_cast<double>(count);
    result.sum_rounding[i] = c * n * (result.p.row(i).squaredNorm() + 1);
    result.log_l[i] = std::log(l);
    result.log_sum[i] = largest + result.log_l[i];
    result.num_terms[i] = n;
  }
  result.exponent = Inheritance{rounding.is_shared}.spread(result.exponent).eval();
  return result;
}

RowMatrix<double> inherit_centred(const Inheritance& inheritance, const RowMatrix<double>& p,
                                  const RowMatrix<double>& spreads) {
  const RowMatrix<double> weights = inheritance.weight(p);
  const Eigen::VectorXd common = weights.cwiseProduct(spreads).rowwise().sum();
  RowMatrix<double> result = (spreads.array() * (1 - 2 * p.array())).matrix();
  result.colwise() += common;
  return result.cwiseMax(0.0);
}

RowMatrix<double> variance_of(const Rounding& rounding, const TrackedSoftmax& row) {
  const Inheritance inheritance{rounding.is_shared};
  RowMatrix<double> relative =
      inheritance.variance(inherit_centred(inheritance, row.p, row.exponent));
  relative.colwise() += row.sum_rounding;
  relative.array() += 2 * rounding.variance();
  return relative.cwiseProduct(row.p.cwiseAbs2());
}

RowMatrix<double> inherit_from_exponents(const Inheritance& inheritance, const TrackedSoftmax& rows,
                                         const RowMatrix<double>& ds) {
  const RowMatrix<double>& p = rows.p;
  const RowMatrix<double>& e = rows.exponent;
  const RowMatrix<double> weights = inheritance.weight(p);
  const RowMatrix<double> ds_weights = inheritance.weight(ds);
  const Eigen::VectorXd of_p = weights.cwiseProduct(e).rowwise().sum();
  const Eigen::VectorXd of_ds = ds_weights.cwiseProduct(e).rowwise().sum();
  RowMatrix<double> result = of_p.asDiagonal() * ds_weights;
  result += of_ds.asDiagonal() * weights;
  if (inheritance.is_shared) return result + ds_weights.cwiseProduct(e);
  const Eigen::VectorXd of_both = p.cwiseProduct(ds).cwiseProduct(e).rowwise().sum();
  result += 2 * (of_both.asDiagonal() * ds.cwiseProduct(p));
  result += (ds_weights.array() * e.array() * (1 - 4 * p.array())).matrix();
  return result.cwiseMax(0.0);
}

}  // namespace hpsim
