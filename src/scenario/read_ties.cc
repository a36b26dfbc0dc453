#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "model/parameters.h"
#include "scenario/lower_modules.h"

namespace hpsim {
namespace {

/// What is wrong with a tie, and the way out.
struct TieProblem {
  std::string message;
  std::string help;
};

/// What `tied_to` names: a parameter, or a module as a whole.
struct TieTarget {
  std::string name;
  int module = 0;
  bool is_module = false;
};

class TieReader {
 public:
  explicit TieReader(LoweredModel& lowered)
      : lowered_(lowered), parameters_(list_parameters(lowered.model)) {
    for (const ParameterSpec& parameter : parameters_)
      by_name_.emplace(parameter.name, &parameter);
    for (std::size_t m = 0; m < lowered.model.modules.size(); ++m)
      modules_by_name_.emplace(lowered.model.modules[m].name, static_cast<int>(m));
  }

  void read() {
    std::set<const ModuleNode*> told;
    for (std::size_t m = 0; m < lowered_.nodes.size(); ++m) {
      const ModuleNode& node = *lowered_.nodes[m];
      if (node.type() != "linear" && node.type() != "embedding") continue;
      if (!node.reader.has("tied_to") || told.count(&node) != 0) continue;
      const auto target = node.reader.string("tied_to");
      if (!target) continue;
      const auto problem = tie(m, *target);
      if (!problem) continue;
      told.insert(&node);
      node.reader.problems().add(node.reader.where("tied_to"), problem->message, problem->help);
    }
  }

 private:
  std::optional<TieProblem> tie(std::size_t m, const std::string& name) {
    TieTarget target;
    if (auto problem = find(m, name, target)) return problem;
    if (auto problem = check_order(m, target)) return problem;
    if (auto problem = check_sizes(m, target)) return problem;
    ModuleSpec& module = spec(static_cast<int>(m));
    if (target.is_module) {
      if (auto problem = check_bias(m, target)) return problem;
      module.bias = spec(target.module).bias;
      module.ties_bias = true;
    }
    module.tied_to = target.module;
    return std::nullopt;
  }

  std::optional<TieProblem> find(std::size_t m, const std::string& name, TieTarget& target) {
    const std::string own = in_quotes(spec(static_cast<int>(m)).name + ".weight");
    if (const auto found = by_name_.find(name); found != by_name_.end()) {
      target = {name, found->second->module, false};
      if (is_weight(*found->second)) return std::nullopt;
      return TieProblem{fmt::format("{} is tied to {}, which is no weight of a linear or embedding",
                                    own, in_quotes(name)),
                        "name the weight of a linear or embedding"};
    }
    if (const auto found = modules_by_name_.find(name); found != modules_by_name_.end()) {
      target = {name, found->second, true};
      const ModuleType type = spec(target.module).type;
      if (type == ModuleType::Linear || type == ModuleType::Embedding) return std::nullopt;
      return TieProblem{fmt::format("{} is tied to {} {}, but only a linear or embedding has a "
                                    "weight to share",
                                    own_name(m), name_of(type), in_quotes(name)),
                        "name a linear or embedding, or its weight"};
    }
    return TieProblem{
        fmt::format("{} is tied to {}, but no parameter, linear or embedding is called so", own,
                    in_quotes(name)),
        fmt::format("the parameters are {}", quoted_list(names_of(parameters_)))};
  }

  /// What a module is called, by its weight where only that is shared.
  [[nodiscard]] std::string called(int module, const TieTarget& target) {
    return in_quotes(spec(module).name + (target.is_module ? "" : ".weight"));
  }

