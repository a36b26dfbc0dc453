#include "plan/scale_names.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>

namespace hpsim {
namespace {

struct NamedFactor {
  std::string text;
  double value = 1;
};

/// Those that are not 1, then their inverses.
std::vector<NamedFactor> factors_of(const Plan& plan, const PlannedParameter& parameter) {
  const Scenario& scenario = plan.scenario;
  std::vector<NamedFactor> factors;
  const auto add = [&](const char* name, double value) {
    if (value != 1) factors.push_back({fmt::format("{}={}", name, value), value});
  };
  const auto add_dim = [&](const char* name, const std::optional<int>& dim) {
    if (dim) add(name, static_cast<double>(plan.mesh().size(*dim)));
  };
  add("W", static_cast<double>(plan.mesh().num_ranks()));
  add("D", static_cast<double>(scenario.num_data_ranks()));
  add("S", static_cast<double>(parameter.shard_size()));
  add("R", static_cast<double>(parameter.dp_size()));
  if (parameter.shard_size() != 1 && parameter.dp_size() != 1)
    add("S*R", static_cast<double>(parameter.rank_size()));
  add_dim("tp", scenario.roles.tp_dim);
  add_dim("ep", scenario.roles.ep_dim);
  add("M", static_cast<double>(scenario.training.micro_batches));
  add("F", gradient_divisor(scenario));
  add("k", scenario.fully_shard.gradient_scaling_factor);
  const std::size_t count = factors.size();
  for (std::size_t i = 0; i < count; ++i)
    factors.push_back({"1/" + factors[i].text.substr(0, factors[i].text.find('=') + 1) + "1/" +
                           factors[i].text.substr(factors[i].text.find('=') + 1),
                       1 / factors[i].value});
  return factors;
}

bool are_equal(double a, double b) {
  return std::abs(a - b) <= 0x1p-40 * std::abs(b);
}

}  // namespace

std::vector<std::string> scale_names(const Plan& plan, int p, double ratio) {
  const std::vector<NamedFactor> factors = factors_of(plan, plan.parameter(p));
  std::vector<std::string> names;
  for (const NamedFactor& factor : factors) {
    if (are_equal(factor.value, ratio)) names.push_back(factor.text);
  }
  if (!names.empty()) return names;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    for (std::size_t j = i; j < factors.size(); ++j) {
      if (are_equal(factors[i].value * factors[j].value, ratio))
        names.push_back(factors[i].text + " times " + factors[j].text);
    }
  }
  return names;
}

}  // namespace hpsim
