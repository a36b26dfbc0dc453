#pragma once

#include <cstdint>
#include <vector>

#include "scenario/scenario.h"

namespace hpsim {

/// The rows of one micro-batch of one data rank: those of the whole batch stand together.
struct RowBlock {
  std::int64_t data_rank = 0;
  std::int64_t micro_batch = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// All of them, in the order of their rows, of which a sample has `positions`.
[[nodiscard]] std::vector<RowBlock> row_blocks(const Scenario& scenario, std::int64_t positions);

/// Rows whose loss terms are divided by the same number.
struct LossGroup {
  double divisor = 1;
  std::vector<std::int64_t> rows;
};

/// What becomes of the loss terms of every row.
struct LossRows {
  std::vector<double> divisors;   ///< per row; 0: it has no terms
  std::vector<LossGroup> groups;  ///< of the rows that have
  double num_ranks = 1;           ///< what losses[t] divides sums over data ranks by besides
  double all_terms = 1;           ///< what the mean over all terms of the step divides by

  /// Whether all rows have terms, and one divisor.
  [[nodiscard]] bool is_uniform() const {
    return groups.size() == 1 && groups[0].rows.size() == divisors.size();
  }
};

/// Of a model, or of elementwise parameter `elementwise` (positions are samples), for
/// `terms_per_position` terms of every valid position.
[[nodiscard]] LossRows loss_rows(const Scenario& scenario, std::int64_t step,
                                 std::int64_t terms_per_position, int elementwise = -1);

/// A part that some rows pass by.
struct Bypass {
  int first = 0;                   ///< module
  int last = 0;                    ///< the module whose output rows are replaced
  int source = 0;                  ///< the activation that replaces them
  std::vector<std::int64_t> rows;  ///< ascending
};

/// Of a step, inner parts before those around them.
[[nodiscard]] std::vector<Bypass> bypasses(const Scenario& scenario, std::int64_t step);

}  // namespace hpsim
