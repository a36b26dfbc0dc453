#include "verify/diagnose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "scenario/precision.h"
#include "tensor/shape.h"
#include "verify/rank_table.h"

namespace hpsim {
namespace {

bool has_float16(const Scenario& scenario) {
  const MixedPrecision& policy = scenario.fully_shard.mp_policy;
  const std::vector<DType>& own = scenario.numerics.parameter_dtypes;
  return scenario.numerics.dtype == DType::Float16 || policy.param_dtype == DType::Float16 ||
         policy.reduce_dtype == DType::Float16 || policy.output_dtype == DType::Float16 ||
         std::find(own.begin(), own.end(), DType::Float16) != own.end();
}

std::vector<NamedNumber> name_all(const Scenario& scenario, std::int64_t shards,
                                  std::int64_t replicas, std::int64_t partials,
                                  std::int64_t numel) {
  std::vector<NamedNumber> numbers;
  std::vector<NamedNumber> inverses;
  const auto add = [&](const std::string& name, double value) {
    if (value == 1) return;
    numbers.push_back({fmt::format("{}={}", name, value), value});
    inverses.push_back({fmt::format("1/{}=1/{}", name, value), 1 / value});
  };
  add("W", static_cast<double>(scenario.mesh.num_ranks()));
  add("D", static_cast<double>(scenario.num_data_ranks()));
  add("S", static_cast<double>(shards));
  add("R", static_cast<double>(replicas));
  if (shards != 1 && replicas != 1) add("S*R", static_cast<double>(shards * replicas));
  add("P", static_cast<double>(partials));
  if (scenario.roles.tp_dim)
    add("tp", static_cast<double>(scenario.mesh.size(*scenario.roles.tp_dim)));
  if (scenario.roles.ep_dim)
    add("ep", static_cast<double>(scenario.mesh.size(*scenario.roles.ep_dim)));
  if (scenario.roles.tp_dim && scenario.roles.ep_dim) {
    const auto tp = static_cast<double>(scenario.mesh.size(*scenario.roles.tp_dim));
    if (tp > 1) add("ep/tp", static_cast<double>(scenario.mesh.size(*scenario.roles.ep_dim)) / tp);
  }
  add("M", static_cast<double>(scenario.training.micro_batches));
  add("F", gradient_divisor(scenario));
  add("k", scenario.fully_shard.gradient_scaling_factor);
  // What is not among these already.
  const auto add_new = [&](const std::string& name, double value) {
    const bool is_known = std::any_of(numbers.begin(), numbers.end(), [&](const auto& number) {
      return number.value == value || number.value == 1 / value;
    });
    if (!is_known) add(name, value);
  };
  const double divisor = gradient_divisor(scenario);
  add_new("F/k", divisor / scenario.fully_shard.gradient_scaling_factor);
  if (scenario.roles.ep_dim) {
    const auto ep = static_cast<double>(scenario.mesh.size(*scenario.roles.ep_dim));
    add_new("D/ep", static_cast<double>(scenario.num_data_ranks()) / ep);
  }
  if (has_float16(scenario)) add_new("F before the sum", 1 / predivision(DType::Float16, divisor));
  add_new("numel", static_cast<double>(numel));
  numbers.insert(numbers.end(), inverses.begin(), inverses.end());
  return numbers;
}

/// Failures that are told as one finding.
struct FailureGroup {
  std::vector<ShardFailure> members;  ///< the one that is told in full first

