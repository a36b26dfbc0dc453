#include "planted_run.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <stdexcept>
#include <utility>

#include "plan/build_plan.h"
#include "plan/overlap.h"
#include "plan/rank_layout.h"
#include "plan/verify_plan.h"
#include "trace/plan_ledger.h"
#include "trace/planned_collectives.h"
#include "verify/compare_runs.h"

namespace hpsim::test {
namespace {

double value_of(int p, std::int64_t i) {
  return static_cast<double>(i + 1) / 8 + p;
}

ReferenceTensor tensor_of(const CaseSpec& spec, int p, double factor) {
  ReferenceTensor tensor;
  const std::int64_t elems = num_elems(spec.parameters[static_cast<std::size_t>(p)].shape);
  for (std::int64_t i = 0; i < elems; ++i)
    tensor.value.push_back(factor * value_of(p, i));
  tensor.spread.assign(tensor.value.size(), spec.exact ? 0.0 : std::ldexp(1.0, -20));
  return tensor;
}

ReferenceRun make_reference(const CaseSpec& spec) {
  ReferenceRun reference;
  reference.exact = spec.exact;
  reference.unit_roundoff = unit_roundoff(spec.dtype);
  reference.confidence = 6;
  const int num_parameters = static_cast<int>(spec.parameters.size());
  const double spread = spec.exact ? 0.0 : std::ldexp(1.0, -20);
  double square = 0;
  ReferenceStep step;
  step.state.resize(static_cast<std::size_t>(spec.optimizer.num_state_tensors()));
  for (int p = 0; p < num_parameters; ++p) {
    reference.initial.push_back(tensor_of(spec, p, 1).value);
    step.gradients.push_back(tensor_of(spec, p, 2));
    step.parameters.push_back(tensor_of(spec, p, 1));
    for (auto& state : step.state)
      state.push_back(tensor_of(spec, p, 1));
    for (const double value : step.gradients.back().value)
      square += value * value;
  }
  step.loss = {0.5, spread};
  step.grad_norm = {std::sqrt(square), spread};
  reference.steps.assign(static_cast<std::size_t>(spec.steps), step);
  return reference;
}

RunResult make_run(const Plan& plan) {
  ResultLayout layout(plan, true);
  const auto size = static_cast<std::size_t>(layout.size_bytes());
  auto* block = static_cast<std::byte*>(::operator new (size, std::align_val_t{64}));
  std::fill_n(block, size, std::byte{0});
  return {"local", std::move(layout), std::shared_ptr<std::byte>(block, [](std::byte* bytes) {
            ::operator delete (bytes, std::align_val_t{64});
          })};
}

/// Writes the shard of a reference tensor that begins at `first`.
void write(RunResult& run, std::int64_t offset, const std::vector<double>& tensor,
           std::int64_t first, std::int64_t elems) {
  for (std::int64_t i = 0; i < elems; ++i) {
    const double value = tensor[static_cast<std::size_t>(first + i)];
    if (run.layout().dtype() == DType::Float64) {
      reinterpret_cast<double*>(run.bytes(offset))[i] = value;
    } else {
      reinterpret_cast<float*>(run.bytes(offset))[i] = static_cast<float>(value);
    }
  }
}

void fill_execution(const Plan& plan, Rank rank, RunResult& run) {
  RankRecord& record = run.rank_record(rank);
  const Coordinate coordinate = plan.mesh().coordinate_of(rank);
  const std::map<std::int64_t, Overlap> overlaps = overlaps_of(plan);
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    if (!plan.steps[i].collective) continue;
    const CollectiveSpec& spec = *plan.steps[i].collective;
    MeshDims others;
    for (int dim = 0; dim < plan.mesh().num_dims(); ++dim) {
      if (std::find(spec.dims.begin(), spec.dims.end(), dim) == spec.dims.end()) {
        others.push_back(dim);
      }
    }
    const auto step = static_cast<std::int64_t>(i);
    const std::int64_t in = spec.elems_in.at(plan.mesh(), coordinate);
    const std::int64_t out = spec.elems_out.at(plan.mesh(), coordinate);
    run.executed(rank)[record.num_collectives++] = {
        step,
        in,
        out,
        collective_tag(plan, step, plan.mesh().index_along(others, coordinate), in, out),
        plan.steps[i].is_async ? overlaps.at(step).completed_in : step,
        spec.op,
        spec.dtype,
        spec.takes_max,
        dims_mask(spec.dims),
        spec.consecutive};
  }
  const PlannedMemory memory = planned_memory(plan, coordinate);
  record.init = memory.init;
  record.ledger = memory.ledger;
  std::copy(memory.events.begin(), memory.events.end(), run.memory_events(rank).begin());
  record.pad_allocations = memory.pad_allocations;
  record.pad_copies = memory.pad_copies;
  record.padding_checked = memory.pad_copies;
  record.done = 1;
  for (std::int64_t t = 0; t < plan.scenario.training.steps; ++t) {
    run.step_record(rank, t).live_after = memory.live_after[static_cast<std::size_t>(t)];
  }
}

/// Of D times the loss, by data rank; replicas see different samples, and have different losses:
/// 2 1 ... 1 0 over (rep, fsdp).
double share_of_loss(const Plan& plan, const Coordinate& coordinate) {
  const Scenario& scenario = plan.scenario;
  if (!scenario.roles.dp_replicate_dim) return 1;
  const std::int64_t data_rank = plan.mesh().index_along(scenario.data.data_dims, coordinate);
  if (data_rank == 0) return 2;
  return data_rank + 1 == scenario.num_data_ranks() ? 0 : 1;
}

void fill_numbers(const Plan& plan, const ReferenceRun& reference, Rank rank, RunResult& run) {
  const Coordinate coordinate = plan.mesh().coordinate_of(rank);
  for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
    const auto at = static_cast<std::size_t>(p);
    const PlannedParameter& parameter = plan.parameters[at];
    const HeldShard held = held_shard(plan.mesh(), parameter, coordinate);
    const std::int64_t first = held.boxes.at(0).offset[0] * row_elems(parameter.shape);
    const std::int64_t elems = held.elems;
    const auto copies = static_cast<double>(plan.mesh().num_ranks() / parameter.shard_size());
    run.record_held(rank, p, held.boxes);
    write(run, run.layout().parameter(rank, 0, p), reference.initial[at], first, elems);
    for (std::int64_t t = 0; t < plan.scenario.training.steps; ++t) {
      const ReferenceStep& step = reference.steps[static_cast<std::size_t>(t)];
      const std::vector<double>& gradient = step.gradients[at].value;
      write(run, run.layout().gradient(rank, t, p), gradient, first, elems);
      write(run, run.layout().parameter(rank, t + 1, p), step.parameters[at].value, first, elems);
      for (int s = 0; s < static_cast<int>(step.state.size()); ++s) {
        write(run, run.layout().state(rank, t, s, p),
              step.state[static_cast<std::size_t>(s)][at].value, first, elems);
      }
      StepRecord& record = run.step_record(rank, t);
      run.losses(rank, t)[p] = p == 0 ? share_of_loss(plan, coordinate) * step.loss.value : 0;
      for (std::int64_t i = first; i < first + elems; ++i) {
        const double value = gradient[static_cast<std::size_t>(i)];
        record.norm_power += value * value / copies;
      }
    }
  }
}

}  // namespace

