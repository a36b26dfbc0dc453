#include "verify/parity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "plan/loss_collective.h"
#include "scenario/gradients.h"
#include "trace/rank_mean.h"
#include "verify/check_recorder.h"
#include "verify/compare_shard.h"
#include "verify/diagnose.h"
#include "verify/error_bound.h"
#include "verify/norm_causes.h"
#include "verify/told_findings.h"
#include "verify/variant_causes.h"

namespace hpsim {
namespace {

using ShardOfRank = std::function<TensorView(Rank, int parameter)>;

/// Compares sets of tensors, one tensor per parameter, on all ranks.
class TensorParity {
 public:
  TensorParity(const Evidence& evidence, CheckId id, TensorKind kind)
      : evidence_(evidence),
        id_(id),
        kind_(kind),
        bound_(bound_of(evidence.reference)),
        recorder_(id) {}

  CheckRecorder& recorder() { return recorder_; }
  /// From here on the tensors are those of this optimizer state.
  void set_state(int state) { state_ = state; }

  /// What every rank holds; where there is no reference, there is nothing to compare. `subject` is
  /// what stands before the quoted name: "parameter".
  void compare(const std::string& subject, std::int64_t step,
               const std::vector<ReferenceTensor>& expected, const ShardOfRank& got) {
    each_shard(subject, step, expected, [&](int p, const std::vector<Rank>& holders, auto&& judge) {
      for (const Rank rank : holders)
        judge(subject, rank, got(rank, p));
    });
  }

  /// The same, but where ranks hold their own the mean over them, once for all of them.
  void compare_means(const std::string& subject, std::int64_t step,
                     const std::vector<ReferenceTensor>& expected, const ShardOfRank& got) {
    each_shard(subject, step, expected, [&](int p, const std::vector<Rank>& holders, auto&& judge) {
      for (const std::vector<Rank>& group : averaged_of(evidence_, p, holders)) {
        if (group.size() == 1) {
          judge(subject, group[0], got(group[0], p));
          continue;
        }
        std::vector<TensorView> views;
        for (const Rank rank : group)
          views.push_back(got(rank, p));
        judge(fmt::format("mean over {} of the {}",
                          evidence_.plan.mesh().names(evidence_.plan.averaged_dims(p)), subject),
              group[0], as_view(mean_of(views).mean));
      }
    });
  }

  /// Equality in value with the parameters before step 0.
  void compare_initial(const std::vector<std::vector<double>>& expected, const ShardOfRank& got) {
    HPSIM_CHECK(static_cast<int>(expected.size()) == evidence_.num_parameters(),
                "{} initial tensors for {} parameters", expected.size(),
                evidence_.num_parameters());
    for (int p = 0; p < evidence_.num_parameters(); ++p) {
      const std::vector<double>& tensor = expected[static_cast<std::size_t>(p)];
      HPSIM_CHECK(
          static_cast<std::int64_t>(tensor.size()) == num_elems(evidence_.parameter(p).shape),
          "{} initial values of \"{}\"", tensor.size(), evidence_.parameter(p).name);
      each_part(p, [&](const std::vector<Rank>& holders, const std::vector<Box>& boxes) {
        const GatheredBoxes value(tensor, evidence_.parameter(p).shape, boxes);
        for (const Rank rank : holders) {
          compare_one("parameter", p, std::nullopt, rank, boxes, got(rank, p),
                      {value.values(), {}, ErrorBound{.exact = true}});
        }
      });
    }
  }

  void finish(FindingCode scale_code, FindingCode value_code, Verdict& verdict) {
    for (Finding& finding : diagnose(evidence_, std::move(failures_), scale_code, value_code)) {
      recorder_.add(std::move(finding));
    }
    for (Finding& finding : vacuous_)
      recorder_.add(std::move(finding));
    recorder_.finish(verdict);
  }

