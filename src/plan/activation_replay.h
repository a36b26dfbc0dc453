#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/finding.h"
#include "plan/plan.h"

namespace hpsim {

/// Follows the activations of a model, and their gradients, through the steps of a plan: from the
/// steps, the wiring of values and the placements of the weights alone. It does not read the
/// layouts of Plan::values and Plan::modules (but to go on after a fault) or
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
  ///   a gradient lacks what a reader of its activation left     UNREDUCED_PARTIAL
  ///   terms are added that are none, or a reader's twice        DOUBLE_REDUCED
  ///   any other layout than the module can compute with, or a
  ///   value that is of another activation or is not there:
  ///   free already, or not computed again yet                   COMM_ORDER
  ///   what is computed again is there still                     COMM_COUNT
  ///   a redistribution that is not what its layouts ask for     COMM_SHAPE
  ///   a module reads numbers of another dtype than its weight,
  ///   gives others, or a gradient has not the dtype of what it
  ///   is of; a cast was left out                                COMM_DTYPE
  [[nodiscard]] std::optional<Fault> take(const Step& step);

  /// Mesh dims of more than one rank along which the forward of `module` saw different samples or
  /// positions: the gradients of its parameters are Partial there. \pre its forward was taken
  [[nodiscard]] const MeshDims& batch_dims(int module) const {
    return batch_dims_.at(static_cast<std::size_t>(module));
  }

 private:
  using Layout = std::vector<Placement>;

  /// What there is of a value.
  struct State {
    Layout layout;
    std::map<int, int> readers;  ///< of a gradient: how often each reader's part is in it
  };

  void begin_pass();
  std::optional<Fault> redistribute(const Step& step);
  std::optional<Fault> forward(const Step& step);
  std::optional<Fault> loss();
  std::optional<Fault> backward(int module);
  void forget(const std::vector<int>& values);
  void make(int value, State state);
  /// Why the forward of a module cannot be the one that backward asks for once more, if it cannot.
  [[nodiscard]] std::optional<Fault> wrong_recomputation(int module, const Layout& output) const;
  /// Why backward cannot read what forward read, if it cannot.
  [[nodiscard]] std::optional<Fault> gone_inputs(int module) const;

  /// What is there for a value: itself; where its redistribution was left out, what that would have
  /// changed. -1: nothing.
  [[nodiscard]] int held_for(int value) const;
  /// Of that. Null: there is nothing.
  [[nodiscard]] const State* find(int value) const;
  /// Why a value cannot be read as that activation, if it cannot.
  [[nodiscard]] std::optional<Fault> missing(int value, int activation, bool is_gradient,
                                             const std::string& who) const;
  [[nodiscard]] std::optional<Fault> wrong_dtype(int module, int value) const;
  /// Why an output has another dtype than its module computes in, or a gradient another one than
  /// what it is of, if it has.
  [[nodiscard]] std::optional<Fault> wrong_output_dtype(int module) const;
  [[nodiscard]] std::optional<Fault> wrong_gradient_dtype(int gradient, int value,
                                                          const std::string& who) const;
  [[nodiscard]] std::optional<Fault> incomplete(int value, int activation) const;
  [[nodiscard]] const Placement* weight_cut(int module, int mesh_dim) const;
  [[nodiscard]] std::string wanted_along(int module, int mesh_dim, const Layout& input) const;
  [[nodiscard]] Placement output_along(int module, int mesh_dim, const Layout& input) const;
  [[nodiscard]] Fault wrong_layout(const std::string& who, int mesh_dim, const Placement& got,
                                   const std::string& wanted) const;

  const Plan& plan_;
  std::pair<std::int64_t, std::int64_t> pass_ = {-1, -1};  ///< optimizer step, micro-batch
  int features_;                                           ///< tensor dim of the features
  std::vector<int> weights_;                               ///< per module: parameter, or -1
  std::vector<std::vector<int>> readers_;    ///< per activation: modules; their number: the loss
  std::map<int, State> states_;              ///< values that there are
  std::vector<char> made_;                   ///< per value: it was there in this pass
  std::vector<int> sources_;                 ///< per value: what is redistributed to it, or -1
  std::vector<std::vector<Layout>> inputs_;  ///< of the modules' forwards
  std::vector<Layout> outputs_;
  std::vector<MeshDims> batch_dims_;
};

}  // namespace hpsim
