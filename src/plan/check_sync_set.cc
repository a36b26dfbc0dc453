#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "plan/activation_replay.h"
#include "plan/outcome_recorder.h"
#include "plan/row_members.h"
#include "plan/scale_names.h"
#include "scenario/gradients.h"

namespace hpsim {
namespace {

/// Calls f(parameter) for those whose gradients, or weights, a step is about.
template <class F>
void each_parameter(const Plan& plan, const Step& step, F&& f) {
  const std::vector<int>& all =
      step.row < 0 ? plan.bucket(step.bucket).parameters : plan.gradient_row(step.row).parameters;
  Interval members = {0, static_cast<std::int64_t>(all.size())};
  if (step.partial >= 0) {
    members =
        plan.gradient_row(step.row).partials.at(static_cast<std::size_t>(step.partial)).members;
  }
  for (std::int64_t i = members.begin; i < members.end; ++i)
    f(all.at(static_cast<std::size_t>(i)));
}

/// What the copies of a weight become is their mean: nothing of k/F may be left to it.
void check_mean(const Plan& plan, const Step& step, int p, OutcomeRecorder& recorder) {
  recorder.count();
  const CollectiveSpec& spec = *step.collective;
  const double wanted = 1 / static_cast<double>(plan.mesh().size(spec.dims));
  if (spec.prescale == 1 && spec.scale == wanted) return;
  const std::string& name = plan.parameter(p).name;
  recorder.add(FindingCode::ParamValue, name,
               fmt::format("the sum of the copies of \"{}\" is scaled by {:.17g} in step {}, their "
                           "mean needs {:.17g}",
                           name, spec.prescale * spec.scale, step.step, wanted));
  recorder.at_step(step.step);
}

/// Follows the terms of gradients, one per micro-batch and module, from backward to the optimizer.
class SyncCheck {
 public:
  explicit SyncCheck(const Plan& plan)
      : plan_(plan),
        mesh_(plan.mesh()),
        averages_(plan.scenario.fully_shard.sync_object == SyncObject::Weight),
        parameters_(parameters_of_modules(plan.scenario)),
        row_members_(plan),
        modules_(modules_of_parameters(plan.scenario)) {
    if (!plan.scenario.model.is_elementwise()) activations_.emplace(plan);
    gradients_.assign(plan.parameters.size(), no_gradient());
  }

  PlanCheckOutcome run() {
    for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
      const Step& step = plan_.steps[i];
      if (activations_) static_cast<void>(activations_->take(step));  // judged by check_agreement
      take(step);
      // Weights are averaged after the optimizer.
      if (i + 1 < plan_.steps.size() && plan_.steps[i + 1].step == step.step) continue;
      for (std::size_t p = 0; p < gradients_.size(); ++p)
        judge(p, step.step);
    }
    return recorder_.take();
  }

 private:
  /// Terms that were treated alike.
  struct Terms {
    std::int64_t count = 0;
    std::vector<int> times;  ///< reduced, per mesh dim
    double scale = 1;
    [[nodiscard]] bool is_like(const Terms& other) const {
      return times == other.times && scale == other.scale;
    }
  };
  /// Each once that was treated in its own way.
  using Lots = std::vector<Terms>;
  struct Gradient {
    Lots fresh;      ///< as backward left them, and what was done to them there
    Lots scattered;  ///< rows that wait for all-reduces
    std::pair<std::int64_t, std::int64_t> scattered_in = {-1, -1};  ///< step and micro-batch
    Lots stored;
    Terms averaged;  ///< what averaging the weights does to all of them
  };

  [[nodiscard]] Terms none() const {
    return {0, std::vector<int>(static_cast<std::size_t>(mesh_.num_dims()), 0), 1};
  }
  [[nodiscard]] Gradient no_gradient() const {
    Gradient gradient;
    gradient.averaged = none();
    return gradient;
  }
  [[nodiscard]] Gradient& gradient(int p) { return gradients_.at(static_cast<std::size_t>(p)); }
  /// What later steps of a reduction work on.
  [[nodiscard]] Lots& lots_at(const Step& step, int p) {
    const bool scatters = !plan_.bucket(step.bucket).scatter_dims.empty();
    return scatters ? gradient(p).scattered : gradient(p).fresh;
  }

