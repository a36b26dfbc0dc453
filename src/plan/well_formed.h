#pragma once

#include <optional>

#include "base/finding.h"
#include "plan/plan.h"

namespace hpsim {

/// What is so wrong with the layout of a parameter that the checks cannot look at it:
///
///   placements that are not one per mesh dim              SPEC_DISAGREES, placements
///   local units that are not one per shard                LAYOUT_GAP, coverage
///   units of which no multiple is what is cut: 2, 2 of 5  LAYOUT_GAP, coverage
///   more units than there are cells: 3, 3 of 5            LAYOUT_OVERLAP, coverage
[[nodiscard]] std::optional<Finding> malformed_layout(const Mesh& mesh,
                                                      const PlannedParameter& parameter);

/// Whether local_boxes can tell what a layout gives to the rank at `coordinate`: local units of its
/// ragged placement are one per rank, and divide the cells that they cut.
[[nodiscard]] bool has_boxes(const TensorLayout& layout, const Mesh& mesh,
                             const Coordinate& coordinate);

}  // namespace hpsim
