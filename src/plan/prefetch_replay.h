#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace hpsim {

/// Whether a plan begins unshards as far ahead as `forward_prefetch` and `backward_prefetch` say,
/// and awaits each where compute needs it. What is ahead follows from where units lie in the model:
/// a pass asks for the root unit first, then in forward for the others by their first modules, in
/// backward by their last ones from the end of the model on, of units that begin or end together
/// for the outer one first.
///
///   units root, l0 to l3; forward of l0, one ahead     asked for: root l0, ahead: l1
///   units l0, l1; a module before them, one ahead      asked for: none, ahead: none
class PrefetchReplay {
 public:
  /// \pre `plan` outlives the object
  explicit PrefetchReplay(const Plan& plan);

  /// What is wrong at the next step, if anything is; where something computes:
  ///
  ///   a unit is ahead, but neither whole nor is its unshard begun
  ///   the unshard of a unit is begun that is not asked for, and further ahead
  ///   a unit was awaited, or gathered at once, that is not asked for, nor computes again
  [[nodiscard]] std::optional<std::string> take(const Step& step);

 private:
  enum class State { Sharded, Begun, Whole };

  /// Of one phase of one micro-batch.
  struct Pass {
    std::int64_t step = -1;
    std::int64_t micro_batch = -1;
    Phase phase = Phase::Optimizer;
    bool operator==(const Pass&) const = default;
  };

  void enter(const Step& step);
  void follow(const Step& step);
  [[nodiscard]] std::optional<std::string> compute(const Step& step);
  [[nodiscard]] bool is_sharded(int unit) const;
  /// Units of the pass that are asked for once `module` computes.
  [[nodiscard]] std::size_t num_asked(int module) const;
  [[nodiscard]] const UnitSpec& unit_at(int unit) const {
    return plan_.scenario.units.at(static_cast<std::size_t>(unit));
  }
  /// In the order in which the pass asks for them, and where a unit is in it.
  [[nodiscard]] const std::vector<int>& units() const {
    return pass_.phase == Phase::Forward ? forward_units_ : backward_units_;
  }
  [[nodiscard]] std::size_t place_of(int unit) const {
    return (pass_.phase == Phase::Forward ? forward_places_
                                          : backward_places_)[static_cast<std::size_t>(unit)];
  }

  const Plan& plan_;
  std::vector<std::vector<int>> buckets_of_unit_;
  std::vector<State> states_;  ///< per bucket
  std::vector<int> forward_units_;
  std::vector<int> backward_units_;
  std::vector<std::size_t> forward_places_;  ///< per unit
  std::vector<std::size_t> backward_places_;
  Pass pass_;
  std::set<std::pair<std::size_t, int>> begun_;  ///< place and bucket
  std::vector<int> gathered_;      ///< units awaited, or gathered at once, since the last compute
  std::size_t num_looked_at_ = 0;  ///< units of the pass that were ahead, or asked for
};

}  // namespace hpsim