  /// The largest of terms is no sum of them.
  static void reduce(const CollectiveSpec& spec, Terms& terms) {
    terms.scale *= spec.prescale * spec.scale;
    if (spec.takes_max) return;
    for (const int dim : spec.dims)
      ++terms.times.at(static_cast<std::size_t>(dim));
  }

  void take(const Step& step) {
    switch (step.kind) {
      case StepKind::Backward:
        for (const int p : parameters_.at(static_cast<std::size_t>(step.module))) {
          Terms term = none();
          term.count = 1;
          if (row_members_.any_holds(step.rows, p)) add(gradient(p).fresh, std::move(term));
        }
        break;
      case StepKind::ReduceScatter:
        if (step.collective) each_parameter(plan_, step, [&](int p) { scatter(step, p); });
        break;
      case StepKind::AllReduce:
        if (!step.collective) break;
        each_parameter(plan_, step, [&](int p) {
          for (Terms& terms : lots_at(step, p))
            reduce(*step.collective, terms);
        });
        break;
      case StepKind::ScaleGradient:
        each_parameter(plan_, step, [&](int p) {
          for (Terms& terms : lots_at(step, p))
            terms.scale *= step.local_scale;
        });
        break;
      case StepKind::StoreGradient:
        each_parameter(plan_, step, [&](int p) { move(lots_at(step, p), gradient(p).stored); });
        break;
      case StepKind::AverageWeights:
        if (!step.collective) break;
        each_parameter(plan_, step, [&](int p) {
          reduce(*step.collective, gradient(p).averaged);
          check_mean(plan_, step, p, recorder_);
        });
        break;
      default:
        break;
    }
  }

  /// What is scattered once more in a pass, without anything that backward left since, is what was
  /// reduced before.
  void scatter(const Step& step, int p) {
    Gradient& now = gradient(p);
    const std::pair pass(step.step, step.micro_batch);
    if (std::exchange(now.scattered_in, pass) == pass && now.fresh.empty()) {
      for (Terms& terms : now.scattered)
        reduce(*step.collective, terms);
    }
    for (Terms& terms : now.fresh)
      reduce(*step.collective, terms);
    move(now.fresh, now.scattered);
  }

  /// Terms that were treated alike are judged together.
  static void add(Lots& lots, Terms terms) {
    for (Terms& known : lots) {
      if (!known.is_like(terms)) continue;
      known.count += terms.count;
      return;
    }
    lots.push_back(std::move(terms));
  }
  static void move(Lots& from, Lots& to) {
    for (Terms& terms : std::exchange(from, {}))
      add(to, std::move(terms));
  }

  /// Whether terms of the gradient that a module leaves are of one sum over the ranks along a dim.
  [[nodiscard]] bool is_partial_along(std::size_t p, int module, int dim) const {
    if (contains(cutting_dims(plan_.parameters[p].unsharded), dim)) return false;
    // Ranks along it saw different samples: their gradients are terms of one sum.
    if (!activations_) return contains(plan_.scenario.data.data_dims, dim);
    return contains(activations_->batch_dims(module), dim);
  }

  void judge(std::size_t p, std::int64_t step) {
    Gradient now = std::exchange(gradients_[p], no_gradient());
    move(now.fresh, now.stored);  // that are not stored check_agreement says
    move(now.scattered, now.stored);
    const PlannedParameter& parameter = plan_.parameters[p];
    if (!has_gradient(plan_.scenario, static_cast<int>(p), step)) {
      recorder_.count();
      if (now.stored.empty()) return;
      recorder_.add(FindingCode::CommCount, parameter.name,
                    fmt::format("\"{}\" has no gradient in step {}: 0 terms of it expected, {} are "
                                "stored",
                                parameter.name, step, now.stored[0].count));
      return recorder_.at_step(step);
    }
    if (now.stored.empty()) now.stored.push_back(none());
    for (Terms& terms : now.stored) {
      terms.scale *= now.averaged.scale;
      for (std::size_t dim = 0; dim < terms.times.size(); ++dim)
        terms.times[dim] += now.averaged.times[dim];
      judge_times(p, terms, step);
      judge_scale(p, terms, step);
    }
  }

