#pragma once

#include <vector>

#include "layout/placement.h"
#include "scenario/scenario.h"

namespace hpsim {

/// The layouts of a module's activations [batch, features]: one placement per mesh dim.
struct ModuleLayout {
  std::vector<Placement> input;           ///< that it computes with
  std::vector<Placement> output;          ///< that it computes
  std::vector<Placement> given;           ///< that it hands on: its style may ask for another one
  std::vector<Placement> input_gradient;  ///< that its backward computes
};

/// The layout of the model's input: the batch is split over data_dims.
[[nodiscard]] std::vector<Placement> input_layout(const Scenario& scenario);

/// Of all modules, from the placements of the weights, one mesh dim of more than one rank at a
/// time. The batch is cut over data_dims until a module that TP or EP cuts along such a dim takes
/// all samples there.
///
///   weight [out, in]   input                         output      gradient of the input
///   Replicate          Shard(0) as it comes, else    as input    as input
///                      Replicate
///   Shard(0)           Replicate                     Shard(1)    Partial
///   Shard(1)           Shard(1)                      Partial     Shard(1)
///   none               as it comes, but Replicate    as input    as input
///                      where it comes Partial
///
/// The style rowwise hands on Replicate where the output is Partial along tp_dim; a Partial output
/// of other modules stays so until a module, or the loss, takes it. None if elementwise.
[[nodiscard]] std::vector<ModuleLayout> module_layouts(const Scenario& scenario);

/// Per parameter: the mesh dims along which the gradient that backward computes is Partial, a term
/// of a sum. Those over which the samples that its module computes with are split; of elementwise
/// parameters the data_dims that do not cut them (a rank that holds a part along a data dim uses
/// the samples of all ranks there).
[[nodiscard]] std::vector<MeshDims> partial_dims(const Scenario& scenario);

/// Per parameter: the mesh dims over which its copies are averaged after the optimizer, those of
/// the fully_shard domain on which its gradient is Partial. None unless sync_object is "weight", or
/// where they are one rank.
[[nodiscard]] std::vector<MeshDims> averaged_dims(const Scenario& scenario);

}  // namespace hpsim