 private:
  /// Calls choose(parameter, ranks that hold a part, judge) for every part of every parameter; what
  /// it hands to judge(subject, rank, tensor) is compared with that part.
  template <class Choose>
  void each_shard(const std::string& subject, std::int64_t step,
                  const std::vector<ReferenceTensor>& expected, Choose&& choose) {
    HPSIM_CHECK(static_cast<int>(expected.size()) == evidence_.num_parameters(),
                "{} reference tensors for {} parameters", expected.size(),
                evidence_.num_parameters());
    if (!bound_.exact) judge_bounds(subject, step, expected);
    for (int p = 0; p < evidence_.num_parameters(); ++p) {
      const ReferenceTensor& tensor = expected[static_cast<std::size_t>(p)];
      if (tensor.value.empty()) continue;
      const Shape& shape = evidence_.parameter(p).shape;
      HPSIM_CHECK(tensor.value.size() == tensor.spread.size(), "{} values and {} spreads",
                  tensor.value.size(), tensor.spread.size());
      each_part(p, [&](const std::vector<Rank>& holders, const std::vector<Box>& boxes) {
        const GatheredBoxes value(tensor.value, shape, boxes);
        const GatheredBoxes spread(tensor.spread, shape, boxes);
        choose(p, holders, [&](const std::string& of, Rank rank, const TensorView& got) {
          compare_one(of, p, step, rank, boxes, got,
                      {value.values(), spread.values(), bound_at(p, step)});
        });
      });
    }
  }

  /// A parameter that nothing updates stays what it was, in every bit.
  [[nodiscard]] ErrorBound bound_at(int p, std::int64_t step) const {
    const bool is_kept =
        id_ == CheckId::ParameterParity && !has_gradient(evidence_.plan.scenario, p, step);
    return is_kept ? ErrorBound{.exact = true} : bound_;
  }

  /// Calls f(ranks that hold it, its boxes) for every part of the parameter.
  template <class F>
  void each_part(int p, F&& f) const {
    const auto holders = holders_of(evidence_, p);
    for (std::size_t part = 0; part < holders.size(); ++part)
      f(holders[part], evidence_.held(p, static_cast<std::int64_t>(part)).boxes);
  }

  void compare_one(const std::string& subject, int p, std::optional<std::int64_t> step, Rank rank,
                   const std::vector<Box>& boxes, const TensorView& got,
                   const ExpectedShard& expected) {
    const ShardComparison comparison = compare_shard(got, expected);
    const PlannedParameter& parameter = evidence_.parameter(p);
    recorder_.count(comparison.compared);
    if (comparison.compared == 0) return;
    recorder_.offer_worst({parameter.name, rank.value, step.value_or(0), comparison.worst_ratio});
    if (comparison.failed == 0) return;
    std::vector<double> candidates;
    for (const NamedNumber& number : named_numbers(evidence_.plan.scenario, parameter)) {
      candidates.push_back(number.value);
    }
    failures_.push_back(
        {.subject = fmt::format("{} \"{}\"", subject, parameter.name),
         .place = {kind_, state_, p, step},
         .rank = rank,
         .comparison = comparison,
         .index = index_in(boxes, comparison.worst_index),
         .expected = expected.value[static_cast<std::size_t>(comparison.worst_index)],
         .got = got.at(comparison.worst_index),
         .ratio = constant_ratio(got, expected, candidates)});
  }

  void judge_bounds(const std::string& subject, std::int64_t step,
                    const std::vector<ReferenceTensor>& tensors) {
    std::vector<Medians> medians;
    double largest = 0;
    for (const ReferenceTensor& tensor : tensors) {
      medians.push_back(tensor.value.empty() ? Medians{} : medians_of(tensor, bound_));
      largest = std::max(largest, medians.back().expected);
    }
    for (std::size_t p = 0; p < tensors.size(); ++p) {
      if (tensors[p].value.empty() || !is_vacuous(medians[p], largest)) continue;
      const std::string& name = evidence_.parameter(static_cast<int>(p)).name;
      vacuous_.push_back(
          {.code = FindingCode::VacuousBound,
           .param = name,
           .step = step,
           .expected = medians[p].expected,
           .got = medians[p].bound,
           .message = fmt::format("{} \"{}\", step {}: the median bound {:.3g} exceeds 1/8 of the "
                                  "median |expected| {:.3g}: being inside it says nothing",
                                  subject, name, step, medians[p].bound,
                                  medians[p].expected != 0 ? medians[p].expected : largest)});
    }
  }

