#pragma once

#include <cstddef>
#include <vector>

#include "plan/plan.h"

namespace hpsim {

// What faults of a plan have in common: at what they are aimed, and how steps are changed.

/// Whether a fault is aimed at a parameter, by `params` and `unit`.
[[nodiscard]] bool is_aimed(const Plan& plan, const FaultSpec& fault, int parameter);

/// Whether a fault is aimed at a step, by `params`, `unit` and `step`: where these name parameters,
/// the step is about the bucket of one, and about its gradient where it is about gradients.
[[nodiscard]] bool is_aimed(const Plan& plan, const FaultSpec& fault, const Step& step);

/// Parameters that a step with a bucket is about: those of its range of its row, of its row, or of
/// its bucket.
[[nodiscard]] std::vector<int> parameters_of(const Plan& plan, const Step& step);

/// ReduceScatter, AllReduce and ScaleGradient: what is done with gradients between backward and
/// store.
[[nodiscard]] bool is_reduction(const Step& step);

/// Calls `change(step)` for every step at which the fault is aimed; whether one of them was
/// changed.
template <class F>
bool change_steps(Plan& plan, const FaultSpec& fault, const F& change) {
  bool is_changed = false;
  for (Step& step : plan.steps) {
    if (is_aimed(plan, fault, step) && change(step)) is_changed = true;
  }
  return is_changed;
}

/// Takes out every step at which the fault is aimed and of which `is_it(step)` holds; whether there
/// was one.
template <class F>
bool erase_steps(Plan& plan, const FaultSpec& fault, const F& is_it) {
  return std::erase_if(plan.steps, [&](const Step& step) {
           return is_aimed(plan, fault, step) && is_it(step);
         }) > 0;
}

/// A step that comes before another one, instead of where it was, or besides.
struct MovedStep {
  Step step;
  std::size_t before = 0;  ///< of the steps as they were; their number: at the end
};

/// The plan with the steps `erased` (ascending) taken out and `moved` put in, those before the same
/// step in their order.
void move_steps(Plan& plan, const std::vector<std::size_t>& erased, std::vector<MovedStep> moved);

/// Buckets, rows and steps anew from what the plan says of its parameters, by the passes that make
/// them: a mistake there goes on to all that follows from it.
void plan_anew(Plan& plan);

}  // namespace hpsim
