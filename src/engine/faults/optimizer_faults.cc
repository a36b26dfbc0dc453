// Faults of the update.

#include <algorithm>
#include <map>
#include <utility>

#include "engine/faults/fault_tools.h"
#include "scenario/gradients.h"

namespace hpsim {
namespace {

/// Parameters that the step updates at once, not after an average with their copies.
bool is_updated(const Plan& plan, int p, std::int64_t step) {
  return has_gradient(plan.scenario, p, step) && plan.averaged_dims(p).empty();
}

bool update_has_place(const Plan& plan, const FaultSpec& fault) {
  return any_step(plan, fault, 0, [&](std::int64_t step) {
    return any_parameter(
        plan, fault, [&](int p) { return is_updated(plan, p, step) && is_held(plan, fault, p); });
  });
}

/// Whether an optimizer step before that one updates it.
bool was_updated(const Plan& plan, int p, std::int64_t before) {
  for (std::int64_t step = 0; step < before; ++step) {
    if (has_gradient(plan.scenario, p, step)) return true;
  }
  return false;
}

/// Remembers what the optimizer finds, and changes what it leaves.
template <class T>
class UpdateFault : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (!this->is_at(plan_step, StepKind::Optimizer)) return;
    const std::int64_t step = this->step_at(plan_step).step;
    for (const int p : this->parameters()) {
      if (!is_updated(this->plan(), p, step)) continue;
      weights_[p] = copy_of_shard(engine, p);
      states_[p].clear();
      for (int s = 0; s < engine.optimizer.num_states(); ++s) {
        const T* const data = engine.optimizer.state(s, p).data();
        const auto elems = static_cast<std::size_t>(engine.memory.shard_elems(p));
        states_[p].push_back(data == nullptr ? std::vector<T>(elems)
                                             : std::vector<T>(data, data + elems));
      }
      prepare(engine, p, step);
    }
  }

  void after(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (!this->is_at(plan_step, StepKind::Optimizer)) return;
    const std::int64_t step = this->step_at(plan_step).step;
    for (const int p : this->parameters()) {
      if (!is_updated(this->plan(), p, step)) continue;
      spoil(engine, p, step);
      record_parameter(engine, step + 1, p);
      record_state(engine, step, p);
    }
  }

 protected:
  virtual void prepare(EngineParts<T>& /*engine*/, int /*p*/, std::int64_t /*step*/) {}
  virtual void spoil(EngineParts<T>& engine, int p, std::int64_t step) = 0;
  [[nodiscard]] const std::vector<T>& weights(int p) { return weights_[p]; }
  [[nodiscard]] const std::vector<std::vector<T>>& states(int p) { return states_[p]; }

 private:
  std::map<int, std::vector<T>> weights_;
  std::map<int, std::vector<std::vector<T>>> states_;
};

template <class T>
class UpdateTwice : public UpdateFault<T> {
 public:
  using UpdateFault<T>::UpdateFault;

 protected:
  void spoil(EngineParts<T>& engine, int p, std::int64_t /*step*/) override {
    T* const now = engine.memory.shard(p);
    const std::vector<T>& before = this->weights(p);
    for (std::size_t i = 0; i < before.size(); ++i)
      now[i] += now[i] - before[i];
    round_to(this->plan().parameter(p).dtype, now, static_cast<std::int64_t>(before.size()));
  }
};

template <class T>
class UpdateSkipped : public UpdateFault<T> {
 public:
  using UpdateFault<T>::UpdateFault;

 protected:
  void spoil(EngineParts<T>& engine, int p, std::int64_t /*step*/) override {
    std::copy(this->weights(p).begin(), this->weights(p).end(), engine.memory.shard(p));
  }
};

/// What the optimizer remembers is as it was before.
template <class T>
class StateNotUpdated : public UpdateFault<T> {
 public:
  using UpdateFault<T>::UpdateFault;

 protected:
  void spoil(EngineParts<T>& engine, int p, std::int64_t /*step*/) override {
    for (int s = 0; s < engine.optimizer.num_states(); ++s) {
      const std::vector<T>& before = this->states(p)[static_cast<std::size_t>(s)];
      std::copy(before.begin(), before.end(), engine.optimizer.state(s, p).data());
    }
  }
};

/// Every update is taken for the first one, so that the correction of biases stays as it was there.
template <class T>
class StepCountStuck : public UpdateFault<T> {
 public:
  using UpdateFault<T>::UpdateFault;

 protected:
  void prepare(EngineParts<T>& engine, int p, std::int64_t /*step*/) override {
    engine.optimizer.num_updates(p) = 0;
  }
  void spoil(EngineParts<T>& /*engine*/, int /*p*/, std::int64_t /*step*/) override {}
};

/// Changes a number of the optimizer while it updates.
using ChangeSpec = void (*)(const Plan& plan, OptimizerSpec& optimizer);

template <ChangeSpec change>
struct OtherNumber {
  template <class T>
  class Fault : public AimedFault<T> {
   public:
    using AimedFault<T>::AimedFault;
    static bool has_place(const Plan& plan, const FaultSpec& fault) {
      const OptimizerSpec& right = plan.scenario.training.optimizer;
      OptimizerSpec changed = right;
      change(plan, changed);
      const bool differs = changed.lr != right.lr || changed.weight_decay != right.weight_decay;
      return differs && update_has_place(plan, fault);
    }

    void before(EngineParts<T>& engine, std::int64_t plan_step) override {
      if (this->is_at(plan_step, StepKind::Optimizer))
        change(this->plan(), engine.optimizer.spec());
    }
    void after(EngineParts<T>& engine, std::int64_t plan_step) override {
      if (this->is_at(plan_step, StepKind::Optimizer))
        engine.optimizer.spec() = this->plan().scenario.training.optimizer;
    }
  };
};

