// Faults of the update.

#include <algorithm>
#include <map>

#include "engine/faults/fault_tools.h"
#include "scenario/gradients.h"

namespace hpsim {
namespace {

/// Parameters that the step updates at once, not after an average with their copies.
bool is_updated(const Plan& plan, int p, std::int64_t step) {
  return has_gradient(plan.scenario, p, step) && plan.averaged_dims(p).empty();
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
      for (auto& state : engine.states) {
        const T* const data = state[static_cast<std::size_t>(p)].data();
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
    for (std::size_t s = 0; s < engine.states.size(); ++s) {
      const std::vector<T>& before = this->states(p)[s];
      std::copy(before.begin(), before.end(), engine.states[s][static_cast<std::size_t>(p)].data());
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
    engine.num_updates[static_cast<std::size_t>(p)] = 0;
  }
  void spoil(EngineParts<T>& /*engine*/, int /*p*/, std::int64_t /*step*/) override {}
};

/// AdamW's decay of the weights, once more.
template <class T>
class WeightDecayTwice : public UpdateFault<T> {
 public:
  using UpdateFault<T>::UpdateFault;

 protected:
  void spoil(EngineParts<T>& engine, int p, std::int64_t /*step*/) override {
    const OptimizerSpec& optimizer = this->plan().scenario.training.optimizer;
    const auto decay = static_cast<T>(optimizer.lr * optimizer.weight_decay);
    T* const now = engine.memory.shard(p);
    const std::vector<T>& before = this->weights(p);
    for (std::size_t i = 0; i < before.size(); ++i)
      now[i] -= decay * before[i];
    round_to(this->plan().parameter(p).dtype, now, static_cast<std::int64_t>(before.size()));
  }
};

/// A parameter without requires_grad shrinks by half in every step.
template <class T>
class FrozenTrained : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (!this->is_at(plan_step, StepKind::Optimizer)) return;
    const std::int64_t step = this->step_at(plan_step).step;
    for (const int p : this->parameters()) {
      if (is_trained(this->plan().scenario, p, step)) continue;
      T* const shard = engine.memory.shard(p);
      for (std::int64_t i = 0; i < engine.memory.shard_elems(p); ++i)
        shard[i] /= 2;
    }
  }
};

bool update_has_place(const Plan& plan, const FaultSpec& fault) {
  return any_step(plan, fault, 0, [&](std::int64_t step) {
    return any_parameter(
        plan, fault, [&](int p) { return is_updated(plan, p, step) && is_held(plan, fault, p); });
  });
}

bool has_state(const Plan& plan) {
  const OptimizerSpec& optimizer = plan.scenario.training.optimizer;
  return optimizer.kind != OptimizerSpec::Kind::Sgd || optimizer.momentum > 0;
}

bool state_has_place(const Plan& plan, const FaultSpec& fault) {
  return has_state(plan) && update_has_place(plan, fault);
}

/// The second update of a parameter is the first that is corrected otherwise.
bool step_count_has_place(const Plan& plan, const FaultSpec& fault) {
  if (plan.scenario.training.optimizer.kind == OptimizerSpec::Kind::Sgd) return false;
  return any_step(plan, fault, 1, [&](std::int64_t step) {
    return any_parameter(plan, fault, [&](int p) {
      if (!is_updated(plan, p, step) || !is_held(plan, fault, p)) return false;
      for (std::int64_t before = 0; before < step; ++before) {
        if (is_updated(plan, p, before)) return true;
      }
      return false;
    });
  });
}

bool decay_has_place(const Plan& plan, const FaultSpec& fault) {
  const OptimizerSpec& optimizer = plan.scenario.training.optimizer;
  return optimizer.kind == OptimizerSpec::Kind::AdamW && optimizer.weight_decay > 0 &&
         update_has_place(plan, fault);
}

bool frozen_has_place(const Plan& plan, const FaultSpec& fault) {
  return any_step(plan, fault, 0, [&](std::int64_t step) {
    return any_parameter(plan, fault, [&](int p) {
      return !is_trained(plan.scenario, p, step) && is_held(plan, fault, p);
    });
  });
}

}  // namespace

std::vector<EngineFaultKind> optimizer_fault_kinds() {
  return {engine_fault<UpdateTwice>("update_twice", update_has_place),
          engine_fault<UpdateSkipped>("update_skipped", update_has_place),
          engine_fault<StateNotUpdated>("state_not_updated", state_has_place),
          engine_fault<StepCountStuck>("step_count_stuck", step_count_has_place),
          engine_fault<WeightDecayTwice>("weight_decay_twice", decay_has_place),
          engine_fault<FrozenTrained>("frozen_trained", frozen_has_place)};
}

}  // namespace hpsim
