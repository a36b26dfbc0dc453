// Attention of every sample and head, as products and softmax: s = q kᵀ / sqrt(hd), p = softmax(s)
// by rows, o = p v. Backward, for do:
//   dv = pᵀ do    dp = do vᵀ    D_i = sum_j p_ij dp_ij    ds = p (dp - D)
//   dq = ds k / sqrt(hd)    dk = dsᵀ q / sqrt(hd); dk, dv are summed over the heads that read k, v
//
// Variances, with softmax's E and own relative rounding L of l (tracked_softmax.h), c = u² / 3:
//   s   a product of hd terms, a factor of three roundings (root, quotient, product)
//   o   p's errors are e_j - sum p e; in o they leave the distance of v_j from o:
//       sum_j p_j² E_j (v_j - o)² + sum_j p_j² Var(v_j) + L o², a sum of n terms, and 2 c p² v² for
//       the quotients
//   dp  its error by do is felt in ds as p_j (v_j - o) . d(do), since D has it too; by v and by
//       rounding, W_ij = sum_f do² Var(v_j) + c hd (sum (do v_j)² + dp²), as p_j (w_j - sum p w)
//   ds  by e: ds_j e_j - sum_l (ds_j p_l + p_j ds_l) e_l; by L: (p_j D - ds_j); by D's own
//   rounding,
//       a sum of n products: -p_j; quotients are in it too; difference and product: 2 c ds²
// Errors of L and D are common to a row. ds sums to 0 over a row, so keys that are alike leave a dq
// that is small beside its terms, and the rule of sums does not cover what they do together: dq
// takes them as k̄ = sum p k, k̄² Var(D) + (dq - D k̄)² L. Rows share none of their own, so in dk they
// are independent.
//
// Positions of a sample are rows: they may share errors (Inheritance) as far as samples do. Else
// they are taken as independent, though equal tokens round alike and attention before leaves errors
// in common: a mean by p of n such errors is as large as one of them, not smaller by sqrt n, but so
// is the own error of every row, which the residual around attention passes by.

#include <cmath>

#include "baseline/tracked_arithmetic.h"
#include "baseline/tracked_softmax.h"

namespace hpsim {
namespace {

using Matrix = RowMatrix<double>;

/// The positions of one sample and the features of one head.
struct Block {
  Matrix value;
  Matrix variance;
};

struct Place {
  std::int64_t row = 0;
  std::int64_t col = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

Block block_at(const TrackedTensor& tensor, const Place& at) {
  Block block{tensor.value.map().block(at.row, at.col, at.rows, at.cols), {}};
  if (tensor.is_exact()) {
    block.variance = Matrix::Zero(at.rows, at.cols);
  } else {
    block.variance = tensor.variance_map().block(at.row, at.col, at.rows, at.cols);
  }
  return block;
}

void store(const Block& block, const Place& at, TrackedTensor& tensor) {
  tensor.value.map().block(at.row, at.col, at.rows, at.cols) = block.value;
  tensor.variance_map().block(at.row, at.col, at.rows, at.cols) = block.variance;
}

Matrix squares(const Matrix& x) {
  return x.cwiseAbs2();
}

/// Row i times factors[i].
Matrix scaled_rows(const Eigen::VectorXd& factors, const Matrix& x) {
  return factors.asDiagonal() * x;
}

/// A head of a sample: what both passes need.
class Head {
 public:
  Head(const Rounding& rounding, const ModuleSpec& spec, Block q, Block k, Block v)
      : rounding_(rounding),
        inheritance_{rounding.is_shared},
        c_(rounding.variance()),
        scale_(1 / std::sqrt(static_cast<double>(spec.head_dim))),
        features_(static_cast<double>(spec.head_dim)),
        q_(std::move(q)),
        k_(std::move(k)),
        v_(std::move(v)),
        rows_(softmax_of_scores(spec.causal)) {
    output_ = p() * v_.value;
  }

  [[nodiscard]] Block output() const {
    const Matrix v_squares = squares(v_.value);
    const Matrix own = squares(p()) * v_squares;
    const Matrix o_squares = squares(output_);
    Matrix inherited;
    const Matrix exponents = inheritance_.weight(p()).cwiseProduct(rows_.exponent);
    if (rounding_.is_shared) {
      inherited = exponents * v_.value.cwiseAbs() + p() * v_.variance.cwiseSqrt() +
                  scaled_rows(exponents.rowwise().sum(), output_.cwiseAbs());
    } else {
      inherited = exponents * v_squares - 2 * output_.cwiseProduct(Matrix(exponents * v_.value)) +
                  scaled_rows(exponents.rowwise().sum(), o_squares);
      inherited = inherited.cwiseMax(0.0) + squares(p()) * v_.variance;
    }
    const Matrix variance = inheritance_.variance(inherited) +
                            scaled_rows(rows_.sum_rounding, o_squares) + 2 * c_ * own +
                            c_ * scaled_rows(rows_.num_terms, own + o_squares);
    return {output_, variance};
  }