void scale_lr(const Plan& plan, OptimizerSpec& optimizer) {
  optimizer.lr *= static_cast<double>(plan.mesh().num_ranks());
}
void drop_weight_decay(const Plan& /*plan*/, OptimizerSpec& optimizer) {
  optimizer.weight_decay = 0;
}
void double_weight_decay(const Plan& /*plan*/, OptimizerSpec& optimizer) {
  optimizer.weight_decay *= 2;
}

/// Parameters of one size use the state of each other, in pairs as they come.
template <class T>
class StateOfOtherParameter : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;
  static bool has_place(const Plan& plan, const FaultSpec& fault) {
    if (plan.scenario.training.optimizer.num_state_tensors() == 0) return false;
    return any_step(plan, fault, 1, [&](std::int64_t step) {
      return any_rank(plan, fault, [&](const Coordinate& coordinate) {
        return !pairs_of(plan, fault, step, coordinate).empty();
      });
    });
  }

  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    exchange(engine, plan_step);
  }
  void after(EngineParts<T>& engine, std::int64_t plan_step) override {
    for (const auto& [p, q] : exchange(engine, plan_step)) {
      record_state(engine, this->step_at(plan_step).step, p);
      record_state(engine, this->step_at(plan_step).step, q);
    }
  }

 private:
  using Pairs = std::vector<std::pair<int, int>>;

  /// Of those that are updated now and were before.
  static Pairs pairs_of(const Plan& plan, const FaultSpec& fault, std::int64_t step,
                        const Coordinate& coordinate) {
    Pairs pairs;
    std::map<std::int64_t, int> alone;  // by size
    for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
      const std::int64_t elems = held_elems(plan, p, coordinate);
      if (elems == 0 || !is_aimed_at(plan, fault, p) || !has_gradient(plan.scenario, p, step) ||
          !was_updated(plan, p, step))
        continue;
      const auto [other, is_first] = alone.try_emplace(elems, p);
      if (is_first) continue;
      pairs.emplace_back(other->second, p);
      alone.erase(other);
    }
    return pairs;
  }

  Pairs exchange(EngineParts<T>& engine, std::int64_t plan_step) {
    if (!this->is_at(plan_step, StepKind::Optimizer)) return {};
    const Pairs pairs =
        pairs_of(this->plan(), this->fault(), this->step_at(plan_step).step, this->coordinate());
    for (const auto& [p, q] : pairs) {
      for (int s = 0; s < engine.optimizer.num_states(); ++s)
        std::swap(engine.optimizer.state(s, p), engine.optimizer.state(s, q));
    }
    return pairs;
  }
};

/// Whether a parameter has no gradient in a step, for one reason.
using HasNone = bool (*)(const Scenario& scenario, int p, std::int64_t step);

bool is_frozen(const Scenario& scenario, int p, std::int64_t step) {
  return !is_trained(scenario, p, step);
}
bool is_unused(const Scenario& scenario, int p, std::int64_t step) {
  return is_trained(scenario, p, step) && !has_gradient(scenario, p, step);
}

/// A parameter without gradient shrinks by half in every step.
template <HasNone has_none>
struct UpdatedAllTheSame {
  template <class T>
  class Fault : public AimedFault<T> {
   public:
    using AimedFault<T>::AimedFault;
    static bool has_place(const Plan& plan, const FaultSpec& fault) {
      return any_step(plan, fault, 0, [&](std::int64_t step) {
        return any_parameter(plan, fault, [&](int p) {
          return has_none(plan.scenario, p, step) && is_held(plan, fault, p);
        });
      });
    }

    void before(EngineParts<T>& engine, std::int64_t plan_step) override {
      if (!this->is_at(plan_step, StepKind::Optimizer)) return;
      const std::int64_t step = this->step_at(plan_step).step;
      for (const int p : this->parameters()) {
        if (!has_none(this->plan().scenario, p, step)) continue;
        T* const shard = engine.memory.shard(p);
        for (std::int64_t i = 0; i < engine.memory.shard_elems(p); ++i)
          shard[i] /= 2;
      }
    }
  };
};

bool state_has_place(const Plan& plan, const FaultSpec& fault) {
  return plan.scenario.training.optimizer.num_state_tensors() > 0 && update_has_place(plan, fault);
}

/// The second update of a parameter is the first that is corrected otherwise.
bool step_count_has_place(const Plan& plan, const FaultSpec& fault) {
  if (plan.scenario.training.optimizer.num_state_tensors() == 0) return false;
  return any_step(plan, fault, 1, [&](std::int64_t step) {
    return any_parameter(plan, fault, [&](int p) {
      return is_updated(plan, p, step) && was_updated(plan, p, step) && is_held(plan, fault, p);
    });
  });
}

}  // namespace

std::vector<EngineFaultKind> optimizer_fault_kinds() {
  return {engine_fault<UpdateTwice>("update_twice", update_has_place),
          engine_fault<UpdateSkipped>("update_skipped", update_has_place),
          engine_fault<StateNotUpdated>("state_not_updated", state_has_place),
          engine_fault<StepCountStuck>("step_count_stuck", step_count_has_place),
          engine_fault<OtherNumber<scale_lr>::Fault>("lr_scaled"),
          engine_fault<OtherNumber<drop_weight_decay>::Fault>("weight_decay_missing"),
          engine_fault<OtherNumber<double_weight_decay>::Fault>("weight_decay_twice"),
          engine_fault<StateOfOtherParameter>("state_of_other_parameter"),
          engine_fault<UpdatedAllTheSame<is_frozen>::Fault>("frozen_trained"),
          engine_fault<UpdatedAllTheSame<is_unused>::Fault>("unused_updated")};
}

}  // namespace hpsim
