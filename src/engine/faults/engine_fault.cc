#include "engine/faults/engine_fault.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/faults/fault_kinds.h"
#include "plan/faults/plan_faults.h"

namespace hpsim {
namespace {

/// Hands every step through, past the faults.
template <class T>
class FaultyEngine : public RankEngine {
 public:
  FaultyEngine(std::unique_ptr<RankEngine> engine,
               std::vector<std::unique_ptr<EngineFault<T>>> faults)
      : engine_(std::move(engine)), parts_(parts_of<T>(*engine_)), faults_(std::move(faults)) {}

  std::optional<CollectiveCall> begin(std::int64_t plan_step) override {
    for (const auto& fault : faults_)
      fault->before(parts_, plan_step);
    std::optional<CollectiveCall> call = engine_->begin(plan_step);
    for (const auto& fault : faults_) {
      if (call) call = fault->change_call(parts_, *call);
    }
    return call;
  }

  std::optional<CollectiveCall> more(std::int64_t plan_step) override {
    for (const auto& fault : faults_) {
      if (auto call = fault->more(parts_, plan_step)) return call;
    }
    return std::nullopt;
  }

  void finish(std::int64_t plan_step) override {
    for (const auto& fault : faults_)
      fault->after_exchange(parts_, plan_step);
    engine_->finish(plan_step);
    for (const auto& fault : faults_)
      fault->after(parts_, plan_step);
  }

 private:
  std::unique_ptr<RankEngine> engine_;
  EngineParts<T> parts_;
  std::vector<std::unique_ptr<EngineFault<T>>> faults_;
};

}  // namespace

const EngineFaultKind* find_engine_fault(std::string_view name) {
  for (const auto& kinds : {exchange_fault_kinds(), rank_fault_kinds()}) {
    const auto found = std::find_if(kinds.begin(), kinds.end(),
                                    [&](const EngineFaultKind& kind) { return kind.name == name; });
    if (found != kinds.end()) return &*found;
  }
  return nullptr;
}

template <class T>
std::unique_ptr<RankEngine> with_engine_faults(std::unique_ptr<RankEngine> engine, const Plan& plan,
                                               Rank rank) {
  std::vector<std::unique_ptr<EngineFault<T>>> faults;
  for (const FaultSpec& fault : plan.scenario.faults) {
    const EngineFaultKind* const kind = find_engine_fault(fault.name);
    if (kind == nullptr || !fault.is_of(rank)) continue;
    if constexpr (std::is_same_v<T, float>) {
      faults.push_back(kind->make_float(plan, rank, fault));
    } else {
      faults.push_back(kind->make_double(plan, rank, fault));
    }
  }
  if (faults.empty()) return engine;
  return std::make_unique<FaultyEngine<T>>(std::move(engine), std::move(faults));
}

template std::unique_ptr<RankEngine> with_engine_faults<float>(std::unique_ptr<RankEngine>,
                                                               const Plan&, Rank);
template std::unique_ptr<RankEngine> with_engine_faults<double>(std::unique_ptr<RankEngine>,
                                                                const Plan&, Rank);

bool has_place(const Plan& plan, const FaultSpec& fault) {
  if (const EngineFaultKind* const kind = find_engine_fault(fault.name))
    return kind->has_place(plan, fault);
  Plan copy = plan;
  const PlanFault apply = find_plan_fault(fault.name);
  return apply != nullptr && apply(copy, fault);
}

void require_places(const Plan& plan) {
  std::vector<Diagnostic> refused;
  for (const FaultSpec& fault : plan.scenario.faults) {
    const EngineFaultKind* const kind = find_engine_fault(fault.name);
    if (kind != nullptr && !kind->has_place(plan, fault))
      refused.push_back(no_place_for(fault, plan.scenario));
  }
  if (!refused.empty()) throw Error(ErrorKind::InvalidScenario, std::move(refused));
}

}  // namespace hpsim
