#include <fmt/format.h>

#include <map>
#include <utility>

#include "model/units.h"
#include "scenario/pattern_matcher.h"
#include "scenario/sections.h"

namespace hpsim {
namespace {

constexpr const char* kKey = "activation_checkpointing";

/// Parts that the patterns name, each with the first pattern that does. Outer ones come before
/// those that lie in them.
std::map<std::size_t, JsonCursor> named_parts(const ObjectReader& training,
                                              const std::vector<ModelPart>& parts) {
  std::map<std::size_t, JsonCursor> named;
  const auto patterns = training.strings(kKey);
  const std::vector<JsonCursor> elements = training.elements(kKey);
  PatternMatcher matcher(names_of(parts), "module", training.problems());
  for (std::size_t i = 0; patterns && i < patterns->size(); ++i) {
    for (const int part : matcher.matches_of((*patterns)[i], elements[i]))
      named.emplace(static_cast<std::size_t>(part), elements[i]);
  }
  return named;
}

}  // namespace

std::vector<RecomputedSpec> read_recomputed(const ObjectReader& scenario, const ModelSpec& model) {
  const ObjectReader training = scenario.object("training", "Training");
  if (!training.has(kKey) || training.elements(kKey).empty()) return {};
  if (model.is_elementwise()) {
    training.problems().add(training.where(kKey),
                            "the scenario has \"parameters\", and no modules to compute again",
                            "leave it out, or write a \"model\"");
    return {};
  }
  const std::vector<ModelPart> parts = model_parts(model);
  std::vector<RecomputedSpec> recomputed;
  const ModelPart* outer = nullptr;
  bool is_told = false;  // of the outer part
  for (const auto& [index, at] : named_parts(training, parts)) {
    const ModelPart& part = parts[index];
    if (outer != nullptr && part.first < outer->end) {
      if (std::exchange(is_told, true)) continue;
      training.problems().add(
          at,
          fmt::format("{} lies in {}, which is computed again as a whole", in_quotes(part.name),
                      in_quotes(outer->name)),
          "name one of the two, or patterns that match one of them; * matches no dot, ** does");
      continue;
    }
    outer = &part;
    is_told = false;
    recomputed.push_back({part.first, part.end});
  }
  return recomputed;
}

}  // namespace hpsim
