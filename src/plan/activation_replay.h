#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/finding.h"
#include "plan/plan.h"

namespace hpsim {

/// Follows the activations of a model, and their gradients, through the steps of a plan, from the
/// steps and the placements of the weights alone: it does not read Plan::modules or
/// PlannedParameter::partial_dims, and so can say whether these are right.
class ActivationReplay {
 public:
  /// \pre `plan` outlives the object, its model has modules
  explicit ActivationReplay(const Plan& plan);

  struct Fault {
    FindingCode code = FindingCode::CommOrder;
    std::string message;
  };

  /// What is wrong with the next step, if anything is:
  ///
  ///   a module gets terms of a sum where it needs the sum       UNREDUCED_PARTIAL
  ///   terms are added that are none                             DOUBLE_REDUCED
  ///   any other layout than the module can compute with         COMM_ORDER
  ///   a redistribution that is not what its layouts ask for     COMM_SHAPE
  [[nodiscard]] std::optional<Fault> take(const Step& step);

  /// Mesh dims of more than one rank along which the forward of `module` saw different samples: the
  /// gradients of its parameters are Partial there. \pre its forward was taken
  [[nodiscard]] const MeshDims& batch_dims(int module) const {
    return batch_dims_.at(static_cast<std::size_t>(module));
  }

 private:
  /// Along `mesh_dim`: the tensor dim of the module's weight that is cut; -1: none.
  [[nodiscard]] const Placement* weight_cut(int module, int mesh_dim) const;
  std::optional<Fault> redistribute(const Step& step);
  std::optional<Fault> forward(int module);
  std::optional<Fault> loss();
  std::optional<Fault> backward(int module);
  [[nodiscard]] Fault wrong_layout(const std::string& who, int mesh_dim, const Placement& got,
                                   const std::string& wanted) const;

  const Plan& plan_;
  std::vector<int> weights_;                    ///< per module: parameter, or -1
  std::vector<Placement> now_;                  ///< of the activation, or its gradient in backward
  std::vector<std::vector<Placement>> inputs_;  ///< of the modules' forwards
  std::vector<std::vector<Placement>> outputs_;
  std::vector<MeshDims> batch_dims_;
};

}  // namespace hpsim
