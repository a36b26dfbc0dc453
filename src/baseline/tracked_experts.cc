// Experts of every row: p = softmax(s) of the logits s, C the top_k experts by p, and
//   t_e = w2_e h_e, h_e = silu(a_e) b_e, a_e = w1_e x, b_e = w3_e x;    y = sum over C of p_e t_e
// Backward, for dy, everything of an expert without p first:
//   dh = w2ᵀ dy, da and db of the gate, x_e = w1ᵀ da + w3ᵀ db;    dx = sum over C of p_e x_e
//   dw1_e = sum over rows of p_e da xᵀ    dw3_e with db    dw2_e = sum over rows of p_e dy hᵀ
//   dp_e = dy . t_e in C, else 0    D = sum p dp    ds = p (dp - D)
//
// Variances, with softmax's E and own relative rounding L of l (tracked_softmax.h), c = u² / 3.
// What an expert makes of its rows is linear and gated like an mlp (tracked_arithmetic.cc,
// tracked_gate.cc). Rows have errors of their own, or share them; elements of one are features,
// whose errors are independent (softmax of logits, too).
//   y   p's errors are p_j (e_j - sum p e + l), so they leave in y the distance of t_j, 0 outside
//       C, from y: sum over all j of p_j² E_j (t_j - y)² + L y². The t are made of one x by experts
//       in different ways, as branches of a residual are: deviations add up, (sum p sigma(t))².
//       Quotients: 2 c sum (p t)². A sum of n = top_k terms: c n (sum (p t)² + y²).
//   dx  the same of x_e. A run may add the 2 top_k terms p w1ᵀ da and p w3ᵀ db in any order, and
//       scale by p first or last: one more rounding of dy.
//   dw  p is a factor of rows, which it enters with its own variance. The sum is counted as one of
//       all rows, most of whose terms are 0, as an embedding's.
//   ds  as in attention (tracked_attention.cc) of one query, whose values are t in C and else 0:
//       by dy    p_j (t_j - y) . d(dy)
//       by t and rounding of dp: p_j (w_j - sum p w). An error of h is in all t that it makes, so
//       dp takes it by dh: W_e = sum dh² Var(h) + sum dy² Var(t of an exact h)
//       + c dim (sum (dy t)² + dp²)
//       by e    ds_j e_j - sum_l (ds_j p_l + p_j ds_l) e_l
//       D's own rounding, c ((top_k + 2) sum (p dp)² + top_k D²): -p_j; by L: p_j D - ds_j; both
//       are common to a row. Router rows that are alike would add them up, |sum b_j r_j|² <= (sum
//       |b|) sum |b_j| r_j²: b_j counts as |b_j| sum |b|.
//       quotient, difference and product: 4 c ds²

#include <cmath>
#include <utility>
#include <vector>

#include "baseline/expert_routes.h"
#include "baseline/tracked_arithmetic.h"
#include "baseline/tracked_softmax.h"

namespace hpsim {
namespace {

using Matrix = RowMatrix<double>;
using Column = Eigen::VectorXd;
using Rows = std::vector<std::int64_t>;

Matrix variances_of(const TrackedTensor& tensor) {
  if (tensor.is_exact()) return Matrix::Zero(tensor.value.rows, tensor.value.cols);
  return tensor.variance_map();
}

Matrix joined(const Rounding& rounding, const Matrix& a, const Matrix& b) {
  return a.binaryExpr(b, [&](double x, double y) { return rounding.join(x, y); });
}

/// Softmax of the logits of every row: features, with errors of their own.
TrackedSoftmax softmax_of(Rounding rounding, const TrackedTensor& logits) {
  rounding.is_shared = false;
  return softmax(rounding, logits.value.map(), variances_of(logits), false);
}

/// What an expert gives to one of the places of every row's choice.
struct Branch {
  TrackedTensor whole;
  Matrix term_squares;      ///< of those that a run may add to other branches' in any order
  Column product_variance;  ///< of dy . whole, by errors of `whole`; where it is asked for
};

struct Branches {
  std::vector<Branch> of_slot;  ///< top_k of them
  double num_terms = 1;         ///< of each, which term_squares adds up

