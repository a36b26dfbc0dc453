// Faults of positions on their way to experts and back.

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/faults/exchange_tools.h"
#include "plan/recomputation.h"

namespace hpsim {
namespace {

bool is_route(const Step& step) {
  return step.kind == StepKind::Route;
}

std::int64_t features_of(const Plan& plan, const Step& step) {
  return plan.scenario.model.modules.at(static_cast<std::size_t>(step.module)).in_features;
}

/// What experts give comes back with two rows exchanged, on every rank that gets two or more.
template <class T>
class SwappedTokens : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  std::optional<CollectiveCall> change_call(EngineParts<T>& /*engine*/,
                                            const CollectiveCall& call) override {
    const Step& step = this->step_at(call.plan_step);
    if (step.kind == StepKind::Combine && runs_forward(step) &&
        is_aimed_at(this->plan(), this->fault(), step))
      call_ = call;
    return call;
  }

  void after_exchange(EngineParts<T>& /*engine*/, std::int64_t plan_step) override {
    if (!call_) return;
    const std::int64_t width = features_of(this->plan(), this->step_at(plan_step));
    T* const rows = static_cast<T*>(call_->output);
    if (call_->elems_out >= 2 * width) std::swap_ranges(rows, rows + width, rows + width);
    call_.reset();
  }

 private:
  std::optional<CollectiveCall> call_;
};

/// One row of every rank goes to another expert than its position chose.
template <class T>
class MisroutedToken : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  std::optional<CollectiveCall> change_call(EngineParts<T>& /*engine*/,
                                            const CollectiveCall& call) override {
    const Step& step = this->step_at(call.plan_step);
    if (!moves_tokens(step.kind) || !is_aimed_at(this->plan(), this->fault(), step)) return call;
    Route& route = routes_[step.module];
    if (step.kind == StepKind::Route) return misroute(route, call);
    if (route.num_moved == 0) return call;
    width_ = features_of(this->plan(), step);
    return step.kind == StepKind::Dispatch ? dispatch(route, call) : combine(route, call);
  }

  void after_exchange(EngineParts<T>& /*engine*/, std::int64_t /*plan_step*/) override {
    if (combined_ == nullptr) return;
    // As if every row had come back from where its position meant it to go.
    rotate_rows(*combined_, rows_.data(), true);
    std::copy(rows_.begin(), rows_.end(), output_);
    combined_ = nullptr;
  }

 private:
  /// Rows in the order of sending: those of an expert lie together, and the first row of one goes
  /// to the next expert, behind the others; or, of the last, to the one before it, where it lies.
  struct Route {
    std::vector<std::int64_t> counts;  ///< per expert in reach, as they are sent
    std::int64_t first = 0;
    std::int64_t num_moved = 0;       ///< 0: the rank sends nothing
    bool is_forward = true;           ///< to the next expert, not to the one before
    std::vector<std::int64_t> elems;  ///< per member, of rows as they are sent
  };

  CollectiveCall misroute(Route& route, const CollectiveCall& call) {
    const auto* const counts = static_cast<const std::int64_t*>(call.input);
    route = {};
    route.counts.assign(counts, counts + call.elems_in);
    const auto from = std::find_if(route.counts.begin(), route.counts.end(),
                                   [](std::int64_t count) { return count > 0; });
    if (from == route.counts.end()) return call;
    route.first = std::accumulate(route.counts.begin(), from, std::int64_t{0});
    route.num_moved = *from;
    route.is_forward = from + 1 != route.counts.end();
    --*from;
    ++*(route.is_forward ? from + 1 : from - 1);
    CollectiveCall changed = call;
    changed.input = route.counts.data();
    return changed;
  }

  [[nodiscard]] std::span<const std::int64_t> elems_sent(Route& route, std::size_t num_members) {
    const std::size_t experts = route.counts.size() / num_members;
    route.elems.assign(num_members, 0);
    for (std::size_t i = 0; i < route.counts.size(); ++i)
      route.elems[i / experts] += route.counts[i] * width_;
    return route.elems;
  }

  /// The rows, or back to as they were.
  void rotate_rows(const Route& route, T* rows, bool back) const {
    if (!route.is_forward) return;
    T* const first = rows + route.first * width_;
    T* const end = first + route.num_moved * width_;
    std::rotate(first, back ? end - width_ : first + width_, end);
  }

  CollectiveCall dispatch(Route& route, const CollectiveCall& call) {
    const auto* const rows = static_cast<const T*>(call.input);
    rows_.assign(rows, rows + call.elems_in);
    rotate_rows(route, rows_.data(), false);
    CollectiveCall changed = call;
    changed.input = rows_.data();
    changed.counts_in = elems_sent(route, call.counts_in.size());
    return changed;
  }

  CollectiveCall combine(Route& route, const CollectiveCall& call) {
    rows_.resize(static_cast<std::size_t>(call.elems_out));
    output_ = static_cast<T*>(call.output);
    combined_ = &route;
    CollectiveCall changed = call;
    changed.output = rows_.data();
    changed.counts_out = elems_sent(route, call.counts_out.size());
    return changed;
  }

  std::map<int, Route> routes_;  ///< by module
  std::int64_t width_ = 0;
  std::vector<T> rows_;
  const Route* combined_ = nullptr;  ///< of a Combine step at hand
  T* output_ = nullptr;
};

/// Outputs of experts are added up without their weights.
template <class T>
class UnweightedOutputs : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  void after(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    if (!is_route(step) || !is_aimed_at(this->plan(), this->fault(), step)) return;
    const std::span<T> weights = engine.model.routing_weights(step.module);
    std::fill(weights.begin(), weights.end(), T(1));
  }
};

bool has_route(const Plan& plan, const FaultSpec& fault) {
  return any_exchange(plan, fault, is_route);
}

/// More than one expert is in reach.
bool has_other_expert(const Plan& plan, const FaultSpec& fault) {
  return any_exchange(plan, fault, [](const Step& step) {
    return is_route(step) && step.collective->elems_in.largest() > 1;
  });
}

}  // namespace

std::vector<EngineFaultKind> token_faults() {
  return {
      engine_fault<SwappedTokens>("token_order_swapped", has_route),
      engine_fault<MisroutedToken>("dispatch_to_wrong_expert", has_other_expert),
      engine_fault<UnweightedOutputs>("combine_weight_missing", has_route),
  };
}

}  // namespace hpsim
