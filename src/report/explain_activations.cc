#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plan/recomputation.h"
#include "plan/token_exchange.h"
#include "report/explain_report.h"
#include "report/json.h"
#include "report/json_parts.h"
#include "report/table.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

constexpr std::size_t kMaxModules = 24;

/// Layouts in few letters: "[S(0), R, P]".
std::string brief(const std::vector<Placement>& layout) {
  std::vector<std::string> texts;
  for (const Placement& placement : layout) {
    if (std::holds_alternative<Replicate>(placement)) {
      texts.emplace_back("R");
    } else if (std::holds_alternative<Partial>(placement)) {
      texts.emplace_back("P");
    } else if (const auto* shard = std::get_if<Shard>(&placement)) {
      texts.push_back(fmt::format("S({})", shard->dim));
    } else {
      texts.push_back(to_string(placement));
    }
  }
  return fmt::format("{}", fmt::join(texts, " "));
}

std::vector<std::string> texts_of(const Plan& plan, const std::vector<int>& values) {
  std::vector<std::string> texts;
  for (const int value : values) {
    if (value < 0) continue;
    std::string text = brief(plan.values[static_cast<std::size_t>(value)].layout);
    if (texts.empty() || texts.back() != text) texts.push_back(std::move(text));
  }
  return texts;
}

/// "all_gather tp, slice ep"
std::string changes_text(const Plan& plan, const std::vector<int>& redistributions) {
  std::vector<std::string> texts;
  for (const int r : redistributions) {
    const Transition& transition = plan.redistributions[static_cast<std::size_t>(r)].transition;
    if (transition.op == RedistributeOp::Keep) continue;
    texts.push_back(
        fmt::format("{} {}", name_of(transition.op), plan.mesh().names(transition.mesh_dims)));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

/// "all_to_all ep" of a module whose positions go to their experts, and of their way back; empty
/// where nothing is exchanged.
std::string exchange_text(const Plan& plan, int module) {
  const ModuleSpec& spec = plan.scenario.model.modules[static_cast<std::size_t>(module)];
  if (spec.type != ModuleType::Experts) return {};
  const MeshDims dims = exchange_dims(plan, module);
  if (dims.empty()) return {};
  return fmt::format("{} {}", name_of(CollectiveOp::AllToAll), plan.mesh().names(dims));
}

std::string listed(std::vector<std::string> texts) {
  std::erase(texts, std::string());
  return fmt::format("{}", fmt::join(texts, ", "));
}

/// Whether backward computes a module again.
bool is_recomputed(const Plan& plan, int module) {
  const int part = recomputed_part_of(plan.scenario, module);
  return part >= 0 &&
         is_computed_again(plan, plan.scenario.training.recomputed[static_cast<std::size_t>(part)]);
}

/// Which parts backward computes again, with all that stands before and after their modules.
std::string recomputed_line(const Plan& plan) {
  if (plan.scenario.training.recomputed.empty()) return {};
  return wrapped(
      recomputed_text(recomputed_parts(plan), ", with what is sent before and after their modules"),
      kIndent, kTextWidth);
}

std::vector<int> joined(std::vector<int> a, const std::vector<int>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

std::string activations_text(const Plan& plan, const TextStyle& style) {
  if (plan.modules.empty()) return {};
  Table table({{"module", false, true},
               {"takes"},
               {"before it", false, true},
               {"gives"},
               {"after it", false, true},
               {"in backward", false, true}});
  const std::size_t count = plan.modules.size();
  const bool folds = !style.full && count > kMaxModules;
  const std::size_t shown = folds ? kMaxModules - 1 : count;
  for (std::size_t m = 0; m < shown; ++m) {
    const ModulePlan& planned = plan.modules[m];
    const std::vector<int> backward = joined(planned.before_backward, planned.after_backward);
    const std::string exchange = exchange_text(plan, static_cast<int>(m));
    const bool sends_back = !planned.input_gradients.empty() && planned.input_gradients[0] >= 0;
    table.add_row({{module_name(plan.scenario.model, static_cast<int>(m))},
                   {fmt::format("{}", fmt::join(texts_of(plan, planned.inputs), ", "))},
                   {listed({changes_text(plan, planned.before), exchange})},
                   {brief(planned.layout.given)},
                   {listed({exchange, changes_text(plan, planned.after)})},
                   {listed({exchange + (exchange.empty() || !sends_back ? "" : ", twice"),
                            changes_text(plan, backward)})}});
  }
  if (folds) {
    table.add_line(fmt::format("… {} more modules; --full tells all of them", count - shown));
  }
  if (!folds) {
    table.add_row({{"(loss)"},
                   {brief(plan.output)},
                   {changes_text(plan, plan.loss.before)},
                   {""},
                   {""},
                   {changes_text(plan, plan.loss.after)}});
  }
  const std::string legend =
      fmt::format("activations along {}: S(0) by samples, {}S({}) by features, R whole, P terms",
                  fmt::join(plan.mesh().names(), ", "),
                  plan.scenario.model.positions.empty() ? "" : "S(1) by positions, ",
                  feature_dim(plan.scenario.model));
  return "\n" + wrapped(legend, 0, kTextWidth) + "\n" +
         table.text(kIndent, kTextWidth, style.color) + recomputed_line(plan);
}

nlohmann::ordered_json activations_json(const Plan& plan) {
  Json json = Json::array();
  const auto layouts = [&](const std::vector<int>& values) {
    Json list = Json::array();
    for (const int value : values) {
      list.push_back(value < 0
                         ? Json(nullptr)
                         : placements_json(plan.values[static_cast<std::size_t>(value)].layout,
                                           Vocabulary::Ragged));
    }
    return list;
  };
  const auto changes = [&](const std::vector<int>& redistributions) {
    Json list = Json::array();
    for (const int r : redistributions) {
      const Redistribution& change = plan.redistributions[static_cast<std::size_t>(r)];
      list.push_back({{"op", name_of(change.transition.op)},
                      {"activation", activation_text(plan, change)},
                      {"mesh_dims", names_of_dims(plan.mesh(), change.transition.mesh_dims)}});
    }
    return list;
  };
  for (std::size_t m = 0; m < plan.modules.size(); ++m) {
    const ModulePlan& planned = plan.modules[m];
    Json& entry = json.emplace_back(
        Json({{"module", module_name(plan.scenario.model, static_cast<int>(m))},
              {"type", name_of(plan.scenario.model.modules[m].type)},
              {"inputs", layouts(planned.inputs)},
              {"output", placements_json(planned.layout.output, Vocabulary::Ragged)},
              {"given", placements_json(planned.layout.given, Vocabulary::Ragged)},
              {"input_gradients", layouts(planned.input_gradients)},
              {"redistributions",
               {{"before", changes(planned.before)},
                {"after", changes(planned.after)},
                {"backward", changes(joined(planned.before_backward, planned.after_backward))}}}}));
    if (is_recomputed(plan, static_cast<int>(m))) entry["recomputed"] = true;
    if (plan.scenario.model.modules[m].type == ModuleType::Experts) {
      entry["exchange"] = names_of_dims(plan.mesh(), exchange_dims(plan, static_cast<int>(m)));
    }
  }
  return json;
}

}  // namespace hpsim