Scenario make_scenario(const CaseSpec& spec) {
  Scenario scenario;
  scenario.name = "planted";
  scenario.mesh = Mesh(spec.mesh_shape, spec.mesh_names, spec.ranks);
  scenario.roles.fsdp_shard_dim = scenario.mesh.find("fsdp");
  scenario.roles.dp_replicate_dim = scenario.mesh.find("rep");
  scenario.model.elementwise = spec.parameters;
  scenario.parameters = list_parameters(scenario.model);
  scenario.units =
      assign_units(scenario.model, scenario.parameters, spec.units, !spec.units.empty());
  scenario.fully_shard.forward_prefetch = spec.forward_prefetch;
  scenario.fully_shard.shards_parameters = scenario.roles.fsdp_shard_dim.has_value();
  scenario.fully_shard.replicate_params = spec.replicate_params;
  scenario.training.steps = spec.steps;
  scenario.training.optimizer = spec.optimizer;
  for (int dim = 0; dim < scenario.mesh.num_dims(); ++dim) {
    if (dim == scenario.roles.fsdp_shard_dim || dim == scenario.roles.dp_replicate_dim) {
      scenario.data.data_dims.push_back(dim);
    }
  }
  scenario.training.global_batch = 2 * scenario.num_data_ranks();
  scenario.numerics.dtype = spec.dtype;
  if (spec.exact) scenario.numerics.mode = NumericsSpec::Mode::Exact;
  return scenario;
}

PlantedRun::PlantedRun(const CaseSpec& spec)
    : plan(verify_plan(build_plan(make_scenario(spec)))),
      reference(make_reference(spec)),
      run(make_run(*plan)) {
  for (std::int64_t rank = 0; rank < plan->mesh().num_ranks(); ++rank) {
    fill_execution(*plan, Rank{rank}, run);
    fill_numbers(*plan, reference, Rank{rank}, run);
  }
}

Verdict PlantedRun::judge() const {
  return compare_runs(plan, run, reference);
}

std::vector<CheckId> failed_checks(const Verdict& verdict) {
  std::vector<CheckId> failed;
  for (const CheckResult& check : verdict.checks) {
    if (!check.passed) failed.push_back(check.id);
  }
  return failed;
}

bool has_check(const Verdict& verdict, CheckId id) {
  return std::any_of(verdict.checks.begin(), verdict.checks.end(),
                     [&](const CheckResult& check) { return check.id == id; });
}

const CheckResult& check_of(const Verdict& verdict, CheckId id) {
  for (const CheckResult& check : verdict.checks) {
    if (check.id == id) return check;
  }
  throw std::out_of_range("no such check in the verdict");
}

}  // namespace hpsim::test
