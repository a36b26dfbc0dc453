#include "verify/diagnose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "scenario/precision.h"
#include "tensor/shape.h"
#include "verify/gradient_causes.h"
#include "verify/rank_table.h"
#include "verify/shard_causes.h"
#include "verify/told_findings.h"

namespace hpsim {
namespace {

bool has_float16(const Scenario& scenario) {
  const MixedPrecision& policy = scenario.fully_shard.mp_policy;
  const std::vector<DType>& own = scenario.numerics.parameter_dtypes;
  return scenario.numerics.dtype == DType::Float16 || policy.param_dtype == DType::Float16 ||
         policy.reduce_dtype == DType::Float16 || policy.output_dtype == DType::Float16 ||
         std::find(own.begin(), own.end(), DType::Float16) != own.end();
}

/// Failures that are told as one finding.
struct FailureGroup {
  std::vector<ShardFailure> members;  ///< the one that is told in full first

  [[nodiscard]] const ShardFailure& first() const { return members.front(); }
};

bool belong_together(const ShardFailure& a, const ShardFailure& b) {
  if (a.ratio.has_value() != b.ratio.has_value()) return false;
  if (!a.ratio) return a.subject == b.subject && a.place.step == b.place.step;
  return std::abs(a.ratio->value - b.ratio->value) <= a.ratio->uncertainty + b.ratio->uncertainty;
}

std::vector<FailureGroup> group_failures(std::vector<ShardFailure> failures) {
  const auto sort_key = [](const ShardFailure& failure) {
    return std::tuple(failure.place.step.value_or(-1), !failure.ratio.has_value(),
                      -failure.comparison.worst_ratio, failure.place.parameter, failure.rank.value);
  };
  std::stable_sort(failures.begin(), failures.end(),
                   [&](const auto& a, const auto& b) { return sort_key(a) < sort_key(b); });
  std::vector<FailureGroup> groups;
  for (ShardFailure& failure : failures) {
    const auto it = std::find_if(groups.begin(), groups.end(), [&](const FailureGroup& group) {
      return belong_together(group.first(), failure);
    });
    if (it != groups.end()) {
      it->members.push_back(std::move(failure));
    } else {
      groups.push_back({{std::move(failure)}});
    }
  }
  return groups;
}

/// "off by 1.3e+06 times the bound"
std::string describe_error(const ShardFailure& failure) {
  if (!std::isfinite(failure.got)) return "not a finite number";
  if (std::isinf(failure.comparison.worst_ratio)) return "no difference is allowed";
  return fmt::format("off by {:.3g} times the bound", failure.comparison.worst_ratio);
}

/// "; every element is 2 times the expected value: S=2", or how many elements are wrong.
std::string describe_extent(const ShardFailure& failure, const std::vector<std::string>& explains) {
  if (!failure.ratio) {
    return fmt::format("; {} of {} elements of the shard are off", failure.comparison.failed,
                       failure.comparison.compared);
  }
  return fmt::format("; every element is {:.9g} times the expected value{}{}", failure.ratio->value,
                     explains.empty() ? "" : ": ", join(explains));
}

/// "; likewise on all 4 ranks, 2 parameters, 3 steps": what else the group holds.
std::string describe_others(const FailureGroup& group, std::int64_t num_ranks) {
  std::set<std::int64_t> ranks;
  std::set<int> parameters;
  std::set<std::int64_t> steps;
  for (const ShardFailure& failure : group.members) {
    ranks.insert(failure.rank.value);
    parameters.insert(failure.place.parameter);
    steps.insert(failure.place.step.value_or(-1));
  }
  std::vector<std::string> others;
  if (ranks.size() > 1) {
    others.push_back("on " + describe_ranks({ranks.begin(), ranks.end()}, num_ranks));
  }
  if (parameters.size() > 1) others.push_back(fmt::format("{} parameters", parameters.size()));
  if (steps.size() > 1) others.push_back(fmt::format("{} steps", steps.size()));
  return others.empty() ? "" : "; likewise " + join(others);
}

/// What explains the ratio for every parameter of the group.
std::vector<std::string> explain_group(const Plan& plan, const FailureGroup& group) {
  if (!group.first().ratio) return {};
  std::set<int> parameters;
  for (const ShardFailure& failure : group.members)
    parameters.insert(failure.place.parameter);
  const ConstantRatio ratio = *group.first().ratio;
  // Names count that all parameters have.
  std::vector<NamedNumber> common;
  for (const int p : parameters) {
    std::vector<NamedNumber> numbers = named_numbers(plan.scenario, plan.parameter(p));
    if (p == *parameters.begin()) {
      common = std::move(numbers);
      continue;
    }
    std::erase_if(common, [&](const NamedNumber& number) {
      return std::none_of(numbers.begin(), numbers.end(),
                          [&](const NamedNumber& other) { return other.text == number.text; });
    });
  }
  return explain(ratio.value, common, ratio.uncertainty);
}

/// What explains a shard that is off by no named ratio.
std::vector<std::string> causes_of(const Evidence& evidence, const ShardFailure& failure,
                                   std::string& message) {
  const Suspect suspect(evidence, failure.place, failure.rank);
  std::vector<std::string> causes = shard_causes(suspect);
  if (failure.place.kind == TensorKind::Gradient && causes.empty()) {
    causes = gradient_causes(suspect, message);
  }
  if (causes.size() > kMaxExplanations) causes.resize(kMaxExplanations);
  return causes;
}

}  // namespace

std::string format_value(double value, DType dtype) {
  if (std::isnan(value)) return "nan";  // whatever its sign
  const auto narrow = static_cast<float>(value);
  if (dtype != DType::Float64 && static_cast<double>(narrow) == value) {
    return fmt::format("{}", narrow);
  }
  return dtype == DType::Float64 ? fmt::format("{}", value) : fmt::format("{:.9g}", value);
}

void locate(Finding& finding, const Mesh& mesh, Rank rank) {
  finding.rank = rank.value;
  finding.coordinate = mesh.coordinate_of(rank);
}

std::string describe_ranks(const std::vector<std::int64_t>& ranks, std::int64_t num_ranks) {
  constexpr std::size_t kMaxListed = 8;
  const auto count = static_cast<std::int64_t>(ranks.size());
  if (count == num_ranks && count > 1) return fmt::format("all {} ranks", count);
  if (ranks.size() > kMaxListed) return fmt::format("{} ranks", count);
  return fmt::format("{} {}", count == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string explained(const std::vector<std::string>& causes) {
  std::string text;
  for (const std::string& cause : causes)
    text += (text.empty() ? "; it " : "; or it ") + cause;
  return text;
}

std::vector<Finding> diagnose(const Evidence& evidence, std::vector<ShardFailure> failures,
                              FindingCode scale_code, FindingCode value_code) {
  const Plan& plan = evidence.plan;
  std::vector<Finding> findings;
  const DType dtype = carrier_dtype(plan.scenario);
  for (const FailureGroup& group : group_failures(std::move(failures))) {
    const ShardFailure& first = group.first();
    const std::optional<std::int64_t> of_step = first.place.step;
    Finding finding{.code = first.ratio ? scale_code : value_code,
                    .param = plan.parameter(first.place.parameter).name,
                    .step = of_step,
                    .expected = first.expected,
                    .got = first.got,
                    .explains = explain_group(plan, group)};
    locate(finding, plan.mesh(), first.rank);
    finding.index = first.index;
    if (first.ratio) finding.ratio = first.ratio->value;
    const std::string step =
        of_step ? fmt::format("step {}", *of_step) : std::string("before step 0");
    finding.message = fmt::format(
        "{} on {}, {}, index {}: {} expected, {} got, {}{}{}", first.subject,
        describe_rank(plan.mesh(), first.rank), step, to_string(finding.index),
        format_value(first.expected, dtype), format_value(first.got, dtype), describe_error(first),
        describe_extent(first, finding.explains), describe_others(group, plan.mesh().num_ranks()));
    if (!std::isfinite(first.got) && has_float16(plan.scenario))
      finding.message += "; float16 ends at 65504: numbers may have overflowed";
    if (finding.explains.empty() && findings.size() < kMaxFindingsPerCheck) {
      finding.explains = causes_of(evidence, first, finding.message);
      finding.message += explained(finding.explains);
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace hpsim
