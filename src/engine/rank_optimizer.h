#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/exactness.h"
#include "engine/optimizers.h"
#include "engine/rank_memory.h"
#include "engine/sharded_parameter.h"
#include "plan/plan.h"

namespace hpsim {

/// The optimizer of one rank: the parameters that it was given before they were made, how often it
/// updated each of them, and its state.
template <class T>
class RankOptimizer {
 public:
  /// All must outlive the object.
  RankOptimizer(const Plan& plan, RankMemory<T>& memory, ExactArithmetic& arithmetic);

  /// That of the scenario; planted faults change it.
  [[nodiscard]] OptimizerSpec& spec() { return spec_; }
  [[nodiscard]] const OptimizerSpec& spec() const { return spec_; }

  /// Updates the shard of a parameter by its gradient. What is stored is rounded once to the
  /// parameter's dtype; exact mode rounds weights later, see round_weights.
  void update(int parameter, const T* gradient);

  /// How many updates the parameter has had.
  [[nodiscard]] std::int64_t& num_updates(int parameter) {
    return num_updates_.at(static_cast<std::size_t>(parameter));
  }
  [[nodiscard]] int num_states() const { return static_cast<int>(states_.size()); }
  /// A state tensor of the parameter's shard; no memory: it was never updated.
  [[nodiscard]] Buffer<T>& state(int state, int parameter) {
    return states_.at(static_cast<std::size_t>(state)).at(static_cast<std::size_t>(parameter));
  }

 private:
  [[nodiscard]] std::array<T*, 2> states_of(int parameter);

  const Plan& plan_;
  OptimizerSpec spec_;
  RankMemory<T>& memory_;
  ExactArithmetic& arithmetic_;
  std::vector<std::shared_ptr<ShardedParameter<T>>> parameters_;
  std::vector<std::int64_t> num_updates_;       ///< per parameter
  std::vector<std::vector<Buffer<T>>> states_;  ///< [state tensor][parameter]
};

}  // namespace hpsim
