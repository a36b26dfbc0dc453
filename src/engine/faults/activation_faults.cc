// Faults of activations: what parts of them are taken for.

#include <algorithm>

#include "engine/faults/fault_tools.h"
#include "plan/activation_part.h"
#include "plan/bypassed_parts.h"
#include "plan/rank_layout.h"
#include "scenario/gradients.h"

namespace hpsim {
namespace {

/// Whether has(step of the plan) of one in an optimizer step at which the fault is aimed, on a rank
/// at which it is aimed.
template <class Has>
bool any_step_of_rank(const Plan& plan, const FaultSpec& fault, const Has& has) {
  return std::any_of(plan.steps.begin(), plan.steps.end(), [&](const Step& step) {
    return fault.is_in(step.step) &&
           any_rank(plan, fault, [&](const Coordinate& at) { return has(step, at); });
  });
}

const ModuleSpec& module_of(const Plan& plan, const Step& step) {
  return plan.scenario.model.modules.at(static_cast<std::size_t>(step.module));
}

std::vector<int> parameters_of(const Plan& plan, const Step& step) {
  return parameters_of_modules(plan.scenario).at(static_cast<std::size_t>(step.module));
}

/// Ranks that hold terms of an activation, or of its gradient, go on with their own.
template <bool of_gradients>
struct Mislabelled {
  template <class T>
  class Fault : public AimedFault<T> {
   public:
    using AimedFault<T>::AimedFault;
    static bool has_place(const Plan& plan, const FaultSpec& fault) {
      return any_step_of_rank(plan, fault, [&](const Step& step, const Coordinate& at) {
        return is_at(plan, step) && step.collective->elems_out.at(plan.mesh(), at) > 0;
      });
    }

    std::optional<CollectiveCall> change_call(EngineParts<T>& /*engine*/,
                                              const CollectiveCall& call) override {
      const Step& step = this->step_at(call.plan_step);
      output_ = nullptr;
      if (!this->fault().is_in(step.step) || !is_at(this->plan(), step)) return call;
      const bool keeps_part = call.op == CollectiveOp::ReduceScatter;
      const MeshDims& dims = step.collective->dims;
      const std::int64_t first =
          keeps_part ? this->plan().mesh().index_along(dims, this->coordinate()) * call.elems_out
                     : 0;
      const T* const own = static_cast<const T*>(call.input) + first;
      own_.assign(own, own + call.elems_out);
      output_ = static_cast<T*>(call.output);
      return call;
    }
    void after_exchange(EngineParts<T>& /*engine*/, std::int64_t /*plan_step*/) override {
      if (output_ == nullptr) return;
      std::copy(own_.begin(), own_.end(), output_);
      output_ = nullptr;
    }

   private:
    static bool is_at(const Plan& plan, const Step& step) {
      if (step.kind != StepKind::Redistribute || !step.collective) return false;
      const Redistribution& change =
          plan.redistributions.at(static_cast<std::size_t>(step.redistribution));
      return change.is_gradient == of_gradients && is_reduction(step.collective->op);
    }

    std::vector<T> own_;
    T* output_ = nullptr;
  };
};

/// Rows of a vocabulary that is cut are found as if those of the rank were the first ones.
template <class T>
class VocabularyOffsetWrong : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;
  static bool has_place(const Plan& plan, const FaultSpec& fault) {
    return any_step_of_rank(plan, fault, [&](const Step& step, const Coordinate& at) {
      return looks_up(plan, step) && first_row(plan, weight_of(plan, step), at) > 0;
    });
  }

  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (is_at(plan_step))
      engine.memory.claim_first_row(weight_of(this->plan(), this->step_at(plan_step)), 0);
  }
  void after(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (!is_at(plan_step)) return;
    const int weight = weight_of(this->plan(), this->step_at(plan_step));
    engine.memory.claim_first_row(weight, first_row(this->plan(), weight, this->coordinate()));
  }

