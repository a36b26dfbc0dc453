#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scenario/object_reader.h"
#include "scenario/scenario.h"

namespace hpsim {

/// What an entry of `data.inactive` makes of one part of the model.
struct InactivePart {
  InactiveSpec spec;
  std::string name;  ///< of the part
  JsonCursor at;     ///< the pattern that names it
  JsonCursor ranks;  ///< where the entry lists its ranks, or the entry
};

/// `data.inactive`, in file order; a part that two patterns of an entry name comes once. Ranks of
/// the mesh become data ranks: those that see the same samples must all be listed.
///
///   mesh (fsdp 2, tp 2), ranks [0, 1]      data rank 0
///   the same, ranks [0]                    refused: 1 sees the same samples
/// \pre mesh, model, data_dims and `training` are read
[[nodiscard]] std::vector<InactivePart> read_inactive(const ObjectReader& scenario,
                                                      const Scenario& result);

/// Whether the parts can be left out: the input of one can stand for its output (features, layout
/// and dtype; a residual gives what is added to); no two lie in one another in one pass; and ranks
/// that share or exchange samples inside one leave it out together.
/// \pre the file has no mistake
void check_inactive(const Scenario& scenario, const std::vector<InactivePart>& parts,
                    Problems& problems);

/// Gradients that are reduced have the same size on all ranks: between two reductions a trained
/// parameter gets a gradient on every data rank, or on none, unless reduce_unused makes it zeros.
/// \pre the file has no mistake, data.inactive holds the parts
void check_unused(const Scenario& scenario, const std::vector<InactivePart>& parts,
                  Problems& problems);

/// `0, 1, 2 and 5 more`: the first eight of `count` numbers.
[[nodiscard]] std::string first_of(const std::vector<std::int64_t>& numbers, std::int64_t count);

/// The ranks of the mesh that see the samples of a data rank, ascending in position; at most
/// `most`.
[[nodiscard]] std::vector<std::int64_t> ranks_of_data_rank(const Scenario& scenario,
                                                           std::int64_t data_rank,
                                                           std::size_t most);

}  // namespace hpsim
