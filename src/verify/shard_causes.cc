#include "verify/shard_causes.h"

#include <fmt/format.h>

#include <functional>
#include <utility>

#include "trace/rank_mean.h"
#include "verify/compare_shard.h"
#include "verify/named_numbers.h"

namespace hpsim {
namespace {

/// Whether the shard is made of whole rows, one run of them.
bool is_rows(const Suspect& suspect) {
  const Shape& shape = suspect.parameter().shape;
  if (suspect.boxes.size() != 1 || shape.empty()) return false;
  for (std::size_t dim = 1; dim < shape.size(); ++dim) {
    if (suspect.boxes[0].shape[dim] != shape[dim]) return false;
  }
  return true;
}

/// What the rank, or another, recorded of the same tensor one step earlier; empty: nothing.
std::vector<double> values_before(const Suspect& suspect) {
  TensorPlace before = suspect.place;
  if (!before.step) return {};
  if (*before.step == 0) {
    if (before.kind != TensorKind::Parameter) return {};
    before.step.reset();
  } else {
    --*before.step;
  }
  std::vector<double> values = recorded_values(suspect.evidence, before, suspect.rank);
  if (values.size() != suspect.size()) return {};
  return values;
}

std::string step_before(const Suspect& suspect) {
  return *suspect.place.step == 0 ? "before step 0"
                                  : fmt::format("of step {}", *suspect.place.step - 1);
}

/// The rank that holds another part of the parameter, at the same place along all other dims.
Rank holder_of_part(const Suspect& suspect, std::int64_t part) {
  const Mesh& mesh = suspect.evidence.plan.mesh();
  const MeshDims dims = suspect.parameter().cut_dims();
  const Coordinate there = mesh.coordinate_along(dims, part);
  Coordinate coordinate = mesh.coordinate_of(suspect.rank);
  for (const int dim : dims)
    coordinate[static_cast<std::size_t>(dim)] = there[static_cast<std::size_t>(dim)];
  return mesh.rank_at(coordinate);
}

/// "8 of 16, the last ones"
std::string describe_off(const Suspect& suspect, std::size_t num_off, std::size_t first_off) {
  const bool is_tail = first_off + num_off == suspect.size() && num_off < suspect.size();
  return fmt::format("{} of {}{}", num_off, suspect.size(), is_tail ? ", the last ones" : "");
}

/// The whole tensor of the reference that the suspect is a part of.
BoundedValues whole_reference(const Suspect& suspect) {
  const Shape& shape = suspect.parameter().shape;
  return reference_values(suspect.evidence, suspect.place,
                          {Box{std::vector<std::int64_t>(shape.size(), 0), shape}});
}

}  // namespace

std::vector<std::string> other_parameter(const Suspect& suspect) {
  std::vector<std::string> texts;
  const Evidence& evidence = suspect.evidence;
  for (int q = 0; q < evidence.num_parameters(); ++q) {
    if (q == suspect.place.parameter) continue;
    if (evidence.parameter(q).shape != suspect.parameter().shape) continue;
    TensorPlace other = suspect.place;
    other.parameter = q;
    if (!suspect.agrees(reference_values(evidence, other, suspect.boxes))) continue;
    texts.push_back(fmt::format("equals {} of \"{}\"", noun_of(evidence, suspect.place),
                                evidence.parameter(q).name));
    if (texts.size() == kMaxExplanations) break;
  }
  return texts;
}

std::vector<std::string> previous_step(const Suspect& suspect) {
  const std::vector<double> before = values_before(suspect);
  if (before.empty() || before != suspect.got) return {};
  if (suspect.place.kind != TensorKind::Gradient) {
    return {"equals what it was before the step, bit by bit: it was not updated"};
  }
  return {fmt::format("equals the gradient {}, bit by bit: it is stale", step_before(suspect))};
}

std::vector<std::string> added_to_previous(const Suspect& suspect) {
  if (suspect.place.kind != TensorKind::Gradient) return {};
  const std::vector<double> before = values_before(suspect);
  if (before.empty()) return {};
  const double relative = 4 * bound_of(suspect.evidence.reference).unit_roundoff;
  const bool is_sum = suspect.agrees(
      [&](std::size_t i) { return suspect.expected.value[i] + before[i]; },
      [&](std::size_t i) {
        return suspect.expected.bound[i] +
               (suspect.evidence.reference.exact ? 0 : relative * std::abs(suspect.got[i]));
      });
  if (!is_sum) return {};
  return {fmt::format("is the gradient {} added to that of step {}: it was not cleared",
                      step_before(suspect), *suspect.place.step)};
}

std::vector<std::string> rows_of_another_rank(const Suspect& suspect) {
  constexpr std::int64_t kMostParts = 4096;
  const Evidence& evidence = suspect.evidence;
  const int p = suspect.place.parameter;
  const std::string what = is_rows(suspect) ? "rows" : "shards";
  for (std::int64_t part = 0; part < std::min(evidence.num_parts(p), kMostParts); ++part) {
    const Rank other = holder_of_part(suspect, part);
    if (other.value == suspect.rank.value) continue;
    const HeldShard held = evidence.held(p, part);
    if (held.elems != static_cast<std::int64_t>(suspect.size())) continue;
    if (!suspect.agrees(reference_values(evidence, suspect.place, held.boxes))) continue;
    Suspect counterpart = suspect;
    counterpart.got = recorded_values(evidence, suspect.place, other);
    if (counterpart.agrees(suspect.expected)) {
      return {fmt::format("has the {} of rank {} and rank {} exchanged", what, suspect.rank.value,
                          other.value)};
    }
    return {fmt::format("equals the {} of rank {}", what, other.value)};
  }
  return {};
}

std::vector<std::string> shifted_rows(const Suspect& suspect) {
  if (!is_rows(suspect)) return {};
  const BoundedValues whole = whole_reference(suspect);
  if (whole.empty()) return {};
  const Shape& shape = suspect.parameter().shape;
  const std::int64_t begin = suspect.boxes[0].offset[0];
  const std::int64_t rows = suspect.boxes[0].shape[0];
  const std::int64_t elems = row_elems(shape);
  for (std::int64_t by = 1; by < shape[0]; ++by) {
    for (const std::int64_t shift : {by, -by}) {
      if (begin + shift < 0 || begin + shift + rows > shape[0]) continue;
      const auto from = static_cast<std::size_t>((begin + shift) * elems);
      if (!suspect.agrees([&](std::size_t i) { return whole.value[from + i]; },
                          [&](std::size_t i) { return whole.bound[from + i]; })) {
        continue;
      }
      return {fmt::format("has rows shifted by {}: row {} holds what belongs to row {}", shift,
                          begin, begin + shift)};
    }
  }
  return {};
}

std::vector<std::string> transposed(const Suspect& suspect) {
  const Shape& shape = suspect.parameter().shape;
  if (shape.size() != 2 || shape[0] == 1 || shape[1] == 1) return {};
  const BoundedValues whole = whole_reference(suspect);
  if (whole.empty()) return {};
  std::vector<std::size_t> source;
  for (const Box& box : suspect.boxes) {
    each_run(shape, box, [&](std::int64_t first, std::int64_t count) {
      for (std::int64_t k = first; k < first + count; ++k)
        source.push_back(static_cast<std::size_t>((k % shape[0]) * shape[1] + k / shape[0]));
    });
  }
  if (!suspect.agrees([&](std::size_t i) { return whole.value[source[i]]; },
                      [&](std::size_t i) { return whole.bound[source[i]]; })) {
    return {};
  }
  return {"is transposed"};
}

std::vector<std::string> partly_something_else(const Suspect& suspect) {
  std::vector<std::size_t> off;
  for (std::size_t i = 0; i < suspect.size(); ++i) {
    if (suspect.is_off(i)) off.push_back(i);
  }
  if (off.empty()) return {};
  const auto all_off = [&](const std::function<bool(std::size_t)>& is_so) {
    return std::all_of(off.begin(), off.end(), is_so);
  };
  const std::string which =
      fmt::format("in all elements that are off ({})", describe_off(suspect, off.size(), off[0]));
  if (all_off([&](std::size_t i) { return suspect.got[i] == 0; })) {
    return {fmt::format("has 0 {}: never filled, as padding is", which)};
  }
  const std::vector<double> before = values_before(suspect);
  if (!before.empty() && off.size() < suspect.size() &&
      all_off([&](std::size_t i) { return suspect.got[i] == before[i]; })) {
    return {fmt::format("has what there was {} {}, bit by bit: never overwritten",
                        step_before(suspect), which)};
  }
  return {};
}

std::vector<std::string> follows_from_gradient(const Suspect& suspect) {
  const TrainingSpec& training = suspect.evidence.plan.scenario.training;
  const OptimizerSpec& sgd = training.optimizer;
  if (suspect.place.kind != TensorKind::Parameter || !suspect.place.step) return {};
  if (sgd.kind != OptimizerSpec::Kind::Sgd || training.clip_grad_norm || sgd.round_to || sgd.clamp)
    return {};
  TensorPlace of_gradient = suspect.place;
  of_gradient.kind = TensorKind::Gradient;
  const Suspect gradient(suspect.evidence, of_gradient, suspect.rank);
  if (gradient.expected.value.size() != suspect.size()) return {};
  const double rate = sgd.lr * (sgd.nesterov ? 1 + sgd.momentum : 1);
  const double relative =
      suspect.evidence.reference.exact ? 0 : 4 * bound_of(suspect.evidence.reference).unit_roundoff;
  const bool follows = suspect.agrees(
      [&](std::size_t i) {
        return suspect.expected.value[i] - rate * (gradient.got[i] - gradient.expected.value[i]);
      },
      [&](std::size_t i) {
        return suspect.expected.bound[i] + relative * std::abs(suspect.got[i]) +
               rate * relative * std::abs(gradient.got[i]);
      });
  if (!follows) return {};
  return {"is what the gradient of this step, as recorded, makes of it"};
}

std::vector<std::string> scaled_update(const Suspect& suspect) {
  if (suspect.place.kind != TensorKind::Parameter || suspect.size() < 2) return {};
  const std::vector<double> before = values_before(suspect);
  if (before.empty()) return {};
  std::vector<double> got;
  std::vector<double> due;
  for (std::size_t i = 0; i < suspect.size(); ++i) {
    got.push_back(suspect.got[i] - before[i]);
    due.push_back(suspect.expected.value[i] - before[i]);
  }
  const ExpectedShard expected{due, suspect.expected.bound, ErrorBound{}};
  const auto numbers = named_numbers(suspect.evidence.plan.scenario, suspect.parameter());
  std::vector<double> candidates{2, -1};
  for (const NamedNumber& number : numbers)
    candidates.push_back(number.value);
  const auto ratio = constant_ratio(as_view(got), expected, candidates);
  if (!ratio) return {};
  const std::vector<std::string> names = explain(ratio->value, numbers, ratio->uncertainty);
  return {fmt::format("is updated by {:.6g} times what is due{}{}", ratio->value,
                      names.empty() ? "" : ": ", join(names))};
}

std::vector<std::string> off_by_parameter(const Suspect& suspect) {
  const ExpectedShard due{suspect.expected.value, suspect.expected.bound, ErrorBound{}};
  if (suspect.place.kind != TensorKind::Gradient || suspect.size() < 3) return {};
  if (constant_ratio(as_view(suspect.got), due, {})) return {};
  TensorPlace held{TensorKind::Parameter, 0, suspect.place.parameter, {}};
  if (*suspect.place.step > 0) held.step = *suspect.place.step - 1;
  const std::vector<double> parameter = recorded_values(suspect.evidence, held, suspect.rank);
  std::vector<double> difference;
  for (std::size_t i = 0; i < suspect.size(); ++i)
    difference.push_back(suspect.got[i] - suspect.expected.value[i]);
  const ExpectedShard expected{parameter, suspect.expected.bound, ErrorBound{}};
  const double decay = suspect.evidence.plan.scenario.training.optimizer.weight_decay;
  const auto ratio = constant_ratio(as_view(difference), expected, {decay});
  if (!ratio || ratio->value == 0) return {};
  return {fmt::format("is off by {:.6g} times the parameter itself{}", ratio->value,
                      ratio->value == decay ? ", its weight_decay" : "")};
}

std::vector<std::string> shard_causes(const Suspect& suspect) {
  if (suspect.expected.value.size() != suspect.size() || suspect.size() == 0) return {};
  std::vector<std::string> texts;
  for (auto* const cause : {&follows_from_gradient, &previous_step, &other_parameter,
                            &rows_of_another_rank, &added_to_previous, &transposed, &scaled_update,
                            &partly_something_else, &off_by_parameter}) {
    for (std::string& text : cause(suspect))
      texts.push_back(std::move(text));
  }
  // An exchange is a shift too.
  if (texts.empty()) texts = shifted_rows(suspect);
  return texts;
}

}  // namespace hpsim
