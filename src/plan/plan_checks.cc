#include "plan/plan_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "layout/coverage.h"
#include "layout/tensor_layout.h"

namespace hpsim {
namespace {

/// Rows that the placements of a parameter give to each shard.
std::vector<Interval> implied_rows(const Plan& plan, const PlannedParameter& parameter) {
  const MeshDims& dims = parameter.sharded_group.dims;
  if (dims.empty()) return {{0, parameter.shape.at(0)}};
  HPSIM_CHECK(dims.size() == 1, "\"{}\" is cut along {} mesh dims", parameter.name, dims.size());
  return rows_along(parameter.sharded.at(static_cast<std::size_t>(dims[0])), parameter.shape.at(0),
                    plan.mesh().size(dims[0]));
}

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
  void add(FindingCode code, const Step& step, std::string message) {
    add(code, std::string(), std::move(message));
    outcome_.findings.back().step = step.step;
  }
  /// Counts one fact; a finding if it does not hold.
  void expect(bool holds, FindingCode code, const Step& step, std::string message) {
    count();
    if (!holds) add(code, step, std::move(message));
  }
  void append(std::vector<Finding> findings) {
    std::move(findings.begin(), findings.end(), std::back_inserter(outcome_.findings));
  }
  [[nodiscard]] PlanCheckOutcome take() { return std::move(outcome_); }

 private:
  PlanCheckOutcome outcome_;
};

std::string unit_name(const Plan& plan, const Bucket& bucket) {
  return plan.scenario.units.at(static_cast<std::size_t>(bucket.unit)).name;
}

}  // namespace

PlanCheckOutcome check_coverage(const Plan& plan) {
  Recorder recorder(CheckId::Coverage);
  for (const PlannedParameter& parameter : plan.parameters) {
    std::vector<Interval> shards;
    const std::int64_t slot = parameter.padded_elems();
    for (std::int64_t index = 0; index < parameter.shard_size(); ++index) {
      shards.push_back(parameter.rows_of(index));
      if (parameter.shard_elems(index) > slot) {
        recorder.add(FindingCode::PaddingExposed, parameter.name,
                     fmt::format("shard {} of \"{}\" has {} elements, its slot {}", index,
                                 parameter.name, parameter.shard_elems(index), slot));
      }
    }
    recorder.count(parameter.shard_size());
    recorder.append(tiling_findings(parameter.shape.at(0), shards, parameter.name));
  }
  for (const Bucket& bucket : plan.buckets) {
    std::int64_t end_of_last = 0;
    for (const int p : bucket.parameters) {
      const PlannedParameter& parameter = plan.parameters.at(static_cast<std::size_t>(p));
      recorder.count();
      if (parameter.offset_elems != end_of_last) {
        recorder.add(FindingCode::OffsetWrong, parameter.name,
                     fmt::format("slot of \"{}\" begins at {}, the one before it ends at {}",
                                 parameter.name, parameter.offset_elems, end_of_last));
      }
      end_of_last = parameter.offset_elems + parameter.padded_elems();
    }
    if (end_of_last != bucket.row_elems) {
      recorder.add(FindingCode::OffsetWrong, std::string(),
                   fmt::format("slots of unit \"{}\" end at {}, its row has {} elements",
                               unit_name(plan, bucket), end_of_last, bucket.row_elems));
    }
  }
  return recorder.take();
}

PlanCheckOutcome check_sync_set(const Plan& plan) {
  Recorder recorder(CheckId::SyncSet);
  const Mesh& mesh = plan.mesh();
  const auto num_dims = static_cast<std::size_t>(mesh.num_dims());
  const double wanted_scale =
      plan.scenario.fully_shard.gradient_scaling_factor / gradient_divisor(plan.scenario);
  struct Reductions {
    std::vector<int> times;  // per mesh dim
    double scale = 1;
    int applied = 0;  // collectives and local steps that carry a factor or could
  };
  std::vector<Reductions> of_bucket;
  const auto reset = [&] {
    of_bucket.assign(plan.buckets.size(), Reductions{std::vector<int>(num_dims, 0)});
  };
  reset();
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::Optimizer) {
      for (const PlannedParameter& parameter : plan.parameters) {
        const Reductions& got = of_bucket.at(static_cast<std::size_t>(parameter.bucket));
        for (int dim = 0; dim < mesh.num_dims(); ++dim) {
          if (mesh.size(dim) == 1) continue;
          recorder.count();
          // Ranks along a data dim saw different samples: their gradients are terms of one sum.
          const int wanted = contains(plan.scenario.data.data_dims, dim) ? 1 : 0;
          const int times = got.times[static_cast<std::size_t>(dim)];
          if (times == wanted) continue;
          recorder.add(times < wanted ? FindingCode::UnreducedPartial : FindingCode::DoubleReduced,
                       parameter.name,
                       fmt::format("gradient of \"{}\" is {} along {}, and reduced {} times there "
                                   "in step {}",
                                   parameter.name, wanted == 1 ? "Partial" : "complete",
                                   mesh.name(dim), times, step.step));
        }
        recorder.count();
        // One rounding per factor; the factors themselves are a few.
        if (!(std::abs(got.scale - wanted_scale) <= 0x1p-50 * std::abs(wanted_scale))) {
          recorder.add(FindingCode::GradScale, parameter.name,
                       fmt::format("gradient of \"{}\" is scaled by {:.17g} in step {}, k/F is "
                                   "{:.17g}",
                                   parameter.name, got.scale, step.step, wanted_scale));
        }
      }
      reset();
      continue;
    }
    if (step.bucket < 0) continue;
    Reductions& reductions = of_bucket.at(static_cast<std::size_t>(step.bucket));
    if (step.kind == StepKind::ScaleGradient) reductions.scale *= step.local_scale;
    if (step.kind == StepKind::ReduceScatter || step.kind == StepKind::AllReduce) {
      if (!step.collective) continue;
      reductions.scale *= step.collective->prescale * step.collective->scale;
      for (const int dim : step.collective->dims)
        ++reductions.times.at(static_cast<std::size_t>(dim));
    }
  }
  return recorder.take();
}

PlanCheckOutcome check_placements(const Plan& plan) {
  Recorder recorder(CheckId::Placements);
  const Mesh& mesh = plan.mesh();
  for (const PlannedParameter& parameter : plan.parameters) {
    const std::vector<Interval> implied_by_shard = implied_rows(plan, parameter);
    for (std::int64_t index = 0; index < parameter.shard_size(); ++index) {
      recorder.count();
      const Interval implied = implied_by_shard.at(static_cast<std::size_t>(index));
      const Interval held = parameter.rows_of(index);
      if (implied != held) {
        recorder.add(FindingCode::OffsetWrong, parameter.name,
                     fmt::format("shard {} of \"{}\": {} implies rows {}, the cut gives {}", index,
                                 parameter.name, to_string(parameter.sharded), to_string(implied),
                                 to_string(held)));
      }
    }
    for (int dim = 0; dim < mesh.num_dims(); ++dim) {
      recorder.count();
      const auto at = static_cast<std::size_t>(dim);
      const Placement wanted = contains(parameter.sharded_group.dims, dim) ? Placement{Replicate{}}
                                                                           : parameter.sharded[at];
      if (parameter.unsharded[at] != wanted) {
        recorder.add(
            FindingCode::OffsetWrong, parameter.name,
            fmt::format("unsharded \"{}\" is {} along {}, expected {}", parameter.name,
                        to_string(parameter.unsharded[at]), mesh.name(dim), to_string(wanted)));
      }
    }
  }
  return recorder.take();
}

}  // namespace hpsim
