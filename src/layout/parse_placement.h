#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "layout/placement.h"

namespace hpsim {

/// What is wrong with a text that should be a placement, for a message: "split_factor is 0".
struct PlacementProblem {
  std::string message;
  std::string help;
};

/// The inverse of `to_string` for all three vocabularies; blanks do not matter, and long lists of
/// units may be written in runs, as they are printed.
///
///   "Shard( 0 )"                                   Shard{0}
///   "_StridedShard(0, 2)"                          StridedShard{0, 2}
///   "RaggedShard((0,), (2 * 3, 1))"                RaggedShard{{0}, {2, 2, 2, 1}}
///   "RaggedShard((1,), (1, 1))"                    dims are (1,), but must be (0,), (0, 1), ...
///   "RaggedShard((0,), (0, 0))"                    the units sum to 0
///   "StridedShard(0, 0)"                           split_factor is 0
///   "Partial(max)"                                 Partial(sum) and Partial(avg) are known
///   "shard(0)"                                     did you mean "Shard"?
[[nodiscard]] std::variant<Placement, PlacementProblem> parse_placement(std::string_view text);

}  // namespace hpsim
