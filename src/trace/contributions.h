#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/interval.h"

namespace hpsim {

/// Which terms of a gradient are asked for.
struct ContributionRequest {
  std::int64_t step = 0;        ///< optimizer step
  int parameter = 0;            ///< into Scenario::parameters; it has a gradient in that step
  std::vector<Interval> elems;  ///< row-major, of the whole tensor: the only ones that are kept
  std::int64_t num_parts = 1;   ///< runs of the positions of every sample; divides their number
};

/// What the samples of each data rank and micro-batch alone, or a run of their positions, add to
/// the gradient G of a parameter: G is the sum of all terms.
struct Contributions {
  std::int64_t num_data_ranks = 1;
  std::int64_t num_micro_batches = 1;
  std::int64_t num_parts = 1;
  /// By data rank, then micro-batch, then part: the elements that were asked for.
  std::vector<std::vector<double>> terms;

  [[nodiscard]] const std::vector<double>& term(std::int64_t data_rank, std::int64_t micro_batch,
                                                std::int64_t part) const {
    return terms.at(
        static_cast<std::size_t>((data_rank * num_micro_batches + micro_batch) * num_parts + part));
  }
};

}  // namespace hpsim
