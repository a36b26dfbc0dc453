// Faults of clipping: by another norm, or not at all.

#include <algorithm>
#include <cmath>

#include "engine/faults/fault_tools.h"
#include "scenario/gradients.h"

namespace hpsim {
namespace {

double norm_type_of(const Plan& plan) {
  return plan.scenario.training.clip_grad_norm->norm_type;
}

/// Whether has(parameter) of one with a gradient in a step that is clipped, and at which the fault
/// is aimed; of a norm that is a sum of powers, if `of_sums`.
template <class Has>
bool clips_any(const Plan& plan, const FaultSpec& fault, bool of_sums, const Has& has) {
  if (!plan.scenario.training.clip_grad_norm || plan.mesh().num_ranks() == 1) return false;
  if (of_sums && std::isinf(norm_type_of(plan))) return false;
  return any_step(plan, fault, 0, [&](std::int64_t step) {
    for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
      if (has_gradient(plan.scenario, p, step) && has(p)) return true;
    }
    return false;
  });
}

/// Changes the exchange of norms, or what a rank does with it.
template <class T>
class NormFault : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

 protected:
  /// Whether a step is a clipping at which the fault is aimed.
  [[nodiscard]] bool is_at(std::int64_t plan_step) const {
    const Step& step = this->step_at(plan_step);
    return step.kind == StepKind::ClipGradients && this->fault().is_in(step.step);
  }
  /// Sum of |g|^p of a shard, or its largest |g|; 0 where it has no gradient.
  [[nodiscard]] double power_of(EngineParts<T>& engine, int p) const {
    const T* const gradient = engine.memory.gradient(p);
    double power = 0;
    for (std::int64_t i = 0; gradient != nullptr && i < engine.memory.shard_elems(p); ++i) {
      const double size = std::abs(static_cast<double>(gradient[i]));
      power = std::isinf(type()) ? std::max(power, size) : power + std::pow(size, type());
    }
    return power;
  }
  /// weight(parameter) times that of every parameter, added up, or the largest of them.
  template <class Weight>
  [[nodiscard]] double own_power(EngineParts<T>& engine, const Weight& weight) const {
    double power = 0;
    for (int p = 0; p < static_cast<int>(this->plan().parameters.size()); ++p) {
      const double part = power_of(engine, p);
      power = std::isinf(type()) ? std::max(power, part) : power + weight(p) * part;
    }
    return power;
  }
  [[nodiscard]] double type() const { return norm_type_of(this->plan()); }
};

/// Every group of ranks with the same experts clips by the norm of their gradients, and of those
/// that all share: ranks send a number for every such group.
template <class T>
class NormExpertGroup : public NormFault<T> {
 public:
  using NormFault<T>::NormFault;
  static bool has_place(const Plan& plan, const FaultSpec& fault) {
    return clips_any(plan, fault, false, [&](int p) {
      const auto ep = plan.scenario.roles.ep_dim;
      return ep && plan.mesh().size(*ep) > 1 && contains(plan.parameter(p).cut_dims(), *ep);
    });
  }

  std::optional<CollectiveCall> change_call(EngineParts<T>& engine,
                                            const CollectiveCall& call) override {
    if (!this->is_at(call.plan_step)) return call;
    const int ep = *this->plan().scenario.roles.ep_dim;
    of_groups_.assign(static_cast<std::size_t>(this->plan().mesh().size(ep)), 0);
    of_groups_[own_group()] = this->own_power(engine, [&](int p) {
      return static_cast<double>(copies_along_ep(p)) /
             static_cast<double>(num_copies(this->plan(), p));
    });
    CollectiveCall changed = call;
    changed.input = changed.output = of_groups_.data();
    changed.elems_in = changed.elems_out = static_cast<std::int64_t>(of_groups_.size());
    return changed;
  }
  void after_exchange(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (this->is_at(plan_step)) engine.norm_on_wire = of_groups_[own_group()];
  }

 private:
  [[nodiscard]] std::int64_t copies_along_ep(int p) const {
    const int ep = *this->plan().scenario.roles.ep_dim;
    const bool is_cut = contains(this->plan().parameter(p).cut_dims(), ep);
    return is_cut ? 1 : this->plan().mesh().size(ep);
  }
  [[nodiscard]] std::size_t own_group() const {
    const auto ep = static_cast<std::size_t>(*this->plan().scenario.roles.ep_dim);
    return static_cast<std::size_t>(this->coordinate()[ep]);
  }

