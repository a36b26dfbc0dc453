#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "engine/rank_engine.h"
#include "plan/plan.h"

namespace hpsim {

/// One fault in the engine of one rank: it sees every step of the plan at these four moments, and
/// does what the fault says through the parts of the engine. Each does nothing by default.
template <class T>
class EngineFault {
 public:
  virtual ~EngineFault() = default;

  /// Before the engine begins the step.
  virtual void before(EngineParts<T>& /*engine*/, std::int64_t /*plan_step*/) {}
  /// The collective that the engine asks for; what is returned is carried out instead. Nothing:
  /// none is, and the output has what the fault left there.
  virtual std::optional<CollectiveCall> change_call(EngineParts<T>& /*engine*/,
                                                    const CollectiveCall& call) {
    return call;
  }
  /// One more collective of the step, after that one; asked again until there is none.
  virtual std::optional<CollectiveCall> more(EngineParts<T>& /*engine*/,
                                             std::int64_t /*plan_step*/) {
    return std::nullopt;
  }
  /// After all collectives of the step, before the engine goes on with what they brought.
  virtual void after_exchange(EngineParts<T>& /*engine*/, std::int64_t /*plan_step*/) {}
  /// After the engine finished the step.
  virtual void after(EngineParts<T>& /*engine*/, std::int64_t /*plan_step*/) {}
};

template <class T>
using MakeEngineFault = std::unique_ptr<EngineFault<T>> (*)(const Plan& plan, Rank rank,
                                                            const FaultSpec& fault);

/// A fault of stage Run that is planted in engines.
struct EngineFaultKind {
  std::string_view name;
  /// Whether it has a place in the plan, as far as its keys aim it: one where it makes a
  /// difference.
  bool (*has_place)(const Plan& plan, const FaultSpec& fault) = nullptr;
  MakeEngineFault<float> make_float = nullptr;
  MakeEngineFault<double> make_double = nullptr;
};

/// Null if no fault of that name is planted in engines.
[[nodiscard]] const EngineFaultKind* find_engine_fault(std::string_view name);

/// The engine of a rank with those faults in it that the scenario of its plan aims at the rank.
template <class T>
[[nodiscard]] std::unique_ptr<RankEngine> with_engine_faults(std::unique_ptr<RankEngine> engine,
                                                             const Plan& plan, Rank rank);

/// Whether a fault of any stage but Process has a place in a plan.
[[nodiscard]] bool has_place(const Plan& plan, const FaultSpec& fault);

/// \throws Error (InvalidScenario) with every fault of the engines that has no place in the plan of
///         its scenario
void require_places(const Plan& plan);

}  // namespace hpsim
