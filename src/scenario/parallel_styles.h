#pragma once

#include <optional>
#include <vector>

#include "scenario/object_reader.h"
#include "scenario/scenario.h"

namespace hpsim {

/// What `parallelize` makes of a module, or of an elementwise parameter.
struct StyleChoice {
  ParallelStyle style = ParallelStyle::Replicate;
  std::optional<JsonCursor> at;  ///< where the file says so; nothing: the default
  bool is_bad = false;           ///< what the file says is wrong
};

/// `parallelize`, per module, or elementwise parameter. A style of a whole attention or mlp is one
/// of each of its linears, and what the file says of such a linear by its own name overrides it.
///
///   linear, embedding       colwise, rowwise, rowwise_sp
///   layer_norm, rms_norm    sequence_parallel
///   attention, mlp          colwise: wq, wk, wv, or w1, w3 colwise, and wo, or w2, rowwise;
///                           rowwise_sp: the same with wo, or w2, rowwise_sp
///   moe, its experts        expert
///   elementwise parameter   colwise, rowwise
///   others                  none: they keep the layout of their input
///
/// All take replicate, the default. A pattern that matches something that takes none passes it by,
/// if it also matches something that does.
[[nodiscard]] std::vector<StyleChoice> read_styles(const ObjectReader& scenario, const Mesh& mesh,
                                                   const Roles& roles, const ModelSpec& model);

/// The tensor dim of such a parameter that the style of its module cuts; nothing: it stays whole.
///
///                 colwise    rowwise, rowwise_sp
///   linear            0              1               of its bias 0, nothing
///   embedding         1              0
///   elementwise       0              1
///
/// expert cuts dim 0, the experts, along ep_dim.
[[nodiscard]] std::optional<int> dim_cut_by(ParallelStyle style, ParameterSpec::Kind kind);

}  // namespace hpsim