  /// dk (without its factor) and dv while heads add to them: the sum, what it inherits, and the
  /// squares of its terms.
  struct KeyValueSums {
    Matrix dk, dk_spread, dk_squares;
    Matrix dv, dv_spread, dv_squares;
    double num_terms = 0;
  };
  /// Returns dq.
  [[nodiscard]] Block add_gradients(const Block& dy, KeyValueSums& sums) const {
    const Scores ds = score_gradient(dy);
    const Matrix value_spread = inheritance_.spread(variance_of(rounding_, rows_));
    sums.dv += p().transpose() * dy.value;
    sums.dv_squares += squares(p()).transpose() * squares(dy.value);
    sums.dv_spread += inheritance_.weight(p()).transpose() * inheritance_.spread(dy.variance) +
                      value_spread.transpose() * inheritance_.weight(dy.value);
    const Matrix whole = inheritance_.spread(
        ds.variance + scaled_rows(ds.d_variance, squares(p())) +
        scaled_rows(rows_.sum_rounding, squares(ds.value - scaled_rows(ds.d, p()))));
    sums.dk += ds.value.transpose() * q_.value;
    sums.dk_squares += squares(ds.value).transpose() * squares(q_.value);
    sums.dk_spread += inheritance_.weight(ds.value).transpose() * inheritance_.spread(q_.variance) +
                      whole.transpose() * inheritance_.weight(q_.value);
    sums.num_terms += static_cast<double>(p().rows());
    return query_gradient(ds);
  }

  /// The whole sum times 1 / sqrt(hd).
  [[nodiscard]] Block key_gradient(const KeyValueSums& sums) const {
    const Matrix value = scale_ * sums.dk;
    Matrix variance = inheritance_.variance(sums.dk_spread) + c_ * sums.num_terms * sums.dk_squares;
    variance = scale_ * scale_ * variance + c_ * (sums.num_terms + 3) * squares(value);
    return {value, variance};
  }
  [[nodiscard]] Block value_gradient(const KeyValueSums& sums) const {
    return {sums.dv, inheritance_.variance(sums.dv_spread) +
                         c_ * sums.num_terms * (sums.dv_squares + squares(sums.dv))};
  }

 private:
  /// ds; errors that are common to a row are told apart.
  struct Scores {
    Matrix value;
    Matrix variance;             ///< without those of D and l
    Eigen::VectorXd d;           ///< D
    Eigen::VectorXd d_variance;  ///< of its own rounding
  };

  [[nodiscard]] const Matrix& p() const { return rows_.p; }

  [[nodiscard]] TrackedSoftmax softmax_of_scores(bool is_causal) const {
    const Matrix s = q_.value * k_.value.transpose();
    const Matrix k_squares = squares(k_.value).transpose();
    const Matrix from_k = (squares(q_.value) + q_.variance) * k_.variance.transpose();
    const Matrix from_q = q_.variance * k_squares;
    Matrix variance = from_k + from_q;
    if (rounding_.is_shared) variance = squares(from_k.cwiseSqrt() + from_q.cwiseSqrt());
    variance += c_ * features_ * (squares(q_.value) * k_squares + squares(s));
    variance = scale_ * scale_ * (variance + 3 * c_ * squares(s));
    return softmax(rounding_, scale_ * s, variance, is_causal);
  }

  [[nodiscard]] Scores score_gradient(const Block& dy) const {
    const Matrix dp = dy.value * v_.value.transpose();
    const Matrix terms = p().cwiseProduct(dp);
    Scores ds;
    ds.d = terms.rowwise().sum();
    ds.value = terms - scaled_rows(ds.d, p());
    ds.d_variance = c_ * ((rows_.num_terms.array() + 2) * squares(terms).rowwise().sum().array() +
                          rows_.num_terms.array() * ds.d.array().square())
                             .matrix();
    const Matrix v_squares = squares(v_.value).transpose();
    const Matrix w = squares(dy.value) * v_.variance.transpose() +
                     c_ * features_ * (squares(dy.value) * v_squares + squares(dp));
    const Matrix from_w = inherit_centred(inheritance_, p(), inheritance_.spread(w))
                              .cwiseProduct(inheritance_.weight(p()));
    Matrix from_dy =
        dy.variance * v_squares - 2 * dy.variance.cwiseProduct(output_) * v_.value.transpose();
    from_dy.colwise() += dy.variance.cwiseProduct(squares(output_)).rowwise().sum();
    from_dy = inheritance_.spread(from_dy.cwiseMax(0.0)).cwiseProduct(inheritance_.weight(p()));
    ds.variance = inheritance_.variance(from_w + from_dy +
                                        inherit_from_exponents(inheritance_, rows_, ds.value)) +
                  2 * c_ * squares(ds.value);
    return ds;
  }