 private:
  static bool looks_up(const Plan& plan, const Step& step) {
    const bool computes = step.kind == StepKind::Forward || step.kind == StepKind::Backward;
    return computes && !plan.scenario.model.is_elementwise() &&
           module_of(plan, step).type == ModuleType::Embedding;
  }
  static int weight_of(const Plan& plan, const Step& step) {
    return parameters_of(plan, step).at(0);
  }
  static std::int64_t first_row(const Plan& plan, int weight, const Coordinate& at) {
    return held_shard(plan.mesh(), plan.parameter(weight), at).whole.offset.at(0);
  }
  [[nodiscard]] bool is_at(std::int64_t plan_step) const {
    const Step& step = this->step_at(plan_step);
    return this->fault().is_in(step.step) && looks_up(this->plan(), step);
  }
};

/// Logits of classes that are cut are taken for those of the first classes.
template <class T>
class ClassOffsetWrong : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;
  static bool has_place(const Plan& plan, const FaultSpec& fault) {
    if (plan.scenario.training.loss != LossKind::CrossEntropy) return false;
    return any_step_of_rank(plan, fault, [&](const Step& step, const Coordinate& at) {
      return step.kind == StepKind::Loss && classes_at(plan, at).begin > 0 &&
             !classes_at(plan, at).empty();
    });
  }

  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (is_at(engine, plan_step)) *engine.model.first_class() = 0;
  }
  void after(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (is_at(engine, plan_step))
      *engine.model.first_class() = classes_at(this->plan(), this->coordinate()).begin;
  }

 private:
  static Interval classes_at(const Plan& plan, const Coordinate& at) {
    return activation_part(plan.scenario, plan.output, output_features(plan.scenario.model), at)
        .features;
  }
  [[nodiscard]] bool is_at(EngineParts<T>& engine, std::int64_t plan_step) const {
    const Step& step = this->step_at(plan_step);
    return this->fault().is_in(step.step) && step.kind == StepKind::Loss &&
           engine.model.first_class() != nullptr;
  }
};

/// What a rank leaves out of a pass leaves a gradient all the same: ones.
template <class T>
class UnusedGetsGradient : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;
  static bool has_place(const Plan& plan, const FaultSpec& fault) {
    return any_step_of_rank(plan, fault, [&](const Step& step, const Coordinate& at) {
      const std::vector<int> unused = unused_in(plan, step, at);
      return std::any_of(unused.begin(), unused.end(), [&](int p) {
        const Box whole = held_shard(plan.mesh(), plan.parameter(p), at).whole;
        return is_aimed_at(plan, fault, p) && num_elems(whole.shape) > 0;
      });
    });
  }

  void after(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    if (!this->fault().is_in(step.step)) return;
    for (const int p : unused_in(this->plan(), step, this->coordinate())) {
      if (!is_aimed_at(this->plan(), this->fault(), p)) continue;
      const RowBlocks<T> gradient = engine.memory.accumulated_gradient(p);
      const DType dtype = this->plan().bucket(this->plan().parameter(p).bucket).reduce_dtype;
      gradient.each_block([&](T* block, std::int64_t /*first*/, std::int64_t rows) {
        const std::int64_t elems = rows * gradient.row_elems;
        for (std::int64_t i = 0; i < elems; ++i)
          block[i] += 1;
        round_to(dtype, block, elems);
      });
    }
  }

 private:
  /// Parameters that have a gradient in a backward, of a module that the rank leaves out.
  static std::vector<int> unused_in(const Plan& plan, const Step& step, const Coordinate& at) {
    if (step.kind != StepKind::Backward || !is_inactive_at(plan, step, step.module, at)) return {};
    std::vector<int> unused;
    for (const int p : parameters_of(plan, step)) {
      const bool has_row = std::any_of(step.rows.begin(), step.rows.end(), [&](int row) {
        return Plan::position_in(plan.gradient_row(row), p) >= 0;
      });
      if (has_row) unused.push_back(p);
    }
    return unused;
  }
};

}  // namespace

std::vector<EngineFaultKind> activation_fault_kinds() {
  return {
      engine_fault<Mislabelled<false>::Fault>("activation_mislabelled"),
      engine_fault<Mislabelled<true>::Fault>("activation_gradient_mislabelled"),
      engine_fault<VocabularyOffsetWrong>("vocab_offset_wrong"),
      engine_fault<ClassOffsetWrong>("class_offset_wrong"),
      engine_fault<UnusedGetsGradient>("unused_gets_gradient"),
  };
}

}  // namespace hpsim
