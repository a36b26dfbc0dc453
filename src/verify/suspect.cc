#include "verify/suspect.h"

#include "trace/rank_mean.h"
#include "verify/compare_shard.h"

namespace hpsim {
namespace {

const ReferenceTensor* reference_tensor(const Evidence& evidence, const TensorPlace& place) {
  if (!place.step || *place.step < 0 || *place.step >= evidence.num_steps()) return nullptr;
  const ReferenceStep& step = evidence.reference.steps.at(static_cast<std::size_t>(*place.step));
  const auto p = static_cast<std::size_t>(place.parameter);
  switch (place.kind) {
    case TensorKind::Gradient:
      return &step.gradients.at(p);
    case TensorKind::Parameter:
      return &step.parameters.at(p);
    case TensorKind::State:
      break;
  }
  return &step.state.at(static_cast<std::size_t>(place.state)).at(p);
}

TensorView recorded_view(const Evidence& evidence, const TensorPlace& place, Rank rank) {
  const RunResult& run = evidence.run;
  switch (place.kind) {
    case TensorKind::Gradient:
      return run.gradient(rank, *place.step, place.parameter);
    case TensorKind::Parameter:
      return run.parameter(rank, place.step ? *place.step + 1 : 0, place.parameter);
    case TensorKind::State:
      break;
  }
  return run.state(rank, *place.step, place.state, place.parameter);
}

}  // namespace

BoundedValues reference_values(const Evidence& evidence, const TensorPlace& place,
                               const std::vector<Box>& boxes) {
  const Shape& shape = evidence.parameter(place.parameter).shape;
  BoundedValues result;
  if (!place.step) {
    const GatheredBoxes value(
        evidence.reference.initial.at(static_cast<std::size_t>(place.parameter)), shape, boxes);
    result.value.assign(value.values().begin(), value.values().end());
    result.bound.resize(result.value.size());
    return result;
  }
  const ReferenceTensor* const tensor = reference_tensor(evidence, place);
  if (tensor == nullptr || tensor->value.empty()) return result;
  const GatheredBoxes value(tensor->value, shape, boxes);
  const GatheredBoxes spread(tensor->spread, shape, boxes);
  result.value.assign(value.values().begin(), value.values().end());
  const ErrorBound bound = bound_of(evidence.reference);
  for (std::size_t i = 0; i < result.value.size(); ++i)
    result.bound.push_back(bound.at(result.value[i], spread.values()[i]));
  return result;
}

std::vector<double> recorded_values(const Evidence& evidence, const TensorPlace& place, Rank rank) {
  const auto view_of = [&](Rank of) { return recorded_view(evidence, place, of); };
  if (place.kind != TensorKind::Parameter &&
      !evidence.plan.averaged_dims(place.parameter).empty()) {
    return own_mean(evidence.plan, place.parameter, rank, view_of).mean;
  }
  const TensorView view = view_of(rank);
  std::vector<double> values;
  for (std::int64_t i = 0; i < view.elems; ++i)
    values.push_back(view.at(i));
  return values;
}

Suspect::Suspect(const Evidence& all, const TensorPlace& at, Rank of)
    : evidence(all), place(at), rank(of) {
  const std::int64_t part = all.part_index(at.parameter)[static_cast<std::size_t>(of.value)];
  boxes = all.held(at.parameter, part).boxes;
  got = recorded_values(all, at, of);
  expected = reference_values(all, at, boxes);
}

std::string noun_of(const Evidence& evidence, const TensorPlace& place) {
  switch (place.kind) {
    case TensorKind::Gradient:
      return "the gradient";
    case TensorKind::Parameter:
      return "the parameter";
    case TensorKind::State:
      break;
  }
  if (evidence.plan.scenario.training.optimizer.kind == OptimizerSpec::Kind::Sgd) {
    return "the momentum buffer";
  }
  return place.state == 0 ? "exp_avg" : "exp_avg_sq";
}

std::vector<std::vector<double>> parameters_before(const Evidence& evidence, std::int64_t step) {
  if (step == 0) return evidence.reference.initial;
  return assemble_state(evidence.plan, evidence.run, step).parameters;
}

}  // namespace hpsim
