#include "plan/plan_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/check.h"
#include "layout/coverage.h"
#include "plan/activation_replay.h"
#include "plan/parameter_replay.h"
#include "plan/rank_layout.h"

namespace hpsim {
namespace {

/// Collects findings of one check.
class Recorder {
 public:
  explicit Recorder(CheckId id) { outcome_.id = id; }

  void count() { ++outcome_.compared; }
  void count(std::int64_t facts) { outcome_.compared += facts; }
  void add(FindingCode code, const std::string& param, std::string message) {
    outcome_.findings.push_back(
        {.code = code, .check = outcome_.id, .param = param, .message = std::move(message)});
  }
  /// The last finding is about this optimizer step.
  void at_step(std::int64_t step) { outcome_.findings.back().step = step; }
  void warn(FindingCode code, const std::string& param, std::string message) {
    add(code, param, std::move(message));
    outcome_.findings.back().severity = Severity::Warning;
  }
  void append(std::vector<Finding> findings) {
    std::move(findings.begin(), findings.end(), std::back_inserter(outcome_.findings));
  }
  [[nodiscard]] PlanCheckOutcome take() { return std::move(outcome_); }

 private:
  PlanCheckOutcome outcome_;
};

/// Tensor dims whose extents a cut of TP, EP or fully_shard changes, dim by dim.
class CoverageCheck {
 public:
  CoverageCheck(const Plan& plan, Recorder& recorder) : plan_(plan), recorder_(recorder) {}

  void check(const PlannedParameter& parameter) {
    std::set<Shape> wholes = {parameter.shape};
    for (int dim = 0; dim < static_cast<int>(parameter.shape.size()); ++dim) {
      for (const int mesh_dim : cutting_order(parameter.unsharded, dim))
        wholes = cut(parameter, wholes, dim, mesh_dim);
    }
    for (const Shape& whole : wholes) {
      const auto runs = shard_runs(parameter.cut, whole);
      tile(parameter, num_cells(parameter.cut, whole), parameter.cut.num_shards, runs);
      check_slots(parameter, whole, runs);
    }
  }

 private:
  /// The shapes that cutting tensor dim `dim` of `wholes` over `mesh_dim` leaves, each once.
  std::set<Shape> cut(const PlannedParameter& parameter, const std::set<Shape>& wholes, int dim,
                      int mesh_dim) {
    const auto at = static_cast<std::size_t>(dim);
    std::set<Shape> parts;
    for (const Shape& whole : wholes) {
      const std::int64_t count = plan_.mesh().size(mesh_dim);
      const auto runs = shard_runs(whole[at], count);
      tile(parameter, whole[at], count, runs);
      for (const ShardRun& run : runs) {
        Shape part = whole;
        part[at] = run.length;
        parts.insert(std::move(part));
      }
    }
    return parts;
  }

  void tile(const PlannedParameter& parameter, std::int64_t extent, std::int64_t count,
            const std::vector<ShardRun>& runs) {
    recorder_.count(static_cast<std::int64_t>(runs.size()));
    recorder_.append(tiling_findings(extent, count, runs, parameter.name));
  }

  void check_slots(const PlannedParameter& parameter, const Shape& whole,
                   const std::vector<ShardRun>& runs) {
    const std::int64_t slot = num_elems(padded_shape(parameter.cut, whole));
    for (const ShardRun& run : runs) {
      recorder_.count();
      const std::int64_t elems = shard_elems(parameter.cut, whole, run.shards.begin);
      if (elems <= slot) continue;
      recorder_.add(FindingCode::PaddingExposed, parameter.name,
                    fmt::format("shard {} of \"{}\" has {} elements, its slot {}", run.shards.begin,
                                parameter.name, elems, slot));
    }
  }