  std::optional<TieProblem> check_order(std::size_t m, const TieTarget& target) {
    const std::string own = called(static_cast<int>(m), target);
    const ModuleSpec& owner = spec(target.module);
    if (target.module == static_cast<int>(m)) {
      return TieProblem{fmt::format("{} is tied to itself", own),
                        fmt::format("name {}another module, or leave \"tied_to\" out",
                                    target.is_module ? "" : "the weight of ")};
    }
    if (target.module > static_cast<int>(m)) {
      return TieProblem{
          fmt::format("{} is tied to {}, {} comes later", own, in_quotes(target.name),
                      target.is_module ? "which" : "of a module that"),
          fmt::format("tie {} to {} instead: the first module that uses a weight owns it",
                      in_quotes(owner.name), own)};
    }
    if (owner.tied_to < 0) return std::nullopt;
    TieTarget end = target;
    end.is_module = target.is_module && owner.ties_bias;
    return TieProblem{fmt::format("{} is tied to {}, which is tied itself to {}", own,
                                  in_quotes(target.name), called(owner.tied_to, end)),
                      fmt::format("write {}", called(owner.tied_to, end))};
  }

  std::optional<TieProblem> check_sizes(std::size_t m, const TieTarget& target) {
    const ModuleSpec& module = spec(static_cast<int>(m));
    const ModuleSpec& owner = spec(target.module);
    if (target.is_module && module.type != owner.type) {
      return TieProblem{
          fmt::format("{} {} cannot be {} {}, used once more", name_of(module.type),
                      in_quotes(module.name), name_of(owner.type), in_quotes(target.name)),
          fmt::format("write {} to share the weight alone", in_quotes(target.name + ".weight"))};
    }
    const Shape shape = weight_shape(module);
    const Shape owned = weight_shape(owner);
    if (shape == owned || is_unsure(m) || is_unsure(static_cast<std::size_t>(target.module))) {
      return std::nullopt;
    }
    const std::string own = in_quotes(module.name + ".weight");
    return TieProblem{
        fmt::format("{} has shape {}, but {}, which it is tied to, has shape {}", own,
                    to_string(shape), in_quotes(owner.name + ".weight"), to_string(owned)),
        "a linear's weight is [out_features, in_features], an embedding's "
        "[num_embeddings, embedding_dim]; make them the same"};
  }

  /// A module used once more has the bias of that module, or none.
  std::optional<TieProblem> check_bias(std::size_t m, const TieTarget& target) {
    const ObjectReader& reader = lowered_.nodes[m]->reader;
    if (reader.variant() != "linear" || !reader.has("bias")) return std::nullopt;
    const auto given = reader.boolean("bias");
    const bool owned = spec(target.module).bias;
    if (!given || *given == owned) return std::nullopt;
    return TieProblem{
        fmt::format("{} is {} used once more, which has {} bias, but its \"bias\" is {}",
                    own_name(m), in_quotes(target.name), owned ? "a" : "no", *given),
        fmt::format("leave \"bias\" out, or write {} to share the weight alone",
                    in_quotes(target.name + ".weight"))};
  }

  static bool is_weight(const ParameterSpec& parameter) {
    return parameter.kind == ParameterSpec::Kind::LinearWeight ||
           parameter.kind == ParameterSpec::Kind::EmbeddingWeight;
  }
  static Shape weight_shape(const ModuleSpec& module) {
    return module.type == ModuleType::Linear ? Shape{module.out_features, module.in_features}
                                             : Shape{module.in_features, module.out_features};
  }
  [[nodiscard]] ModuleSpec& spec(int module) {
    return lowered_.model.modules[static_cast<std::size_t>(module)];
  }
  [[nodiscard]] std::string own_name(std::size_t m) {
    return in_quotes(spec(static_cast<int>(m)).name);
  }

  /// Whether sizes of the module are wrong.
  [[nodiscard]] bool is_unsure(std::size_t m) const {
    const ObjectReader& reader = lowered_.nodes[m]->reader;
    for (const char* key : {"in_features", "out_features", "num_embeddings", "embedding_dim"}) {
      if (reader.is_bad(key)) return true;
    }
    return false;
  }

  LoweredModel& lowered_;
  std::vector<ParameterSpec> parameters_;  ///< as if nothing were tied
  std::map<std::string, const ParameterSpec*> by_name_;
  std::map<std::string, int> modules_by_name_;
};

}  // namespace

void read_ties(LoweredModel& lowered) {
  const bool has_ties =
      std::any_of(lowered.nodes.begin(), lowered.nodes.end(),
                  [](const ModuleNode* node) { return node->reader.has("tied_to"); });
  if (has_ties) TieReader(lowered).read();
}

}  // namespace hpsim