  void judge_times(std::size_t p, const Terms& terms, std::int64_t step) {
    const PlannedParameter& parameter = plan_.parameters[p];
    for (int dim = 0; dim < mesh_.num_dims(); ++dim) {
      if (mesh_.size(dim) == 1) continue;
      recorder_.count();
      const bool is_partial = is_partial_along(p, modules_[p][0], dim);
      for (const int module : modules_[p]) {  // all that are tied to it leave such terms
        if (is_partial_along(p, module, dim) == is_partial) continue;
        recorder_.add(
            FindingCode::UnreducedPartial, parameter.name,
            fmt::format("gradient of \"{}\" in step {} is {} along {} as \"{}\" leaves "
                        "it, and {} as \"{}\" does",
                        parameter.name, step, is_partial ? "Partial" : "complete", mesh_.name(dim),
                        module_name(plan_.scenario.model, modules_[p][0]),
                        is_partial ? "complete" : "Partial",
                        module_name(plan_.scenario.model, module)));
        recorder_.at_step(step);
      }
      const int wanted = is_partial ? 1 : 0;
      const int times = terms.times[static_cast<std::size_t>(dim)];
      if (times == wanted) continue;
      recorder_.add(times < wanted ? FindingCode::UnreducedPartial : FindingCode::DoubleReduced,
                    parameter.name,
                    fmt::format("gradient of \"{}\" is {} along {}, and {} {} times there in "
                                "step {}",
                                parameter.name, is_partial ? "Partial" : "complete",
                                mesh_.name(dim), averages_ ? "answered" : "reduced", times, step));
      recorder_.at_step(step);
      recorder_.with_numbers(wanted, times);
    }
  }

  void judge_scale(std::size_t p, const Terms& terms, std::int64_t step) {
    const double wanted =
        gradient_factor(plan_.scenario, static_cast<int>(p)) / gradient_divisor(plan_.scenario);
    recorder_.count();
    // One rounding per factor; the factors themselves are a few.
    if (std::abs(terms.scale - wanted) <= 0x1p-50 * std::abs(wanted)) return;
    const std::string& name = plan_.parameters[p].name;
    const double ratio = terms.scale / wanted;
    std::vector<std::string> explains = scale_names(plan_, static_cast<int>(p), ratio);
    recorder_.add(FindingCode::GradScale, name,
                  fmt::format("gradient of \"{}\" is scaled by {:.17g} in step {}, k/F is "
                              "{:.17g}{}",
                              name, terms.scale, step, wanted,
                              explains.empty() ? ""
                                               : fmt::format(": {} times that, {}", ratio,
                                                             fmt::join(explains, ", "))));
    recorder_.at_step(step);
    recorder_.with_numbers(wanted, terms.scale);
    recorder_.explained(ratio, std::move(explains));
  }

  const Plan& plan_;
  const Mesh& mesh_;
  bool averages_;
  OutcomeRecorder recorder_{CheckId::SyncSet};
  std::vector<std::vector<int>> parameters_;  ///< per module
  RowMembers row_members_;
  std::vector<std::vector<int>> modules_;  ///< per parameter
  std::optional<ActivationReplay> activations_;
  std::vector<Gradient> gradients_;  ///< per parameter, of the optimizer step at hand
};

}  // namespace

PlanCheckOutcome check_sync_set(const Plan& plan) {
  return SyncCheck(plan).run();
}

}  // namespace hpsim
