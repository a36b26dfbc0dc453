#include "scenario/gradients.h"

#include <algorithm>

namespace hpsim {
namespace {

bool is_active_somewhere(const Scenario& scenario, int module, std::int64_t step,
                         std::int64_t micro_batch) {
  for (std::int64_t rank = 0; rank < scenario.num_data_ranks(); ++rank) {
    if (is_active(scenario, module, step, micro_batch, rank)) return true;
  }
  return false;
}

/// Whether a module that computes with the parameter is active on some data rank.
bool is_used(const Scenario& scenario, int p, std::int64_t step, std::int64_t micro_batch) {
  if (scenario.data.inactive.empty()) return true;
  if (scenario.model.is_elementwise()) return is_active_somewhere(scenario, p, step, micro_batch);
  const ParameterSpec& parameter = scenario.parameters.at(static_cast<std::size_t>(p));
  if (is_active_somewhere(scenario, parameter.module, step, micro_batch)) return true;
  // Modules that are tied to the one that owns it.
  const bool is_bias = parameter.kind == ParameterSpec::Kind::LinearBias;
  for (int m = parameter.module + 1; m < static_cast<int>(scenario.model.modules.size()); ++m) {
    const ModuleSpec& module = scenario.model.modules[static_cast<std::size_t>(m)];
    if (module.tied_to != parameter.module || (is_bias && !module.ties_bias)) continue;
    if (is_active_somewhere(scenario, m, step, micro_batch)) return true;
  }
  return false;
}

}  // namespace

bool is_ever_trained(const Scenario& scenario, int p) {
  return is_trained(scenario, p, scenario.training.steps - 1);
}

bool is_trained(const Scenario& scenario, int p, std::int64_t step) {
  const std::vector<std::int64_t>& from = scenario.training.trained_from;
  return from.empty() || step >= from.at(static_cast<std::size_t>(p));
}

bool is_active(const Scenario& scenario, int module, std::int64_t step, std::int64_t micro_batch,
               std::int64_t data_rank) {
  return std::none_of(
      scenario.data.inactive.begin(), scenario.data.inactive.end(), [&](const InactiveSpec& part) {
        return module >= part.first && module < part.end && part.lists_data_rank(data_rank) &&
               part.lists_pass(step, micro_batch);
      });
}

bool has_gradient(const Scenario& scenario, int p, std::int64_t step, std::int64_t micro_batch) {
  if (!is_trained(scenario, p, step)) return false;
  return scenario.training.reduce_unused || is_used(scenario, p, step, micro_batch);
}

bool has_gradient(const Scenario& scenario, int p, std::int64_t step) {
  if (scenario.data.inactive.empty()) return is_trained(scenario, p, step);
  for (std::int64_t m = 0; m < scenario.training.micro_batches; ++m) {
    if (has_gradient(scenario, p, step, m)) return true;
  }
  return false;
}

std::int64_t num_valid_positions(const Scenario& scenario, std::int64_t data_rank,
                                 std::int64_t micro_batch) {
  const std::vector<std::vector<std::int64_t>>& tokens = scenario.data.tokens;
  if (tokens.empty()) return scenario.micro_batch_size() * num_positions(scenario.model);
  return tokens.at(static_cast<std::size_t>(data_rank)).at(static_cast<std::size_t>(micro_batch));
}

double loss_divisor(const Scenario& scenario, std::int64_t data_rank, std::int64_t micro_batch,
                    std::int64_t terms_per_position) {
  const std::int64_t num_micro_batches = scenario.training.micro_batches;
  switch (scenario.training.loss_normalization) {
    case LossNormalization::Sum:
      break;
    case LossNormalization::LocalMean: {
      const std::int64_t valid = num_valid_positions(scenario, data_rank, micro_batch);
      return mean_divisor(scenario, valid * terms_per_position) *
             mean_divisor(scenario, num_micro_batches);
    }
    case LossNormalization::GlobalTokens: {
      if (scenario.data.tokens.empty()) {
        return mean_divisor(scenario, scenario.training.global_batch *
                                          num_positions(scenario.model) * terms_per_position);
      }
      std::int64_t valid = 0;
      for (const std::vector<std::int64_t>& of_rank : scenario.data.tokens) {
        for (const std::int64_t count : of_rank)
          valid += count;
      }
      return mean_divisor(scenario, valid * terms_per_position);
    }
  }
  return 1;
}

}  // namespace hpsim