  [[nodiscard]] Block query_gradient(const Scores& ds) const {
    const Matrix sums = ds.value * k_.value;
    const Matrix inherited = inheritance_.weight(ds.value) * inheritance_.spread(k_.variance) +
                             inheritance_.spread(ds.variance) * inheritance_.weight(k_.value);
    const Matrix mean_key = p() * k_.value;
    Matrix variance = inheritance_.variance(inherited) +
                      scaled_rows(ds.d_variance, squares(mean_key)) +
                      scaled_rows(rows_.sum_rounding, squares(sums - scaled_rows(ds.d, mean_key)));
    const Matrix own = squares(ds.value) * squares(k_.value) + squares(sums);
    variance += c_ * scaled_rows(rows_.num_terms, own) + 3 * c_ * squares(sums);
    return {scale_ * sums, scale_ * scale_ * variance};
  }

  Rounding rounding_;
  Inheritance inheritance_;
  double c_;
  double scale_;
  double features_;
  Block q_, k_, v_;
  TrackedSoftmax rows_;
  Matrix output_;
};

Place query_place(const ModuleSpec& spec, std::int64_t positions, std::int64_t sample,
                  std::int64_t head) {
  return {sample * positions, head * spec.head_dim, positions, spec.head_dim};
}

Place key_place(const ModuleSpec& spec, std::int64_t positions, std::int64_t sample,
                std::int64_t head) {
  return query_place(spec, positions, sample, head / (spec.heads / spec.kv_heads));
}

}  // namespace

TrackedTensor TrackedArithmetic::attention(const ModuleSpec& spec, std::int64_t positions,
                                           const TrackedTensor& q, const TrackedTensor& k,
                                           const TrackedTensor& v) {
  TrackedTensor y = tracked_zeros(q.value.rows, q.value.cols);
  for (std::int64_t sample = 0; sample < q.value.rows / positions; ++sample) {
    for (std::int64_t head = 0; head < spec.heads; ++head) {
      const Place of_q = query_place(spec, positions, sample, head);
      const Place of_k = key_place(spec, positions, sample, head);
      store(Head(rounding_, spec, block_at(q, of_q), block_at(k, of_k), block_at(v, of_k)).output(),
            of_q, y);
    }
  }
  return y;
}

std::array<TrackedTensor, 3> TrackedArithmetic::attention_gradients(
    const ModuleSpec& spec, std::int64_t positions, const TrackedTensor& q, const TrackedTensor& k,
    const TrackedTensor& v, const TrackedTensor& dy) {
  TrackedTensor dq = tracked_zeros(q.value.rows, q.value.cols);
  TrackedTensor dk = tracked_zeros(k.value.rows, k.value.cols);
  TrackedTensor dv = tracked_zeros(v.value.rows, v.value.cols);
  const std::int64_t group = spec.heads / spec.kv_heads;
  const Matrix zero = Matrix::Zero(positions, spec.head_dim);
  for (std::int64_t sample = 0; sample < q.value.rows / positions; ++sample) {
    for (std::int64_t first = 0; first < spec.heads; first += group) {
      const Place of_k = key_place(spec, positions, sample, first);
      Head::KeyValueSums sums{zero, zero, zero, zero, zero, zero};
      for (std::int64_t head = first; head < first + group; ++head) {
        const Place of_q = query_place(spec, positions, sample, head);
        const Head at(rounding_, spec, block_at(q, of_q), block_at(k, of_k), block_at(v, of_k));
        store(at.add_gradients(block_at(dy, of_q), sums), of_q, dq);
        if (head + 1 < first + group) continue;
        store(at.key_gradient(sums), of_k, dk);
        store(at.value_gradient(sums), of_k, dv);
      }
    }
  }
  return {std::move(dq), std::move(dk), std::move(dv)};
}

}  // namespace hpsim