  Branches(std::int64_t top_k, std::int64_t rows, std::int64_t cols, double terms)
      : num_terms(terms) {
    const Branch empty{tracked_zeros(rows, cols), Matrix::Zero(rows, cols), Column::Zero(rows)};
    of_slot.assign(static_cast<std::size_t>(top_k), empty);
  }
};

/// The rows that chose an expert, and in which place of their choice it stands.
struct Visitors {
  Rows rows;
  std::vector<std::size_t> slots;
};

void scatter(const Branch& part, const Visitors& from, Branches& to) {
  for (std::size_t i = 0; i < from.rows.size(); ++i) {
    const auto at = static_cast<Eigen::Index>(i);
    const std::int64_t row = from.rows[i];
    Branch& branch = to.of_slot[from.slots[i]];
    branch.whole.value.map().row(row) = part.whole.value.map().row(at);
    branch.whole.variance_map().row(row) = part.whole.variance_map().row(at);
    branch.term_squares.row(row) = part.term_squares.row(at);
    if (part.product_variance.size() > 0) branch.product_variance[row] = part.product_variance[at];
  }
}

/// Probabilities and choices of all rows.
class Router {
 public:
  Router(const Rounding& rounding, const ModuleSpec& spec, const TrackedTensor& logits)
      : rounding_(rounding),
        c_(rounding.variance()),
        rows_(softmax_of(rounding, logits)),
        p_variance_(
            variance_of(Rounding{rounding.unit_roundoff, rounding.confidence, false}, rows_)),
        routes_(route_by(rounding, rows_, logits, spec.top_k).experts),
        top_k_(spec.top_k) {}

  [[nodiscard]] Visitors visitors_of(std::int64_t expert) const {
    Visitors result;
    for (std::size_t i = 0; i < routes_.size(); ++i) {
      if (routes_[i] != expert) continue;
      const auto k = static_cast<std::size_t>(top_k_);
      result.rows.push_back(static_cast<std::int64_t>(i / k));
      result.slots.push_back(i % k);
    }
    return result;
  }

  /// Rows times their p of an expert.
  [[nodiscard]] TrackedTensor scaled(const TrackedTensor& tensor, const Rows& rows,
                                     std::int64_t expert) const {
    TrackedTensor result = tracked_zeros(tensor.value.rows, tensor.value.cols);
    const Column p = rows_.p(rows, expert);
    const Column p_variance = p_variance_(rows, expert);
    result.value.map() = p.asDiagonal() * tensor.value.map();
    const Matrix from_p = p_variance.asDiagonal() * tensor.value.map().cwiseAbs2();
    const Column p_square = p.cwiseAbs2() + p_variance;
    const Matrix from_tensor = p_square.asDiagonal() * variances_of(tensor);
    result.variance_map() =
        joined(rounding_, from_p, from_tensor) + c_ * Matrix(result.value.map().cwiseAbs2());
    return result;
  }

  /// Sum over the chosen of p times the branch, whose terms have `term_rounding` besides.
  [[nodiscard]] TrackedTensor mixed(const Branches& branches, double term_rounding) const {
    const TrackedTensor& first = branches.of_slot.front().whole;
    TrackedTensor y = tracked_zeros(first.value.rows, first.value.cols);
    for (std::size_t slot = 0; slot < branches.of_slot.size(); ++slot)
      y.value.map() +=
          slot_of(rows_.p, slot).asDiagonal() * branches.of_slot[slot].whole.value.map();
    const Matrix y_square = y.value.map().cwiseAbs2();
    const Matrix of_exponents = rows_.p.cwiseAbs2().cwiseProduct(rows_.exponent);
    Matrix from_p = unchosen_sum(of_exponents).asDiagonal() * y_square;
    Matrix deviations = Matrix::Zero(y_square.rows(), y_square.cols());
    Matrix own = deviations;
    Matrix terms = deviations;
    const double num_terms = branches.num_terms * static_cast<double>(top_k_);
    for (std::size_t slot = 0; slot < branches.of_slot.size(); ++slot) {
      const Branch& branch = branches.of_slot[slot];
      const Column p_square = slot_of(rows_.p, slot).cwiseAbs2();
      const Column p_reach = (p_square + slot_of(p_variance_, slot)).cwiseSqrt();
      from_p += slot_of(of_exponents, slot).asDiagonal() *
                (branch.whole.value.map() - y.value.map()).cwiseAbs2();
      deviations += p_reach.asDiagonal() * branch.whole.variance_map().cwiseSqrt();
      if (term_rounding != 0) terms += p_square.asDiagonal() * branch.term_squares;
      own += p_square.asDiagonal() *
             (num_terms * branch.term_squares + 2 * Matrix(branch.whole.value.map().cwiseAbs2()));
    }
    y.variance_map() = joined(rounding_, from_p, deviations.cwiseAbs2()) + c_ * own;
    y.variance_map() += rows_.sum_rounding.asDiagonal() * y_square + c_ * num_terms * y_square;
    if (term_rounding != 0) y.variance_map() += term_rounding * (terms + y_square);
    return y;
  }