  [[nodiscard]] const ShardFailure& first() const { return members.front(); }
};

bool belong_together(const ShardFailure& a, const ShardFailure& b) {
  if (a.ratio.has_value() != b.ratio.has_value()) return false;
  if (!a.ratio) return a.subject == b.subject && a.step == b.step;
  return std::abs(a.ratio->value - b.ratio->value) <= a.ratio->uncertainty + b.ratio->uncertainty;
}

std::vector<FailureGroup> group_failures(std::vector<ShardFailure> failures) {
  const auto sort_key = [](const ShardFailure& failure) {
    return std::tuple(failure.step.value_or(-1), !failure.ratio.has_value(),
                      -failure.comparison.worst_ratio, failure.parameter, failure.rank.value);
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
    parameters.insert(failure.parameter);
    steps.insert(failure.step.value_or(-1));
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
    parameters.insert(failure.parameter);
  std::vector<std::string> common;
  for (const int p : parameters) {
    const auto numbers =
        named_numbers(plan.scenario, plan.parameters.at(static_cast<std::size_t>(p)));
    std::vector<std::string> texts = explain(group.first().ratio->value, numbers);
    if (p == *parameters.begin()) {
      common = std::move(texts);
    } else {
      std::erase_if(common, [&](const std::string& text) {
        return std::find(texts.begin(), texts.end(), text) == texts.end();
      });
    }
  }
  return common;
}

}  // namespace

std::vector<NamedNumber> named_numbers(const Scenario& scenario,
                                       const PlannedParameter& parameter) {
  return name_all(scenario, parameter.shard_size(), parameter.dp_size(),
                  parameter.partial_group.size, num_elems(parameter.shape));
}

std::vector<NamedNumber> named_numbers(const Scenario& scenario) {
  return name_all(scenario, 1, 1, 1, 1);
}

std::vector<NamedNumber> named_norm_numbers(const Plan& plan) {
  std::vector<NamedNumber> numbers;
  for (const PlannedParameter& parameter : plan.parameters) {
    for (NamedNumber& number : named_numbers(plan.scenario, parameter)) {
      const bool is_known = std::any_of(numbers.begin(), numbers.end(), [&](const auto& known) {
        return known.text == number.text;
      });
      if (!is_known) numbers.push_back(std::move(number));
    }
  }
  const std::size_t num_plain = numbers.size();
  for (std::size_t i = 0; i < num_plain; ++i) {
    if (numbers[i].value > 0) {
      numbers.push_back({fmt::format("sqrt({})", numbers[i].text), std::sqrt(numbers[i].value)});
    }
  }
  return numbers;
}

std::vector<std::string> explain(double ratio, const std::vector<NamedNumber>& numbers) {
  std::vector<std::string> texts;
  for (const NamedNumber& number : numbers) {
    if (number.value == ratio) texts.push_back(number.text);
  }
  return texts;
}

std::string join(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) {
    if (!joined.empty()) joined += ", ";
    joined += text;
  }
  return joined;
}

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

std::vector<Finding> diagnose(const Plan& plan, std::vector<ShardFailure> failures,
                              FindingCode scale_code, FindingCode value_code) {
  std::vector<Finding> findings;
  const DType dtype = carrier_dtype(plan.scenario);
  for (const FailureGroup& group : group_failures(std::move(failures))) {
    const ShardFailure& first = group.first();
    const PlannedParameter& parameter =
        plan.parameters.at(static_cast<std::size_t>(first.parameter));
    Finding finding{.code = first.ratio ? scale_code : value_code,
                    .param = parameter.name,
                    .step = first.step,
                    .expected = first.expected,
                    .got = first.got,
                    .explains = explain_group(plan, group)};
    locate(finding, plan.mesh(), first.rank);
    finding.index = first.index;
    if (first.ratio) finding.ratio = first.ratio->value;
    const std::string step =
        first.step ? fmt::format("step {}", *first.step) : std::string("before step 0");
    finding.message = fmt::format(
        "{} on {}, {}, index {}: {} expected, {} got, {}{}{}", first.subject,
        describe_rank(plan.mesh(), first.rank), step, to_string(finding.index),
        format_value(first.expected, dtype), format_value(first.got, dtype), describe_error(first),
        describe_extent(first, finding.explains), describe_others(group, plan.mesh().num_ranks()));
    if (!std::isfinite(first.got) && has_float16(plan.scenario))
      finding.message += "; float16 ends at 65504: numbers may have overflowed";
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace hpsim
