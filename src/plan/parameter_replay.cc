#include "plan/parameter_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace hpsim {

ParameterReplay::ParameterReplay(const Plan& plan)
    : plan_(plan),
      begun_dims_(plan.buckets.size()),
      parameters_of_module_(parameters_of_modules(plan.scenario)) {
  for (const PlannedParameter& parameter : plan.parameters)
    states_.push_back({parameter.sharded, {}});
}

std::vector<ParameterReplay::Fault> ParameterReplay::take(const Step& step) {
  switch (step.kind) {
    case StepKind::Forward:
    case StepKind::Backward:
      compute(step);
      break;
    case StepKind::Optimizer:
      for (int p = 0; p < static_cast<int>(states_.size()); ++p)
        expect(step, p, state(p).now, plan_.parameter(p).sharded, "");
      break;
    case StepKind::Redistribute:
    case StepKind::Route:
    case StepKind::Dispatch:
    case StepKind::Combine:
    case StepKind::Loss:
    case StepKind::ClipGradients:
      break;
    default:
      take_bucket(step);
      break;
  }
  return std::exchange(faults_, {});
}

void ParameterReplay::compute(const Step& step) {
  for (const int p : parameters_of_module_.at(static_cast<std::size_t>(step.module))) {
    const std::vector<Placement>& unsharded = plan_.parameter(p).unsharded;
    expect(step, p, state(p).now, unsharded, "");
    if (step.kind == StepKind::Backward) state(p).gradient = unsharded;
  }
}

void ParameterReplay::take_bucket(const Step& step) {
  const std::vector<int>& all =
      step.row < 0 ? plan_.bucket(step.bucket).parameters : plan_.gradient_row(step.row).parameters;
  Interval members{0, static_cast<std::int64_t>(all.size())};
  if (step.partial >= 0) {
    members =
        plan_.gradient_row(step.row).partials.at(static_cast<std::size_t>(step.partial)).members;
  }
  for (std::int64_t i = members.begin; i < members.end; ++i)
    take_parameter(step, all.at(static_cast<std::size_t>(i)));
  MeshDims& begun = begun_dims_.at(static_cast<std::size_t>(step.bucket));
  if (step.is_async && step.collective) begun = step.collective->dims;
  if (step.kind == StepKind::WaitUnshard) begun.clear();
}

void ParameterReplay::unshard(int p, const MeshDims& dims) {
  for (const int dim : dims)
    state(p).now.at(static_cast<std::size_t>(dim)) = Replicate{};
}

void ParameterReplay::take_parameter(const Step& step, int p) {
  const PlannedParameter& parameter = plan_.parameter(p);
  State& of = state(p);
  const MeshDims dims = step.collective ? step.collective->dims : MeshDims{};
  switch (step.kind) {
    case StepKind::Unshard:
      if (step.is_async) return expect(step, p, of.now, parameter.sharded, "");
      unshard(p, dims);
      return expect(step, p, of.now, parameter.unsharded, "");
    case StepKind::WaitUnshard:
      unshard(p, begun_dims_.at(static_cast<std::size_t>(parameter.bucket)));
      return expect(step, p, of.now, parameter.unsharded, "");
    case StepKind::Reshard:
      cut_to_row(step, p, of.now);
      return expect(step, p, of.now, parameter.sharded, "");
    case StepKind::AverageWeights:
      return expect(step, p, of.now, parameter.sharded, "");
    default:
      break;
  }
  if (of.gradient.empty()) return;  // check_agreement says that its backward is missing
  if (step.kind == StepKind::ReduceScatter) {
    for (const int dim : dims) {
      if (contains(parameter.sharded_group.dims, dim)) continue;
      fault(FindingCode::CommGroup, p,
            fmt::format("reduce_scatter cuts the gradient of \"{}\" along {}, where fully_shard "
                        "does not cut it",
                        parameter.name, plan_.mesh().name(dim)));
    }
  }
  cut_to_row(step, p, of.gradient);
  if (step.kind == StepKind::AllReduce) {
    for (const int dim : dims) {
      const Placement& placement = of.gradient.at(static_cast<std::size_t>(dim));
      if (!is_cut(placement)) continue;
      fault(FindingCode::CommGroup, p,
            fmt::format("all_reduce adds different parts of the gradient of \"{}\": it is {} "
                        "along {}",
                        parameter.name, to_string(placement, plan_.scenario.fully_shard.vocabulary),
                        plan_.mesh().name(dim)));
    }
  }
  if (step.kind == StepKind::StoreGradient) {
    expect(step, p, of.gradient, parameter.sharded, "the gradient of ");
  }
}

void ParameterReplay::cut_to_row(const Step& step, int p, std::vector<Placement>& placements) {
  for (const int dim : plan_.bucket(step.bucket).sharded_group.dims) {
    const auto at = static_cast<std::size_t>(dim);
    placements.at(at) = plan_.parameter(p).sharded.at(at);
  }
}

void ParameterReplay::expect(const Step& step, int p, const std::vector<Placement>& got,
                             const std::vector<Placement>& wanted, const char* of) {
  ++compared_;
  const Mesh& mesh = plan_.mesh();
  const Vocabulary vocabulary = plan_.scenario.fully_shard.vocabulary;
  for (int dim = 0; dim < mesh.num_dims(); ++dim) {
    // One rank holds the same, cut or not.
    const auto at = static_cast<std::size_t>(dim);
    if (mesh.size(dim) == 1 || got.at(at) == wanted.at(at)) continue;
    return fault(FindingCode::OffsetWrong, p,
                 fmt::format("at {} {}\"{}\" is {} along {}, expected {}", name_of(step.kind), of,
                             plan_.parameter(p).name, to_string(got[at], vocabulary),
                             mesh.name(dim), to_string(wanted[at], vocabulary)));
  }
}

void ParameterReplay::fault(FindingCode code, int p, std::string message) {
  if (std::exchange(state(p).is_faulty, true)) return;
  faults_.push_back({code, p, std::move(message)});
}

}  // namespace hpsim