  /// ds of dy, of what experts give, and of its mix y.
  [[nodiscard]] TrackedTensor logit_gradient(const Branches& branches, const TrackedTensor& y,
                                             const TrackedTensor& dy) const {
    const Choices of = products_with(branches, y, dy);
    const Matrix terms = rows_.p.cwiseProduct(of.dp);
    const Column d = terms.rowwise().sum();
    const Matrix of_d = d.asDiagonal() * rows_.p;
    TrackedTensor ds = tracked_zeros(rows_.p.rows(), rows_.p.cols());
    ds.value.map() = terms - of_d;
    const Matrix value = ds.value.map();
    const Inheritance features{false};
    const Matrix p_square = rows_.p.cwiseAbs2();
    const Matrix from_t = inherit_centred(features, rows_.p, of.dp_variance).cwiseProduct(p_square);
    const Matrix from_dy = of.from_dy.cwiseProduct(p_square);
    ds.variance_map() = joined(rounding_, joined(rounding_, from_t, from_dy),
                               inherit_from_exponents(features, rows_, value)) +
                        4 * c_ * value.cwiseAbs2();
    const auto k = static_cast<double>(top_k_);
    const Column d_variance =
        c_ * ((k + 2) * terms.cwiseAbs2().rowwise().sum() + k * d.cwiseAbs2());
    ds.variance_map() += d_variance.asDiagonal() * rows_.p;
    const Matrix of_l = (of_d - value).cwiseAbs();
    const Column l_variance = rows_.sum_rounding.cwiseProduct(of_l.rowwise().sum());
    ds.variance_map() += l_variance.asDiagonal() * of_l;
    return ds;
  }

 private:
  /// Of every row and expert.
  struct Choices {
    Matrix dp;
    Matrix dp_variance;  ///< W
    Matrix from_dy;      ///< sum_f Var(dy) (t - y)²
  };

  [[nodiscard]] std::int32_t expert_at(Eigen::Index row, std::size_t slot) const {
    return routes_[static_cast<std::size_t>(row * top_k_) + slot];
  }

  /// Every row's element of the expert in that place of its choice.
  [[nodiscard]] Column slot_of(const Matrix& x, std::size_t slot) const {
    Column result(x.rows());
    for (Eigen::Index row = 0; row < x.rows(); ++row)
      result[row] = x(row, expert_at(row, slot));
    return result;
  }

  [[nodiscard]] Column unchosen_sum(Matrix x) const {
    for (std::size_t slot = 0; slot < static_cast<std::size_t>(top_k_); ++slot) {
      for (Eigen::Index row = 0; row < x.rows(); ++row)
        x(row, expert_at(row, slot)) = 0;
    }
    return x.rowwise().sum();
  }

