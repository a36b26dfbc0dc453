#pragma once

#include <vector>

#include "layout/placement.h"
#include "scenario/scenario.h"

namespace hpsim {

/// Tensor dims of an activation [samples, positions..., features].
inline constexpr int kSampleDim = 0;
inline constexpr int kSequenceDim = 1;  ///< where samples have positions
[[nodiscard]] int feature_dim(const ModelSpec& model);

/// The layouts of a module's activations: one placement per mesh dim.
struct ModuleLayout {
  std::vector<std::vector<Placement>> inputs;  ///< that it computes with, like inputs_of
  std::vector<Placement> output;               ///< that it computes
  std::vector<Placement> given;  ///< that it hands on: its style may ask for another one
  std::vector<std::vector<Placement>> input_gradients;  ///< that its backward computes
};

/// The layout of the model's input: the batch is split over data_dims.
[[nodiscard]] std::vector<Placement> input_layout(const Scenario& scenario);

/// Of all modules, from the placements of the weights, one mesh dim of more than one rank at a
/// time. The batch is cut over data_dims until a module that TP or EP cuts along such a dim takes
/// all samples there. S(f) is Shard of the features, S(s) Shard of the sequence.
///
///   module                      input                         output    gradient of the input
///   linear, weight Replicate    Shard(0) as it comes, else R  as input  as input
///   linear, weight Shard(0)     R                             S(f)      Partial
///   linear, weight Shard(1)     S(f)                          Partial   S(f)
///   embedding, Replicate        Shard(0) as it comes, else R  as input  -
///   embedding, Shard(0)         R                             Partial   -
///   embedding, Shard(1)         R                             S(f)      -
///   norms                       Shard(0) as it comes; S(s)    as input  as input
///                               if its style says so, else R
///   attention_core              Shard(0) or S(f) where q, k   as input  as input
///                               and v come so, else R
///   experts, weights Replicate  Shard(0) as it comes, else R  as input  as input
///   experts, cut by experts     Shard(0) as it comes: exchange  as input  as input
///                               of positions; else R          Partial   Partial, of both inputs
///   experts, cut inside         R                             Partial   Partial, of both inputs
///   silu_gate                   as the first comes, but R     as input  as input
///                               if that is Partial
///   add                         as the last comes, but R if   as input  as input
///                               that is Partial
///   functions of one element    as it comes, but R if Partial as input  as input
///
/// Where an output is Partial along tp_dim, the style rowwise hands on Replicate, and rowwise_sp
/// S(s); a Partial output of other modules stays so until a module, or the loss, takes it. None if
/// the model is elementwise.
[[nodiscard]] std::vector<ModuleLayout> module_layouts(const Scenario& scenario);

/// Per module, or elementwise parameter: the parameters that it computes with, weight before bias;
/// a tied weight, or bias, is that of the module that owns it.
[[nodiscard]] std::vector<std::vector<int>> parameters_of_modules(const Scenario& scenario);

/// The same, the other way round: per parameter, the module that owns it, then those tied to it.
[[nodiscard]] std::vector<std::vector<int>> modules_of_parameters(const Scenario& scenario);

/// Mesh dims over which the samples and positions that a module computes with are split.
[[nodiscard]] MeshDims split_dims(const ModelSpec& model, const ModuleLayout& layout);

/// Per parameter: the mesh dims along which the gradient that backward computes is Partial, a term
/// of a sum. Those over which the samples and positions that its module computes with are split; of
/// elementwise parameters the data_dims that do not cut them (a rank that holds a part along a data
/// dim uses the samples of all ranks there).
[[nodiscard]] std::vector<MeshDims> partial_dims(const Scenario& scenario);

/// Per parameter: the mesh dims over which its copies are averaged after the optimizer, those of
/// the fully_shard domain on which its gradient is Partial. None unless sync_object is "weight", or
/// where they are one rank.
[[nodiscard]] std::vector<MeshDims> averaged_dims(const Scenario& scenario);

}  // namespace hpsim
