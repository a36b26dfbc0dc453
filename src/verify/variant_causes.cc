#include "verify/variant_causes.h"

#include <fmt/format.h>

#include <utility>

#include "verify/compare_shard.h"
#include "verify/named_numbers.h"

namespace hpsim {
namespace {

/// Whether passes have different numbers of valid positions.
bool has_unequal_counts(const Scenario& scenario) {
  if (scenario.data.tokens.empty()) return false;
  const std::int64_t first = scenario.data.tokens[0].at(0);
  for (const auto& of_rank : scenario.data.tokens) {
    for (const std::int64_t count : of_rank) {
      if (count != first) return true;
    }
  }
  return false;
}

void add_normalizations(const Scenario& scenario, const CauseSources::Tensors& parameters,
                        std::vector<Variant>& variants) {
  if (scenario.is_exact()) return;
  const auto add = [&](LossNormalization normalization, const char* text) {
    if (normalization == scenario.training.loss_normalization) return;
    Variant variant{text, scenario, parameters};
    variant.scenario.training.loss_normalization = normalization;
    variants.push_back(std::move(variant));
  };
  if (has_unequal_counts(scenario)) {
    add(LossNormalization::LocalMean,
        "is the mean of the means of micro-batches, as \"local_mean\" gives it");
  }
  add(LossNormalization::GlobalTokens,
      "is divided by the terms of all ranks, as \"global_tokens\" gives it");
  add(LossNormalization::Sum, "is not divided by any number of terms, as \"sum\" gives it");
}

/// Biases of row-wise layers: every rank of tp has one whole.
std::vector<int> rowwise_biases(const Scenario& scenario) {
  std::vector<int> biases;
  for (std::size_t m = 0; m < scenario.styles.size() && m < scenario.model.modules.size(); ++m) {
    const ParallelStyle style = scenario.styles[m];
    if (style != ParallelStyle::Rowwise && style != ParallelStyle::RowwiseSp) continue;
    for (std::size_t p = 0; p < scenario.parameters.size(); ++p) {
      if (scenario.parameters[p].name == scenario.model.modules[m].name + ".bias") {
        biases.push_back(static_cast<int>(p));
      }
    }
  }
  return biases;
}

void add_biases(const Scenario& scenario, const CauseSources::Tensors& parameters,
                std::vector<Variant>& variants) {
  constexpr std::size_t kMostAlone = 8;
  if (!scenario.roles.tp_dim) return;
  const std::int64_t tp = scenario.mesh.size(*scenario.roles.tp_dim);
  const std::vector<int> biases = rowwise_biases(scenario);
  if (tp == 1 || biases.empty()) return;
  const auto add = [&](const std::vector<int>& added, const std::string& name) {
    Variant variant{fmt::format("is what {} that every rank of {} adds: the difference is "
                                "(tp-1)*bias, tp-1={}",
                                name, scenario.mesh.name(*scenario.roles.tp_dim), tp - 1),
                    scenario, parameters};
    for (const int p : added) {
      for (double& value : variant.parameters[static_cast<std::size_t>(p)])
        value *= static_cast<double>(tp);
    }
    variants.push_back(std::move(variant));
  };
  const auto name_of = [&](int p) {
    return fmt::format("a bias gives, \"{}\",",
                       scenario.parameters[static_cast<std::size_t>(p)].name);
  };
  if (biases.size() == 1) return add(biases, name_of(biases[0]));
  add(biases, fmt::format("all {} row-wise biases give", biases.size()));
  for (std::size_t i = 0; i < std::min(biases.size(), kMostAlone); ++i)
    add({biases[i]}, name_of(biases[i]));
}

void add_tokens(const Scenario& scenario, const CauseSources::Tensors& parameters,
                std::vector<Variant>& variants) {
  if (scenario.data.tokens.empty()) return;
  Variant variant{"counts positions that are not valid", scenario, parameters};
  variant.scenario.data.tokens.clear();
  variants.push_back(std::move(variant));
}

}  // namespace

std::vector<Variant> variants_of(const Evidence& evidence, std::int64_t step) {
  const Scenario& scenario = evidence.plan.scenario;
  const CauseSources::Tensors parameters = parameters_before(evidence, step);
  std::vector<Variant> variants;
  add_biases(scenario, parameters, variants);
  add_normalizations(scenario, parameters, variants);
  add_tokens(scenario, parameters, variants);
  return variants;
}

std::vector<std::string> loss_variants(const Evidence& evidence, std::int64_t step, double got) {
  std::vector<std::string> texts;
  if (!evidence.sources.gradients) return texts;
  const ErrorBound bound = bound_of(evidence.reference);
  const auto num_ranks = static_cast<double>(evidence.plan.scenario.num_data_ranks());
  for (const Variant& variant : variants_of(evidence, step)) {
    const ReferenceScalar loss =
        evidence.sources.gradients(variant.scenario, step, variant.parameters).loss;
    for (const double factor : {1.0, num_ranks, 1 / num_ranks}) {
      const double value = factor * loss.value;
      if (!(std::abs(got - value) <= bound.at(value, std::abs(factor) * loss.spread))) continue;
      texts.push_back(fmt::format("{} ({:.9g}{})", variant.text, loss.value,
                                  factor == 1 ? "" : fmt::format(", times {:.6g}", factor)));
      break;
    }
    if (texts.size() == kMaxExplanations) break;
  }
  return texts;
}

std::vector<std::string> gradient_variants(const Suspect& suspect) {
  std::vector<std::string> texts;
  const Evidence& evidence = suspect.evidence;
  if (!evidence.sources.gradients || !suspect.place.step) return texts;
  const auto p = static_cast<std::size_t>(suspect.place.parameter);
  const ErrorBound bound = bound_of(evidence.reference);
  for (const Variant& variant : variants_of(evidence, *suspect.place.step)) {
    const ReferenceTensor tensor =
        evidence.sources.gradients(variant.scenario, *suspect.place.step, variant.parameters)
            .gradients.at(p);
    const Shape& shape = suspect.parameter().shape;
    if (tensor.value.empty()) continue;
    const GatheredBoxes value(tensor.value, shape, suspect.boxes);
    const GatheredBoxes spread(tensor.spread, shape, suspect.boxes);
    const bool is_it = suspect.agrees(
        [&](std::size_t i) { return value.values()[i]; },
        [&](std::size_t i) { return bound.at(value.values()[i], spread.values()[i]); });
    if (is_it) texts.push_back(variant.text);
    if (texts.size() == kMaxExplanations) break;
  }
  return texts;
}

}  // namespace hpsim