  [[nodiscard]] Choices products_with(const Branches& branches, const TrackedTensor& y,
                                      const TrackedTensor& dy) const {
    const Matrix dy_variance = variances_of(dy);
    const Column of_y = dy_variance.cwiseProduct(y.value.map().cwiseAbs2()).rowwise().sum();
    Choices result{Matrix::Zero(rows_.p.rows(), rows_.p.cols()), {}, {}};
    result.dp_variance = result.dp;
    result.from_dy = of_y.replicate(1, rows_.p.cols());
    for (std::size_t slot = 0; slot < branches.of_slot.size(); ++slot) {
      const TrackedTensor& t = branches.of_slot[slot].whole;
      const Matrix terms = t.value.map().cwiseProduct(dy.value.map());
      const Column dp = terms.rowwise().sum();
      const Column w = branches.of_slot[slot].product_variance +
                       c_ * static_cast<double>(terms.cols()) *
                           (terms.cwiseAbs2().rowwise().sum() + dp.cwiseAbs2());
      const Matrix distance = t.value.map() - y.value.map();
      const Column from_dy = dy_variance.cwiseProduct(distance.cwiseAbs2()).rowwise().sum();
      for (Eigen::Index row = 0; row < dp.size(); ++row) {
        const std::int32_t expert = expert_at(row, slot);
        result.dp(row, expert) = dp[row];
        result.dp_variance(row, expert) = w[row];
        result.from_dy(row, expert) = from_dy[row];
      }
    }
    return result;
  }

  Rounding rounding_;
  double c_;
  TrackedSoftmax rows_;
  Matrix p_variance_;
  std::vector<std::int32_t> routes_;
  std::int64_t top_k_;
};

TrackedTensor part_of(const TrackedTensor& all, std::int64_t expert, std::int64_t count) {
  Rows rows(static_cast<std::size_t>(all.value.rows / count));
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i] = expert * static_cast<std::int64_t>(rows.size()) + static_cast<std::int64_t>(i);
  return TrackedArithmetic::rows(all, rows);
}

/// One expert's matrices.
struct Expert {
  TrackedTensor w1, w2, w3;

  Expert(const ModuleSpec& spec, std::int64_t index, const TrackedTensor& all_w1,
         const TrackedTensor& all_w2, const TrackedTensor& all_w3)
      : w1(part_of(all_w1, index, spec.num_experts)),
        w2(part_of(all_w2, index, spec.num_experts)),
        w3(part_of(all_w3, index, spec.num_experts)) {}
};

void store_part(const TrackedTensor& part, std::int64_t expert, TrackedTensor& all) {
  const std::int64_t first = expert * part.value.rows;
  all.value.map().middleRows(first, part.value.rows) = part.value.map();
  all.variance_map().middleRows(first, part.value.rows) = part.variance_map();
}

/// x, and what an expert's matrices make of it.
struct Hidden {
  TrackedTensor x, a, b, h;
};

Hidden hidden_of(TrackedArithmetic& arithmetic, const Expert& expert, TrackedTensor x) {
  Hidden result{std::move(x), {}, {}, {}};
  result.a = arithmetic.linear(result.x, expert.w1, nullptr);
  result.b = arithmetic.linear(result.x, expert.w3, nullptr);
  result.h = arithmetic.silu_gate(result.a, result.b);
  return result;
}

Branch output_of(TrackedArithmetic& arithmetic, const Expert& expert, const Hidden& hidden) {
  TrackedTensor t = arithmetic.linear(hidden.h, expert.w2, nullptr);
  Matrix squares = t.value.map().cwiseAbs2();
  return {std::move(t), std::move(squares), {}};
}

/// See W above.
Column product_variance(TrackedArithmetic& arithmetic, const Expert& expert, const Hidden& hidden,
                        const TrackedTensor& dy, const TrackedTensor& dh) {
  const TrackedTensor exact_h{hidden.h.value, {}};
  const Matrix of_t = variances_of(arithmetic.linear(exact_h, expert.w2, nullptr));
  const Matrix dh_square = dh.value.map().cwiseAbs2() + dh.variance_map();
  const Matrix dy_square = dy.value.map().cwiseAbs2() + dy.variance_map();
  return dh_square.cwiseProduct(hidden.h.variance_map()).rowwise().sum() +
         dy_square.cwiseProduct(of_t).rowwise().sum();
}

/// Of an expert's rows, without p.
struct RowGradients {
  TrackedTensor dy, a, b;
  Branch output, x;
};

RowGradients row_gradients(TrackedArithmetic& arithmetic, const Expert& expert,
                           const Hidden& hidden, TrackedTensor dy) {
  RowGradients result;
  const TrackedTensor dh = arithmetic.input_gradient(dy, expert.w2);
  result.output = output_of(arithmetic, expert, hidden);
  result.output.product_variance = product_variance(arithmetic, expert, hidden, dy, dh);
  auto [da, db] = arithmetic.silu_gate_gradients(hidden.a, hidden.b, dh);
  const TrackedTensor by_a = arithmetic.input_gradient(da, expert.w1);
  const TrackedTensor by_b = arithmetic.input_gradient(db, expert.w3);
  result.x.whole = arithmetic.sum(by_a, by_b);
  result.x.term_squares = by_a.value.map().cwiseAbs2() + by_b.value.map().cwiseAbs2();
  result.dy = std::move(dy);
  result.a = std::move(da);
  result.b = std::move(db);
  return result;
}

}  // namespace