  std::vector<double> of_groups_;  ///< power of every group
};

/// The sum of powers is taken for the norm.
template <class T>
class NormRootMissing : public NormFault<T> {
 public:
  using NormFault<T>::NormFault;
  static bool has_place(const Plan& plan, const FaultSpec& fault) {
    return clips_any(plan, fault, true, [&](int /*p*/) { return norm_type_of(plan) != 1; });
  }

  void after_exchange(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (this->is_at(plan_step)) engine.norm_on_wire = std::pow(engine.norm_on_wire, this->type());
  }
};

/// Changes what clipping makes of the gradients; the norm is right.
template <class T>
class ClipFault : public NormFault<T> {
 public:
  using NormFault<T>::NormFault;
  static bool has_place(const Plan& plan, const FaultSpec& fault) {
    return any_step(plan, fault, 0, [&](std::int64_t step) {
      return plan.scenario.training.clip_grad_norm && any_parameter(plan, fault, [&](int p) {
               return has_gradient(plan.scenario, p, step);
             });
    });
  }

  void after_exchange(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (!this->is_at(plan_step)) return;
    unclipped_.assign(this->plan().parameters.size(), {});
    for (const int p : this->parameters()) {
      const T* const gradient = engine.memory.gradient(p);
      if (gradient == nullptr) continue;
      unclipped_[static_cast<std::size_t>(p)] = copy_of_gradient(engine, p);
    }
  }

  void after(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (!this->is_at(plan_step)) return;
    const double norm =
        engine.result.step_record(engine.rank, this->step_at(plan_step).step).clip_norm;
    for (int p = 0; p < static_cast<int>(this->plan().parameters.size()); ++p) {
      const std::vector<T>& unclipped = unclipped_[static_cast<std::size_t>(p)];
      T* const gradient = engine.memory.gradient(p);
      const auto factor = static_cast<T>(factor_of(unclipped, norm));
      for (std::size_t i = 0; i < unclipped.size(); ++i)
        gradient[i] = unclipped[i] * factor;
      round_to(this->plan().parameter(p).dtype, gradient,
               static_cast<std::int64_t>(unclipped.size()));
    }
  }

 protected:
  /// What a gradient is multiplied by, where the norm of all of them is `norm`.
  [[nodiscard]] virtual double factor_of(const std::vector<T>& gradient, double norm) const = 0;
  [[nodiscard]] double clipped_by(double norm) const {
    return std::min(1.0, this->plan().scenario.training.clip_grad_norm->max_norm / (norm + 1e-6));
  }

 private:
  std::vector<std::vector<T>> unclipped_;  ///< per parameter
};

/// The optimizer gets the gradients as they are.
template <class T>
class ClipSkipped : public ClipFault<T> {
 public:
  using ClipFault<T>::ClipFault;

 protected:
  [[nodiscard]] double factor_of(const std::vector<T>& /*gradient*/,
                                 double /*norm*/) const override {
    return 1;
  }
};

/// Every shard is clipped by a norm of its own.
template <class T>
class ClipByOwnNorm : public ClipFault<T> {
 public:
  using ClipFault<T>::ClipFault;

 protected:
  [[nodiscard]] double factor_of(const std::vector<T>& gradient, double /*norm*/) const override {
    double power = 0;
    for (const T value : gradient) {
      const double size = std::abs(static_cast<double>(value));
      power =
          std::isinf(this->type()) ? std::max(power, size) : power + std::pow(size, this->type());
    }
    return this->clipped_by(std::isinf(this->type()) ? power : std::pow(power, 1 / this->type()));
  }
};

}  // namespace

std::vector<EngineFaultKind> clipping_fault_kinds() {
  return {
      engine_fault<NormExpertGroup>("norm_expert_group"),
      engine_fault<NormRootMissing>("norm_root_missing"),
      engine_fault<ClipSkipped>("clip_skipped"),
      engine_fault<ClipByOwnNorm>("clip_by_own_norm"),
  };
}

}  // namespace hpsim
