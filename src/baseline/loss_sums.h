#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "baseline/row_blocks.h"

namespace hpsim {

/// Loss terms of rows, added up by what they are divided by.
template <class Arithmetic>
class LossSums {
 public:
  using Tensor = typename Arithmetic::Tensor;
  using Sum = typename Arithmetic::Sum;
  using Scalar = typename Arithmetic::Scalar;

  LossSums(Arithmetic& arithmetic, LossRows rows)
      : arithmetic_(arithmetic), rows_(std::move(rows)), sums_(rows_.groups.size()) {}

  /// Calls add_to(sum, its rows of `terms`).
  template <class AddTo>
  void add(const Tensor& terms, const AddTo& add_to) {
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      if (rows_.is_uniform()) {
        add_to(sums_[i], terms);
      } else {
        add_to(sums_[i], arithmetic_.rows(terms, rows_.groups[i].rows));
      }
    }
  }

  /// Gradients of terms, times `numerator` over the divisor of their row.
  [[nodiscard]] Tensor scaled(const Tensor& gradients, double numerator) {
    if (rows_.is_uniform()) {
      return arithmetic_.scaled(gradients, numerator / rows_.groups[0].divisor);
    }
    std::vector<double> factors;
    for (const double divisor : rows_.divisors)
      factors.push_back(divisor == 0 ? 0 : numerator / divisor);
    return arithmetic_.scaled_rows(gradients, factors);
  }

  /// Parts of losses[t] and of the mean over all terms, each of the latter times `numerator`.
  [[nodiscard]] std::vector<Scalar> parts(double numerator) {
    std::vector<Scalar> result;
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      const double divisor = rows_.num_ranks * rows_.groups[i].divisor;
      result.push_back(arithmetic_.finish(sums_[i], numerator / divisor));
    }
    return result;
  }
  [[nodiscard]] Scalar mean(double numerator) {
    Sum all{};
    for (const Sum& sum : sums_)
      arithmetic_.add_sum(all, sum);
    return arithmetic_.finish(all, numerator / rows_.all_terms);
  }

 private:
  Arithmetic& arithmetic_;
  LossRows rows_;
  std::vector<Sum> sums_;
};

}  // namespace hpsim
