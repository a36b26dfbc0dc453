#include "verify/named_numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "scenario/precision.h"
#include "tensor/shape.h"

namespace hpsim {
namespace {

/// Collects numbers in the order in which they are added.
class NumberList {
 public:
  /// `is_factor`: products are made with it.
  void add(const std::string& symbol, double value, bool is_factor = true) {
    if (value == 1) return;
    const std::string factor = is_factor ? symbol : "";
    numbers_.push_back({fmt::format("{}={}", symbol, value), value, factor, false});
    inverses_.push_back({fmt::format("1/{}=1/{}", symbol, value), 1 / value, factor, true});
  }
  [[nodiscard]] std::vector<NamedNumber> take() {
    numbers_.insert(numbers_.end(), std::make_move_iterator(inverses_.begin()),
                    std::make_move_iterator(inverses_.end()));
    return std::move(numbers_);
  }

 private:
  std::vector<NamedNumber> numbers_;
  std::vector<NamedNumber> inverses_;
};

double size_along(const Scenario& scenario, std::optional<int> dim) {
  return dim ? static_cast<double>(scenario.mesh.size(*dim)) : 1;
}

void add_experts(const Scenario& scenario, NumberList& list) {
  const double tp = size_along(scenario, scenario.roles.tp_dim);
  const double ep = size_along(scenario, scenario.roles.ep_dim);
  list.add("ep", ep);
  if (ep > 1 && tp > 1) list.add("ep/tp", ep / tp, false);
}

/// Sizes of the groups of a parameter; of none, all are 1.
struct GroupSizes {
  std::int64_t shards = 1;
  std::int64_t replicas = 1;
  std::int64_t partials = 1;
  bool is_of_experts = false;
  std::int64_t numel = 1;
  double predivision = 1;
};

std::vector<NamedNumber> name_all(const Scenario& scenario, const GroupSizes& sizes) {
  NumberList list;
  if (sizes.is_of_experts) add_experts(scenario, list);
  list.add("D", static_cast<double>(scenario.num_data_ranks()));
  list.add("S", static_cast<double>(sizes.shards));
  list.add("R", static_cast<double>(sizes.replicas));
  if (sizes.shards != 1 && sizes.replicas != 1) {
    list.add("S*R", static_cast<double>(sizes.shards * sizes.replicas), false);
  }
  list.add("tp", size_along(scenario, scenario.roles.tp_dim));
  if (!sizes.is_of_experts) add_experts(scenario, list);
  list.add("M", static_cast<double>(scenario.training.micro_batches));
  list.add("P", static_cast<double>(sizes.partials));
  list.add("F", gradient_divisor(scenario));
  list.add("k", scenario.fully_shard.gradient_scaling_factor);
  list.add("W", static_cast<double>(scenario.mesh.num_ranks()), false);
  list.add("F before the sum", 1 / sizes.predivision, false);
  list.add("numel", mean_divisor(scenario, sizes.numel), false);
  return list.take();
}

bool is_weight_of_experts(const Scenario& scenario, const PlannedParameter& parameter) {
  return std::any_of(
      scenario.parameters.begin(), scenario.parameters.end(), [&](const ParameterSpec& spec) {
        return spec.name == parameter.name && spec.kind == ParameterSpec::Kind::ExpertWeight;
      });
}

DType dtype_of_reductions(const Scenario& scenario, const PlannedParameter& parameter) {
  return scenario.fully_shard.mp_policy.reduce_dtype.value_or(parameter.compute_dtype);
}

std::string product_text(const NamedNumber& a, const NamedNumber& b) {
  const double value = a.value * b.value;
  if (a.is_inverse && b.is_inverse) {
    return fmt::format("1/({}*{})=1/{:.6g}", a.symbol, b.symbol, 1 / value);
  }
  if (a.is_inverse) return fmt::format("{}/{}={:.6g}", b.symbol, a.symbol, value);
  return fmt::format("{}{}{}={:.6g}", a.symbol, b.is_inverse ? "/" : "*", b.symbol, value);
}

void add_text(std::vector<std::string>& texts, std::string text) {
  if (texts.size() >= kMaxExplanations) return;
  if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(std::move(text));
}

}  // namespace

std::vector<NamedNumber> named_numbers(const Scenario& scenario,
                                       const PlannedParameter& parameter) {
  return name_all(
      scenario,
      {parameter.shard_size(), parameter.dp_size(), parameter.partial_group.size,
       is_weight_of_experts(scenario, parameter), num_elems(parameter.shape),
       predivision(dtype_of_reductions(scenario, parameter), gradient_divisor(scenario))});
}

std::vector<NamedNumber> named_numbers(const Scenario& scenario) {
  return name_all(scenario, {});
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
  // How large one parameter is says nothing of a norm over all.
  std::erase_if(numbers, [](const NamedNumber& number) {
    return number.text.find("numel") != std::string::npos;
  });
  const std::size_t num_plain = numbers.size();
  for (std::size_t i = 0; i < num_plain; ++i) {
    if (numbers[i].value <= 0) continue;
    numbers.push_back(
        {fmt::format("sqrt({})", numbers[i].text), std::sqrt(numbers[i].value), "", false});
  }
  return numbers;
}

std::vector<std::string> explain(double ratio, const std::vector<NamedNumber>& numbers,
                                 double uncertainty) {
  std::vector<std::string> texts;
  const auto is_it = [&](double value) { return std::abs(value - ratio) <= uncertainty; };
  for (const NamedNumber& number : numbers) {
    if (is_it(number.value)) add_text(texts, number.text);
  }
  if (!texts.empty()) return texts;
  // A product in float64 may be off by its own rounding.
  uncertainty += 4 * std::ldexp(std::abs(ratio), -53);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    for (std::size_t j = i + 1; j < numbers.size(); ++j) {
      const NamedNumber& a = numbers[i];
      const NamedNumber& b = numbers[j];
      if (a.symbol.empty() || b.symbol.empty() || a.symbol == b.symbol) continue;
      if (is_it(a.value * b.value)) add_text(texts, product_text(a, b));
    }
  }
  return texts;
}

std::string join(const std::vector<std::string>& texts) {
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace hpsim