ExpertRoutes TrackedArithmetic::route(const ModuleSpec& spec, const TrackedTensor& logits,
                                      const std::vector<std::int64_t>& unused_rows) {
  return route_by(rounding_, softmax_of(rounding_, logits), logits, spec.top_k, unused_rows);
}

TrackedTensor TrackedArithmetic::experts(const ModuleSpec& spec, const TrackedTensor& x,
                                         const TrackedTensor& logits, const TrackedTensor& w1,
                                         const TrackedTensor& w2, const TrackedTensor& w3) {
  const Router router(rounding_, spec, logits);
  // Terms are what experts give, not the products inside them.
  const double term_rounding = std::exchange(term_rounding_, 0.0);
  Branches outputs(spec.top_k, x.value.rows, x.value.cols, 1);
  for (std::int64_t e = 0; e < spec.num_experts; ++e) {
    const Visitors visitors = router.visitors_of(e);
    const Expert expert(spec, e, w1, w2, w3);
    const Hidden hidden = hidden_of(*this, expert, rows(x, visitors.rows));
    scatter(output_of(*this, expert, hidden), visitors, outputs);
  }
  return router.mixed(outputs, term_rounding);
}

std::array<TrackedTensor, 5> TrackedArithmetic::experts_gradients(
    const ModuleSpec& spec, const TrackedTensor& x, const TrackedTensor& logits,
    const TrackedTensor& w1, const TrackedTensor& w2, const TrackedTensor& w3,
    const TrackedTensor& dy) {
  const Router router(rounding_, spec, logits);
  // Terms are what experts give, not the products inside them.
  const double term_rounding = std::exchange(term_rounding_, 0.0);
  const std::int64_t num_rows = x.value.rows;
  Branches outputs(spec.top_k, num_rows, x.value.cols, 1);
  Branches of_x(spec.top_k, num_rows, x.value.cols, 2);
  TrackedTensor dw1 = tracked_zeros(w1.value.rows, w1.value.cols);
  TrackedTensor dw2 = tracked_zeros(w2.value.rows, w2.value.cols);
  TrackedTensor dw3 = tracked_zeros(w3.value.rows, w3.value.cols);
  TrackedTensor rounded_dy = dy;
  if (dy.is_exact()) rounded_dy.variance.resize(dy.value.data.size());
  add_rounding(rounded_dy, 1);
  for (std::int64_t e = 0; e < spec.num_experts; ++e) {
    const Visitors visitors = router.visitors_of(e);
    const Expert expert(spec, e, w1, w2, w3);
    const Hidden hidden = hidden_of(*this, expert, rows(x, visitors.rows));
    const RowGradients of_rows =
        row_gradients(*this, expert, hidden, rows(rounded_dy, visitors.rows));
    scatter(of_rows.output, visitors, outputs);
    scatter(of_rows.x, visitors, of_x);
    const auto gradient = [&](const TrackedTensor& of_terms, const TrackedTensor& input) {
      return weight_gradient(router.scaled(of_terms, visitors.rows, e), input, visitors.rows,
                             num_rows);
    };
    store_part(gradient(of_rows.a, hidden.x), e, dw1);
    store_part(gradient(of_rows.dy, hidden.h), e, dw2);
    store_part(gradient(of_rows.b, hidden.x), e, dw3);
  }
  return {router.mixed(of_x, term_rounding),
          router.logit_gradient(outputs, router.mixed(outputs, term_rounding), dy), std::move(dw1),
          std::move(dw2), std::move(dw3)};
}

}  // namespace hpsim
