#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/finding.h"
#include "plan/plan.h"

namespace hpsim {

/// Follows the placements of parameters, and of their gradients, through the steps of a plan:
/// unshard changes only what fully_shard cut, reshard restores it, and a gradient ends up as its
/// parameter is placed. How often a gradient is summed along a mesh dim, check_sync_set says.
///
///   step            parameter, then               gradient, then
///   Unshard         Replicate along the dims of
///                   its collective: `unsharded`;
///                   is_async: `sharded`
///   WaitUnshard     Replicate along the dims of
///                   what was begun: `unsharded`
///   Forward         `unsharded`
///   Backward        `unsharded`                   `unsharded`
///   Reshard         the bucket's row: `sharded`
///   ReduceScatter                                 the bucket's row, along dims of fully_shard
///   AllReduce                                     the bucket's row, whole along its dims
///   StoreGradient                                 the bucket's row: `sharded`
///   Optimizer       `sharded`
///   AverageWeights  `sharded`
class ParameterReplay {
 public:
  /// \pre `plan` outlives the object
  explicit ParameterReplay(const Plan& plan);

  struct Fault {
    FindingCode code = FindingCode::OffsetWrong;
    int parameter = -1;
    std::string message;
  };

  /// The first thing that is wrong with each parameter; later ones follow from it.
  ///
  ///   placed otherwise than the table says                  OFFSET_WRONG
  ///   sums over ranks that hold different parts, or cuts
  ///   along a mesh dim that fully_shard does not cut        COMM_GROUP
  [[nodiscard]] std::vector<Fault> take(const Step& step);

  /// Placements looked at so far.
  [[nodiscard]] std::int64_t compared() const { return compared_; }

 private:
  struct State {
    std::vector<Placement> now;
    std::vector<Placement> gradient;
    bool is_faulty = false;
  };

  void take_bucket(const Step& step);
  void take_parameter(const Step& step, int p);
  void compute(const Step& step);
  /// Along the group of the bucket, as the parameter is sharded.
  void cut_to_row(const Step& step, int p, std::vector<Placement>& placements);
  void expect(const Step& step, int p, const std::vector<Placement>& got,
              const std::vector<Placement>& wanted, const char* of);
  void fault(FindingCode code, int p, std::string message);
  void unshard(int p, const MeshDims& dims);
  [[nodiscard]] State& state(int p) { return states_.at(static_cast<std::size_t>(p)); }

  const Plan& plan_;
  std::vector<State> states_;         ///< per parameter
  std::vector<MeshDims> begun_dims_;  ///< per bucket: of the unshard that is only begun
  std::vector<std::vector<int>> parameters_of_module_;
  std::vector<Fault> faults_;
  std::int64_t compared_ = 0;
};

}  // namespace hpsim