  const Evidence& evidence_;
  CheckId id_;
  TensorKind kind_;
  int state_ = 0;
  ErrorBound bound_;
  CheckRecorder recorder_;
  std::vector<ShardFailure> failures_;
  std::vector<Finding> vacuous_;
};

/// A number per step against the reference; what is wrong with it, if anything is.
std::optional<Finding> compare_scalar(FindingCode code, const std::string& subject,
                                      std::int64_t step, double got, double expected, double bound,
                                      const std::vector<NamedNumber>& numbers,
                                      CheckRecorder& recorder) {
  const TensorView view{DType::Float64, reinterpret_cast<const std::byte*>(&got), 1};
  const ExpectedShard shard{std::span(&expected, 1), std::span(&bound, 1), ErrorBound{}};
  const ShardComparison comparison = compare_shard(view, shard);
  recorder.count(1);
  recorder.offer_worst({"", 0, step, comparison.worst_ratio});
  if (comparison.failed == 0) return std::nullopt;
  Finding finding{.code = code, .step = step, .expected = expected, .got = got};
  std::vector<double> candidates;
  for (const NamedNumber& number : numbers)
    candidates.push_back(number.value);
  if (const auto ratio = constant_ratio(view, shard, candidates)) {
    finding.ratio = ratio->value;
    finding.explains = explain(ratio->value, numbers);
  } else if (expected != 0 && std::isfinite(got / expected)) {
    finding.ratio = got / expected;
    const double uncertainty = std::max(1.0, std::abs(*finding.ratio)) * bound / std::abs(expected);
    finding.explains = explain(*finding.ratio, numbers, uncertainty);
  }
  std::string error = "no difference is allowed";
  if (std::isfinite(comparison.worst_ratio)) {
    error = fmt::format("off by {:.3g} times the bound", comparison.worst_ratio);
  }
  if (!std::isfinite(got)) error = "not a finite number";
  if (std::isnan(got)) got = std::abs(got);  // its sign says nothing
  finding.message = fmt::format("{} of step {}: {:.9g} expected, {:.9g} got, {}", subject, step,
                                expected, got, error);
  if (finding.ratio) {
    finding.message += fmt::format("; {:.9g} times the expected value{}{}", *finding.ratio,
                                   finding.explains.empty() ? "" : ": ", join(finding.explains));
  }
  return finding;
}

const ReferenceStep& reference_step(const Evidence& evidence, std::int64_t step) {
  HPSIM_CHECK(static_cast<std::int64_t>(evidence.reference.steps.size()) == evidence.num_steps(),
              "the reference has {} steps of {}", evidence.reference.steps.size(),
              evidence.num_steps());
  return evidence.reference.steps[static_cast<std::size_t>(step)];
}

/// Sum over ranks of one term of the loss: every part of it, of every data rank, once. Ranks that
/// differ along other mesh dims computed the same and must agree.
double sum_of_parts(const Evidence& evidence, std::int64_t step, std::size_t term,
                    CheckRecorder& recorder) {
  const Mesh& mesh = evidence.plan.mesh();
  const Scenario& scenario = evidence.plan.scenario;
  MeshDims dims = loss_part_dims(evidence.plan);
  if (scenario.model.is_elementwise()) {
    dims = union_of(dims, cutting_dims(evidence.parameter(static_cast<int>(term)).unsharded));
  }
  const auto& part_of = evidence.ranks.index_along(dims);
  const auto num_parts = static_cast<std::size_t>(mesh.size(dims));
  std::vector<double> parts(num_parts);
  std::vector<std::int64_t> first_rank(num_parts, -1);
  for (std::int64_t rank = 0; rank < evidence.num_ranks(); ++rank) {
    const auto part = static_cast<std::size_t>(part_of[static_cast<std::size_t>(rank)]);
    const double loss = evidence.run.losses(Rank{rank}, step)[term];
    if (first_rank[part] < 0) {
      first_rank[part] = rank;
      parts[part] = loss;
      continue;
    }
    recorder.count(1);
    if (std::memcmp(&loss, &parts[part], sizeof loss) == 0) continue;
    Finding finding{
        .code = FindingCode::LossValue, .step = step, .expected = parts[part], .got = loss};
    if (scenario.model.is_elementwise()) {
      finding.param = evidence.parameter(static_cast<int>(term)).name;
    }
    locate(finding, mesh, Rank{rank});
    finding.message = fmt::format(
        "local loss of step {}: {} got on {}, {} expected as on rank {}, which sees the same data",
        step, loss, describe_rank(mesh, Rank{rank}), parts[part], first_rank[part]);
    recorder.add(std::move(finding));
  }
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

/// In exact mode: the first operation that rounded, and on how many ranks and steps one did.
void find_inexact(const Evidence& evidence, CheckRecorder& recorder) {
  std::optional<Finding> first;
  std::int64_t count = 0;
  for (std::int64_t step = 0; step < evidence.num_steps(); ++step) {
    for (std::int64_t rank = 0; rank < evidence.num_ranks(); ++rank) {
      if (evidence.run.step_record(Rank{rank}, step).inexact == 0) continue;
      ++count;
      if (first) continue;
      first = Finding{.code = FindingCode::GradValue, .step = step};
      locate(*first, evidence.plan.mesh(), Rank{rank});
    }
  }
  if (!first) return;
  first->message = fmt::format(
      "an operation rounded on {}, step {}: exact mode expects 0 ranks and steps with rounding, {} "
      "of {} had some, so that equal numbers prove nothing",
      describe_rank(evidence.plan.mesh(), Rank{*first->rank}), *first->step, count,
      evidence.num_ranks() * evidence.num_steps());
  recorder.add(std::move(*first));
}

/// Gradients that the plan reduces, and no others, are in the reference.
void require_same_gradients(const Evidence& evidence, std::int64_t step,
                            const std::vector<ReferenceTensor>& gradients) {
  for (int p = 0; p < evidence.num_parameters(); ++p) {
    const bool has_reference = !gradients.at(static_cast<std::size_t>(p)).value.empty();
    HPSIM_CHECK(has_reference == has_gradient(evidence.plan.scenario, p, step),
                "the reference has {} gradient of \"{}\" in step {}", has_reference ? "a" : "no",
                evidence.parameter(p).name, step);
  }
}

/// The mean of means, where some have fewer terms, is not what a mean over all terms would be.
void warn_of_local_mean(const Evidence& evidence, std::int64_t step, double loss,
                        Verdict& verdict) {
  const Scenario& scenario = evidence.plan.scenario;
  if (scenario.training.loss_normalization != LossNormalization::LocalMean) return;
  if (scenario.data.tokens.empty()) return;
  const ReferenceStep& reference = evidence.reference.steps.at(static_cast<std::size_t>(step));
  const ErrorBound bound = bound_of(evidence.reference);
  const double global = reference.global_loss.value;
  const double allowed = bound.at(global, reference.global_loss.spread) +
                         bound.at(reference.loss.value, reference.loss.spread);
  if (std::abs(loss - global) <= allowed) return;
  verdict.findings.push_back(
      {.code = FindingCode::LocalMean,
       .severity = Severity::Warning,
       .check = CheckId::LossParity,
       .step = step,
       .expected = global,
       .got = loss,
       .message = fmt::format(
           "loss of step {}: the mean of the means of micro-batches is {:.9g}, the mean over all "
           "valid positions {:.9g}: they have unequal counts; loss_normalization \"global_tokens\" "
           "is exact",
           step, loss, global),
       .pointer = "/data/tokens"});
}

/// Sum of the squares of those gradients that are means of what ranks hold, each over its copies:
/// no rank has them to add.
double squares_of_means(const Evidence& evidence, std::int64_t step) {
  double square = 0;
  for (int p = 0; p < evidence.num_parameters(); ++p) {
    if (evidence.plan.averaged_dims(p).empty()) continue;
    for (const std::vector<Rank>& holders : holders_of(evidence, p)) {
      const RankGroups groups = averaged_of(evidence, p, holders);
      for (const std::vector<Rank>& group : groups) {
        const auto gradient_of = [&](Rank rank) { return evidence.run.gradient(rank, step, p); };
        const RankMean gradient = own_mean(evidence.plan, p, group[0], gradient_of);
        for (const double value : gradient.mean)
          square += value * value / static_cast<double>(groups.size());
      }
    }
  }
  return square;
}

/// Of all ranks together.
double norm_of_run(const Evidence& evidence, std::int64_t step) {
  const auto& clip = evidence.plan.scenario.training.clip_grad_norm;
  const double p = clip ? clip->norm_type : 2;
  double power = squares_of_means(evidence, step);
  for (std::int64_t rank = 0; rank < evidence.num_ranks(); ++rank) {
    const double part = evidence.run.step_record(Rank{rank}, step).norm_power;
    power = std::isinf(p) ? std::max(power, part) : power + part;
  }
  if (std::isinf(p)) return power;
  return p == 2 ? std::sqrt(power) : std::pow(power, 1 / p);
}

/// Every rank clipped by the norm that is reported.
void check_used_norms(const Evidence& evidence, std::int64_t step, double norm,
                      CheckRecorder& recorder) {
  const auto& clip = evidence.plan.scenario.training.clip_grad_norm;
  if (!clip) return;
  // Both are sums of one number per rank, in some order, and a root.
  const double allowed =
      std::ldexp(static_cast<double>(evidence.num_ranks() + 8), -53) * std::abs(norm);
  for (std::int64_t rank = 0; rank < evidence.num_ranks(); ++rank) {
    const double used = evidence.run.step_record(Rank{rank}, step).clip_norm;
    recorder.count(1);
    if (std::abs(used - norm) <= allowed) continue;
    Finding finding{.code = FindingCode::NormValue, .step = step, .expected = norm, .got = used};
    locate(finding, evidence.plan.mesh(), Rank{rank});
    finding.message = fmt::format(
        "{} clipped step {} by the norm {:.17g}, the gradients of all ranks have {:.17g}",
        describe_rank(evidence.plan.mesh(), Rank{rank}), step, used, norm);
    finding.explains = norm_causes(evidence, step, used, Rank{rank});
    finding.message += explained(finding.explains);
    return recorder.add(std::move(finding));
  }
}

/// What explains a loss that is off by no named ratio.
std::vector<std::string> loss_causes(const Evidence& evidence, std::int64_t step, double loss,
                                     const Verdict& verdict) {
  const auto t = static_cast<std::size_t>(step);
  if (t > 0 && verdict.losses[t - 1] == loss) {
    return {fmt::format("equals the loss of step {}, bit by bit: it is stale", t - 1)};
  }
  return loss_variants(evidence, step, loss);
}

std::string state_subject(OptimizerSpec::Kind kind, int state) {
  if (kind == OptimizerSpec::Kind::Sgd) return "momentum buffer of";
  return state == 0 ? "exp_avg of" : "exp_avg_sq of";
}

}  // namespace

void check_losses(const Evidence& evidence, Verdict& verdict) {
  CheckRecorder recorder(CheckId::LossParity);
  const Scenario& scenario = evidence.plan.scenario;
  const ErrorBound bound = bound_of(evidence.reference);
  const std::vector<NamedNumber> numbers = named_numbers(scenario);
  std::size_t num_explained = 0;
  for (std::int64_t step = 0; step < evidence.num_steps(); ++step) {
    double loss = 0;
    for (std::int64_t term = 0; term < evidence.run.layout().num_loss_terms(); ++term)
      loss += sum_of_parts(evidence, step, static_cast<std::size_t>(term), recorder);
    if (scenario.training.loss_normalization == LossNormalization::LocalMean) {
      loss /= mean_divisor(scenario, scenario.num_data_ranks());
    }
    verdict.losses.push_back(loss);
    const ReferenceScalar& expected = reference_step(evidence, step).loss;
    if (auto finding =
            compare_scalar(FindingCode::LossValue, "loss", step, loss, expected.value,
                           bound.at(expected.value, expected.spread), numbers, recorder)) {
      if (finding->explains.empty() && num_explained++ < kMaxFindingsPerCheck) {
        finding->explains = loss_causes(evidence, step, loss, verdict);
        finding->message += explained(finding->explains);
      }
      recorder.add(std::move(*finding));
    }
    warn_of_local_mean(evidence, step, loss, verdict);
  }
  recorder.finish(verdict);
}

void check_gradients(const Evidence& evidence, Verdict& verdict) {
  TensorParity parity(evidence, CheckId::GradientParity, TensorKind::Gradient);
  if (evidence.plan.scenario.is_exact()) find_inexact(evidence, parity.recorder());
  for (std::int64_t step = 0; step < evidence.num_steps(); ++step) {
    require_same_gradients(evidence, step, reference_step(evidence, step).gradients);
    parity.compare_means("gradient of", step, reference_step(evidence, step).gradients,
                         [&](Rank rank, int p) { return evidence.run.gradient(rank, step, p); });
  }
  parity.finish(FindingCode::GradScale, FindingCode::GradValue, verdict);
}

void check_parameters(const Evidence& evidence, Verdict& verdict) {
  TensorParity parity(evidence, CheckId::ParameterParity, TensorKind::Parameter);
  parity.compare_initial(evidence.reference.initial,
                         [&](Rank rank, int p) { return evidence.run.parameter(rank, 0, p); });
  for (std::int64_t step = 0; step < evidence.num_steps(); ++step) {
    parity.compare("parameter", step, reference_step(evidence, step).parameters,
                   [&](Rank rank, int p) { return evidence.run.parameter(rank, step + 1, p); });
  }
  parity.finish(FindingCode::ParamValue, FindingCode::ParamValue, verdict);
}

void check_optimizer_state(const Evidence& evidence, Verdict& verdict) {
  const OptimizerSpec& optimizer = evidence.plan.scenario.training.optimizer;
  const int num_states = optimizer.num_state_tensors();
  if (num_states == 0) return;
  TensorParity parity(evidence, CheckId::OptimizerStateParity, TensorKind::State);
  for (std::int64_t step = 0; step < evidence.num_steps(); ++step) {
    const auto& expected = reference_step(evidence, step).state;
    HPSIM_CHECK(static_cast<int>(expected.size()) == num_states, "{} reference state tensors of {}",
                expected.size(), num_states);
    for (int state = 0; state < num_states; ++state) {
      parity.set_state(state);
      parity.compare_means(
          state_subject(optimizer.kind, state), step, expected[static_cast<std::size_t>(state)],
          [&](Rank rank, int p) { return evidence.run.state(rank, step, state, p); });
    }
  }
  parity.finish(FindingCode::ParamValue, FindingCode::ParamValue, verdict);
}

void check_grad_norms(const Evidence& evidence, Verdict& verdict) {
  CheckRecorder recorder(CheckId::GradNormParity);
  const ErrorBound bound = bound_of(evidence.reference);
  const std::vector<NamedNumber> numbers = named_norm_numbers(evidence.plan);
  std::int64_t num_gradients = 0;
  for (int p = 0; p < evidence.num_parameters(); ++p) {
    num_gradients +=
        num_elems(evidence.parameter(p).shape) * (evidence.num_ranks() / evidence.num_parts(p));
  }
  std::size_t num_explained = 0;
  const double rounding = 2 * std::ldexp(static_cast<double>(num_gradients + 4), -53);
  for (std::int64_t step = 0; step < evidence.num_steps(); ++step) {
    const double norm = norm_of_run(evidence, step);
    verdict.grad_norms.push_back(norm);
    check_used_norms(evidence, step, norm, recorder);
    const ReferenceScalar& expected = reference_step(evidence, step).grad_norm;
    const double allowed = evidence.reference.exact ? rounding * std::abs(expected.value)
                                                    : bound.at(expected.value, expected.spread);
    if (auto finding = compare_scalar(FindingCode::NormValue, "gradient norm", step, norm,
                                      expected.value, allowed, numbers, recorder)) {
      if (num_explained++ < kMaxFindingsPerCheck) {
        std::vector<std::string> causes = norm_causes(evidence, step, norm, Rank{0});
        finding->message += explained(causes);
        finding->explains.insert(finding->explains.begin(), causes.begin(), causes.end());
        if (finding->explains.size() > kMaxExplanations) finding->explains.resize(kMaxExplanations);
      }
      recorder.add(std::move(*finding));
    }
  }
  recorder.finish(verdict);
}

}  // namespace hpsim
