#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trace/contributions.h"
#include "verify/suspect.h"

namespace hpsim {

/// A shard of a gradient that failed, and the terms that it should be the sum of. Explanations are
/// sums of some of the terms, each times a factor; such a sum is allowed
///
///   max(1, largest factor) bound + k u sqrt(n / 3) max(0, |sum| - |expected|)
///
/// per element: what the rule of sums gives for fewer terms, each at most that large, of n rows;
/// the second part is what partial sums that do not cancel may round more. u is that of the
/// coarsest dtype in which the gradient is computed or reduced. In exact mode nothing is allowed.
class TermTable {
 public:
  /// \pre terms are those of the elements of the suspect
  TermTable(const Suspect& suspect, const Contributions& contributions);

  [[nodiscard]] const Suspect& suspect() const { return suspect_; }
  [[nodiscard]] std::int64_t num_data_ranks() const { return contributions_.num_data_ranks; }
  [[nodiscard]] std::int64_t num_micro_batches() const { return contributions_.num_micro_batches; }
  [[nodiscard]] std::int64_t num_parts() const { return contributions_.num_parts; }
  [[nodiscard]] const std::vector<double>& term(std::int64_t data_rank, std::int64_t micro_batch,
                                                std::int64_t part) const {
    return contributions_.term(data_rank, micro_batch, part);
  }
  /// Sums over what is not named.
  [[nodiscard]] const std::vector<double>& of_rank(std::int64_t data_rank) const {
    return by_rank_[static_cast<std::size_t>(data_rank)];
  }
  [[nodiscard]] const std::vector<double>& of_micro_batch(std::int64_t micro_batch) const {
    return by_micro_batch_[static_cast<std::size_t>(micro_batch)];
  }
  [[nodiscard]] const std::vector<double>& all() const { return all_; }

  /// What an element of such a sum is allowed.
  [[nodiscard]] double bound(std::size_t i, double value, double largest_factor) const;
  /// Whether the shard is value(i) everywhere.
  template <class Value>
  [[nodiscard]] bool agrees(const Value& value, double largest_factor = 1) const {
    return suspect_.agrees(value,
                           [&](std::size_t i) { return bound(i, value(i), largest_factor); });
  }
  /// 1 if the shard is `sum`, else the first named number times which it is; 0: none.
  [[nodiscard]] double factor_of(const std::vector<double>& sum) const;
  /// "", or "F=4 times " for a factor that factor_of found.
  [[nodiscard]] std::string factor_text(double factor) const;

  /// "rank 6", or "ranks 2, 3 (data rank 1)".
  [[nodiscard]] std::string rank_text(std::int64_t data_rank) const;
  /// Of the rank that holds the shard.
  [[nodiscard]] std::int64_t own_data_rank() const;

 private:
  const Suspect& suspect_;
  const Contributions& contributions_;
  std::vector<std::vector<double>> by_rank_;
  std::vector<std::vector<double>> by_micro_batch_;
  std::vector<double> all_;
  double relative_ = 0;  ///< 4u
  double slack_ = 0;     ///< k u sqrt(n / 3)
};

// Each tries one kind of explanation, as those of shard_causes.h. Of several ranks, or
// micro-batches, that explain it alike, all are named in one sentence.

/// "equals the gradient without the contribution of rank 6", or "of one of ranks 0, 1: ...".
[[nodiscard]] std::vector<std::string> without_a_rank(const TermTable& table);
/// "counts the contribution of rank 6 twice".
[[nodiscard]] std::vector<std::string> rank_counted_twice(const TermTable& table);
/// "counts the contribution of rank 6 in place of that of rank 3".
[[nodiscard]] std::vector<std::string> rank_in_place_of_another(const TermTable& table);
/// "equals what tp=1 alone adds: not reduced over tp", for every set of mesh dims over which it
/// should be reduced; "equals R=2 times what ..."; of all of them "equals the contribution of rank
/// 3 alone: not reduced".
[[nodiscard]] std::vector<std::string> reduced_over_fewer_dims(const TermTable& table);
/// "equals the contribution of rank 3 alone", of a rank that is not its own.
[[nodiscard]] std::vector<std::string> another_rank_alone(const TermTable& table);
/// "equals the gradient without micro-batch 1", "equals micro-batch 1 alone", "counts micro-batch 1
/// twice".
[[nodiscard]] std::vector<std::string> micro_batch_lost_or_twice(const TermTable& table);
/// "equals the gradient without micro-batch 1 of rank 6", or with it twice.
[[nodiscard]] std::vector<std::string> pass_lost_or_twice(const TermTable& table);
/// "is the largest contribution of all ranks, element by element: max in place of sum".
[[nodiscard]] std::vector<std::string> largest_in_place_of_sum(const TermTable& table);
/// "equals the gradient from the parameters that the run held before the step: what is off is
/// older", which only exact mode, whose reference trains freely, can see.
[[nodiscard]] std::vector<std::string> error_is_older(const TermTable& table);
/// "counts the contributions of data ranks 1, 2 times 2, 0, others once", from least squares over
/// the elements, at least twice as many as terms; factors are rounded to the nearest that has a
/// name, and the bounds decide. The same of micro-batches.
[[nodiscard]] std::vector<std::string> weighted_terms(const TermTable& table);

/// All of the above; the weights only if nothing else explains it.
[[nodiscard]] std::vector<std::string> provenance(const TermTable& table);

}  // namespace hpsim
