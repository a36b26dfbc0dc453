#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plan/explain.h"
#include "report/text.h"

namespace hpsim {

/// What to tell of which parameters.
struct ExplainView {
  std::vector<int> parameters;  ///< into Plan::parameters
  bool in_detail = false;       ///< all about each, not a few lines
  std::optional<Rank> rank;     ///< what it holds and exchanges; none: not told
  bool full = false;  ///< long lists are not folded, ranks are listed whatever their number
};

/// Header, the activations of a model where nothing is told in detail, then a section per
/// parameter: where its elements live with the ranks that hold them, the placement along each mesh
/// dim with its rule, groups, gradient, its way through optimizer step 0. Lines have at most 100
/// columns where names allow.
[[nodiscard]] std::string explain_text(const Plan& plan, const ExplainView& view, bool color);

/// The same facts: {"explain": 1, "scenario", "world_size", "parameters": [an entry of the report's
/// `parameters`, with "unit", "dims", "cuts", "groups", "gradient", "scale", "life", "rank"],
/// "activations"}.
[[nodiscard]] nlohmann::ordered_json explain_json(const Plan& plan, const ExplainView& view);

/// The layouts of activations along the model, and what changes them: a line per module. Empty if
/// the model is elementwise.
[[nodiscard]] std::string activations_text(const Plan& plan, const TextStyle& style);

/// [{"module", "type", "inputs", "output", "given", "input_gradients", "redistributions"}]; of
/// experts also "exchange", the mesh dims over which their positions travel.
[[nodiscard]] nlohmann::ordered_json activations_json(const Plan& plan);

/// Where the elements of a parameter live: a picture of the tensor where one or two of its dims are
/// cut into few parts, else a line per run of parts.
[[nodiscard]] std::string picture_section(const Plan& plan, const ParameterFacts& facts,
                                          const TextStyle& style);

/// One run of parts in words, over the mesh dims that cut.
///
///   (7, 8) over fsdp 4        "fsdp 0..2: 2 rows each, [0, 6)"
///                             "fsdp 3: 1 row + 1 of padding, [6, 7)"
///   (2, 3) over fsdp 4        "fsdp 2..3: no row, a slot of 1 row each"
///   (70, 2), tp 7, fsdp 4     "tp 0..6, fsdp 0..2: 3 rows each, from 10 tp + 3 fsdp on"
[[nodiscard]] std::string run_text(const Mesh& mesh, const Shape& shape, const AxisCut& cut,
                                   const PartRun& run);

/// "fsdp 3, tp 1", those of `dims` in that order
[[nodiscard]] std::string coordinate_text(const Mesh& mesh, const MeshDims& dims,
                                          const Coordinate& coordinate);

}  // namespace hpsim