  const Plan& plan_;
  Recorder& recorder_;
};

/// Slots of a bucket lie end to end, each as large as the padded shard of its parameter.
void check_row(const Plan& plan, const Bucket& bucket, Recorder& recorder) {
  const Mesh& mesh = plan.mesh();
  PerCoordinate end_of_last;
  for (const int p : bucket.parameters) {
    const PlannedParameter& parameter = plan.parameter(p);
    recorder.count();
    if (parameter.offset_elems != end_of_last) {
      recorder.add(
          FindingCode::OffsetWrong, parameter.name,
          fmt::format("slot of \"{}\" begins at {}, the one before it ends at {}", parameter.name,
                      to_string(mesh, parameter.offset_elems), to_string(mesh, end_of_last)));
    }
    // Wherever TP leaves another size, and wherever the plan says that slots have one.
    std::vector<Coordinate> coordinates = telling_wholes(mesh, parameter);
    Coordinate coordinate(static_cast<std::size_t>(mesh.num_dims()), 0);
    while (advance(mesh, parameter.padded_elems.dims(), coordinate))
      coordinates.push_back(coordinate);
    for (const Coordinate& each : coordinates) {
      recorder.count();
      const std::int64_t wanted = num_elems(padded_shape_at(mesh, parameter, each));
      const std::int64_t got = parameter.padded_elems.at(mesh, each);
      if (got == wanted) continue;
      recorder.add(FindingCode::CommShape, parameter.name,
                   fmt::format("slot of \"{}\" has {} elements, its largest shard {}",
                               parameter.name, got, wanted));
      break;
    }
    end_of_last = parameter.offset_elems.plus(mesh, parameter.padded_elems);
  }
  if (end_of_last != bucket.row_elems) {
    recorder.add(FindingCode::OffsetWrong, std::string(),
                 fmt::format("slots of unit \"{}\" end at {}, its row has {} elements",
                             plan.unit_name(bucket), to_string(mesh, end_of_last),
                             to_string(mesh, bucket.row_elems)));
  }
}

/// Calls f(parameter) for what a step reduces, averages or scales.
template <class F>
void each_reduced(const Plan& plan, const Step& step, F&& f) {
  const bool reduces = step.kind == StepKind::ReduceScatter || step.kind == StepKind::AllReduce ||
                       step.kind == StepKind::AverageWeights;
  if (step.bucket < 0 || (!(reduces && step.collective) && step.kind != StepKind::ScaleGradient)) {
    return;
  }
  const Bucket& bucket = plan.bucket(step.bucket);
  Interval members = {0, static_cast<std::int64_t>(bucket.parameters.size())};
  if (step.partial >= 0) {
    members = bucket.partials.at(static_cast<std::size_t>(step.partial)).members;
  }
  for (std::int64_t i = members.begin; i < members.end; ++i)
    f(bucket.parameters.at(static_cast<std::size_t>(i)));
}

/// What the copies of a weight become is their mean: nothing of k/F may be left to it.
void check_mean(const Plan& plan, const Step& step, int p, Recorder& recorder) {
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

/// What a vocabulary cannot say about a parameter, empty if nothing.
std::string inexpressible(const Plan& plan, const PlannedParameter& parameter) {
  const Vocabulary vocabulary = plan.scenario.fully_shard.vocabulary;
  if (vocabulary == Vocabulary::Ragged || parameter.sharded_group.dims.empty()) return {};
  const ShardCut& cut = parameter.cut;
  const auto mesh_dim = static_cast<std::size_t>(parameter.sharded_group.dims[0]);
  if (cut.is_ragged()) {
    if (vocabulary == Vocabulary::Torch) return "PyTorch has no ragged shards";
    if (std::holds_alternative<RaggedStridedShard>(parameter.sharded.at(mesh_dim))) {
      return "HyperParallel has no RaggedStridedShard";
    }
    return {};
  }
  if (vocabulary != Vocabulary::UnevenFlag) return {};
  bool some_even = false;
  bool some_uneven = false;
  for (const Coordinate& coordinate : telling_coordinates(plan.mesh(), parameter)) {
    const Box whole = local_box({parameter.shape, parameter.unsharded}, plan.mesh(), coordinate);
    (is_even(cut, whole.shape) ? some_even : some_uneven) = true;
  }
  if (!some_even || !some_uneven) return {};
  return "ranks to which TP leaves a number of rows that divides would not set the flag";
}

/// Per parameter: its own module, then those that are tied to it.
std::vector<std::vector<int>> modules_of_parameters(const Scenario& scenario) {
  const std::vector<std::vector<int>> parameters = parameters_of_modules(scenario);
  std::vector<std::vector<int>> modules(scenario.parameters.size());
  for (std::size_t module = 0; module < parameters.size(); ++module) {
    for (const int p : parameters[module])
      modules.at(static_cast<std::size_t>(p)).push_back(static_cast<int>(module));
  }
  return modules;
}

}  // namespace

PlanCheckOutcome check_coverage(const Plan& plan) {
  Recorder recorder(CheckId::Coverage);
  CoverageCheck coverage(plan, recorder);
  for (const PlannedParameter& parameter : plan.parameters)
    coverage.check(parameter);
  for (const Bucket& bucket : plan.buckets)
    check_row(plan, bucket, recorder);
  return recorder.take();
}

PlanCheckOutcome check_sync_set(const Plan& plan) {
  Recorder recorder(CheckId::SyncSet);
  const Mesh& mesh = plan.mesh();
  const bool averages = plan.scenario.fully_shard.sync_object == SyncObject::Weight;
  const auto num_dims = static_cast<std::size_t>(mesh.num_dims());
  struct Reductions {
    std::vector<int> times;  // per mesh dim
    double scale = 1;
  };
  std::vector<Reductions> of_parameter;
  const auto reset = [&] {
    of_parameter.assign(plan.parameters.size(), Reductions{std::vector<int>(num_dims, 0)});
  };
  std::optional<ActivationReplay> activations;
  if (!plan.scenario.model.is_elementwise()) activations.emplace(plan);
  const std::vector<std::vector<int>> modules = modules_of_parameters(plan.scenario);
  const auto is_partial_along = [&](std::size_t p, int module, int dim) {
    if (contains(cutting_dims(plan.parameters[p].unsharded), dim)) return false;
    // Ranks along it saw different samples: their gradients are terms of one sum.
    if (!activations) return contains(plan.scenario.data.data_dims, dim);
    return contains(activations->batch_dims(module), dim);
  };
  const auto judge = [&](std::int64_t step) {
    for (std::size_t p = 0; p < plan.parameters.size(); ++p) {
      const PlannedParameter& parameter = plan.parameters[p];
      const Reductions& got = of_parameter[p];
      const double wanted_scale =
          gradient_factor(plan.scenario, static_cast<int>(p)) / gradient_divisor(plan.scenario);
      for (int dim = 0; dim < mesh.num_dims(); ++dim) {
        if (mesh.size(dim) == 1) continue;
        recorder.count();
        const bool is_partial = is_partial_along(p, modules[p][0], dim);
        for (const int module : modules[p]) {  // all that are tied to it leave such terms
          if (is_partial_along(p, module, dim) == is_partial) continue;
          recorder.add(FindingCode::UnreducedPartial, parameter.name,
                       fmt::format("gradient of \"{}\" in step {} is {} along {} as \"{}\" leaves "
                                   "it, and {} as \"{}\" does",
                                   parameter.name, step, is_partial ? "Partial" : "complete",
                                   mesh.name(dim), module_name(plan.scenario.model, modules[p][0]),
                                   is_partial ? "complete" : "Partial",
                                   module_name(plan.scenario.model, module)));
          recorder.at_step(step);
        }
        const int wanted = is_partial ? 1 : 0;
        const int times = got.times[static_cast<std::size_t>(dim)];
        if (times == wanted) continue;
        recorder.add(times < wanted ? FindingCode::UnreducedPartial : FindingCode::DoubleReduced,
                     parameter.name,
                     fmt::format("gradient of \"{}\" is {} along {}, and {} {} times there in "
                                 "step {}",
                                 parameter.name, is_partial ? "Partial" : "complete",
                                 mesh.name(dim), averages ? "answered" : "reduced", times, step));
        recorder.at_step(step);
      }
      recorder.count();
      // One rounding per factor; the factors themselves are a few.
      if (std::abs(got.scale - wanted_scale) <= 0x1p-50 * std::abs(wanted_scale)) continue;
      recorder.add(FindingCode::GradScale, parameter.name,
                   fmt::format("gradient of \"{}\" is scaled by {:.17g} in step {}, k/F is "
                               "{:.17g}",
                               parameter.name, got.scale, step, wanted_scale));
      recorder.at_step(step);
    }
  };
  reset();
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (activations) static_cast<void>(activations->take(step));  // judged by check_agreement
    each_reduced(plan, step, [&](int p) {
      Reductions& reductions = of_parameter.at(static_cast<std::size_t>(p));
      if (step.kind == StepKind::ScaleGradient) {
        reductions.scale *= step.local_scale;
        return;
      }
      reductions.scale *= step.collective->prescale * step.collective->scale;
      for (const int dim : step.collective->dims)
        ++reductions.times.at(static_cast<std::size_t>(dim));
      if (step.kind == StepKind::AverageWeights) check_mean(plan, step, p, recorder);
    });
    // Weights are averaged after the optimizer.
    if (i + 1 < plan.steps.size() && plan.steps[i + 1].step == step.step) continue;
    judge(step.step);
    reset();
  }
  return recorder.take();
}

PlanCheckOutcome check_placements(const Plan& plan) {
  Recorder recorder(CheckId::Placements);
  const Mesh& mesh = plan.mesh();
  const Vocabulary vocabulary = plan.scenario.fully_shard.vocabulary;
  for (const PlannedParameter& parameter : plan.parameters) {
    const std::string missing = inexpressible(plan, parameter);
    const TensorLayout sharded{parameter.shape, parameter.sharded};  // its units may be many
    std::optional<std::string> difference;
    for (const Coordinate& coordinate : telling_coordinates(mesh, parameter)) {
      recorder.count();
      const auto implied = local_boxes(sharded, mesh, coordinate);
      const auto held = held_shard(mesh, parameter, coordinate).boxes;
      if (implied == held || difference) continue;
      difference =
          fmt::format("\"{}\" at ({}): {} implies {}, the cut gives {}", parameter.name,
                      fmt::join(coordinate, ", "), to_string(parameter.sharded, vocabulary),
                      to_string(implied), to_string(held));
    }
    // Only balanced chunks and given units are beyond what the vocabularies say.
    const bool is_beyond = vocabulary != Vocabulary::Ragged &&
                           (parameter.cut.chunking == Chunking::Balanced || !missing.empty());
    if (difference && !is_beyond) {
      recorder.add(FindingCode::OffsetWrong, parameter.name, *difference);
    } else if (difference || !missing.empty()) {
      recorder.warn(
          FindingCode::SpecDisagrees, parameter.name,
          fmt::format("vocabulary {} cannot express the layout of \"{}\": {}", name_of(vocabulary),
                      parameter.name, difference ? *difference : missing));
    }
    for (int dim = 0; dim < mesh.num_dims(); ++dim) {
      recorder.count();
      const auto at = static_cast<std::size_t>(dim);
      const Placement wanted = contains(parameter.sharded_group.dims, dim) ? Placement{Replicate{}}
                                                                           : parameter.sharded[at];
      if (parameter.unsharded[at] != wanted) {
        recorder.add(FindingCode::OffsetWrong, parameter.name,
                     fmt::format("unsharded \"{}\" is {} along {}, expected {}", parameter.name,
                                 to_string(parameter.unsharded[at], vocabulary), mesh.name(dim),
                                 to_string(wanted, vocabulary)));
      }
    }
  }
  ParameterReplay replay(plan);
  for (const Step& step : plan.steps) {
    for (ParameterReplay::Fault& fault : replay.take(step)) {
      recorder.add(fault.code, plan.parameter(fault.parameter).name, std::move(fault.message));
      recorder.at_step(step.step);
    }
  }
  recorder.count(replay.compared());
  return recorder.take();
}

}  // namespace hpsim
