#include "scenario/check_modules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "model/parameters.h"

namespace hpsim {
namespace {

/// The keys that say how many features a module takes, and gives; null: as many as come, or tokens.
struct FeatureKeys {
  const char* taken = nullptr;
  const char* given = nullptr;
};

FeatureKeys feature_keys(std::string_view type) {
  if (type == "linear") return {"in_features", "out_features"};
  if (type == "embedding") return {nullptr, "embedding_dim"};
  for (const char* keeps : {"layer_norm", "rms_norm", "attention", "mlp", "moe"}) {
    if (type == keeps) return {"dim", "dim"};
  }
  return {};
}

/// The first module that has features of its own.
const ModuleNode* first_taker(const std::vector<ModuleNode>& modules) {
  for (const ModuleNode& module : modules) {
    if (feature_keys(module.type()).given != nullptr) return &module;
    if (const ModuleNode* const inner = first_taker(module.children)) return inner;
  }
  return nullptr;
}

/// Follows the features from module to module.
class FeatureFlow {
 public:
  void pass(const std::vector<ModuleNode>& modules) {
    for (const ModuleNode& module : modules)
      pass(module);
  }

 private:
  /// Who said how many features there are.
  struct Source {
    std::int64_t features = 0;
    const ModuleNode* node = nullptr;
    const char* key = nullptr;
  };

  static std::optional<Source> source(const ModuleNode& node, const char* key) {
    const auto features = node.reader.integer(key);
    if (!features) return std::nullopt;
    return Source{*features, &node, key};
  }

  void pass(const ModuleNode& node) {
    if (node.children.empty()) return pass_leaf(node);
    pass(node.children);
    const bool is_repeated =
        node.type() == "repeat" && node.reader.integer("count").value_or(1) > 1;
    if (node.type() != "residual" && !is_repeated) return;
    const std::optional<Source> taken = first_taken(node.children);
    if (!taken || !now_ || taken->features == now_->features) return;
    const std::string source = in_quotes(now_->node->name);
    node.reader.problems().add(
        now_->node->reader.where(now_->key),
        is_repeated
            ? fmt::format("{} is repeated, but takes {} features, and {} gives {}",
                          in_quotes(node.children.front().name), taken->features, source,
                          now_->features)
            : fmt::format("{} gives {} features, but residual {} adds them to its input of {}",
                          source, now_->features, in_quotes(node.name), taken->features),
        fmt::format("make both the same number: {} {} in {}, or {} {} in {}", now_->key,
                    taken->features, source, taken->key, now_->features,
                    in_quotes(taken->node->name)));
    now_.reset();
  }

  void pass_leaf(const ModuleNode& node) {
    const FeatureKeys keys = feature_keys(node.type());
    if (keys.given == nullptr) return;
    const auto taken = keys.taken == nullptr ? std::nullopt : source(node, keys.taken);
    if (taken && now_ && taken->features != now_->features) {
      const std::string before = in_quotes(now_->node->name);
      node.reader.problems().add(
          node.reader.where(keys.taken),
          fmt::format("{} takes {} features, but {} before it gives {}", in_quotes(node.name),
                      taken->features, before, now_->features),
          fmt::format("make both the same number: {} {}, or {} {} in {}", keys.taken,
                      now_->features, now_->key, taken->features, before));
      // The mistake is told: what this module says it gives is what goes on.
    }
    now_ = given_by(node, keys, taken);
  }

  static std::optional<Source> given_by(const ModuleNode& node, const FeatureKeys& keys,
                                        const std::optional<Source>& taken) {
    return taken && std::string_view(keys.taken) == keys.given ? taken : source(node, keys.given);
  }

  /// Nothing if the number is wrong, or the first module that takes one takes tokens.
  static std::optional<Source> first_taken(const std::vector<ModuleNode>& modules) {
    const ModuleNode* const taker = first_taker(modules);
    if (taker == nullptr || feature_keys(taker->type()).taken == nullptr) return std::nullopt;
    return source(*taker, feature_keys(taker->type()).taken);
  }

  std::optional<Source> now_;
};

/// What a sample_shape of this model looks like, in a message.
std::string shape_example(bool is_tokens, bool has_attention, std::int64_t features) {
  const std::string shape = is_tokens       ? "[16]"
                            : has_attention ? fmt::format("[16, {}]", features)
                                            : fmt::format("[{}]", features);
  return fmt::format("\"data\": {{\"sample_shape\": {}}}{}", shape,
                     is_tokens || has_attention ? " for sequences of 16" : "");
}

/// The first operation of that type; nothing if there is none.
std::optional<std::size_t> find_operation(const ModelSpec& model, ModuleType type) {
  const auto found = std::find_if(model.modules.begin(), model.modules.end(),
                                  [type](const ModuleSpec& module) { return module.type == type; });
  if (found == model.modules.end()) return std::nullopt;
  return static_cast<std::size_t>(found - model.modules.begin());
}

}  // namespace

void check_heads(const std::vector<ModuleNode>& modules) {
  for (const ModuleNode& module : modules) {
    check_heads(module.children);
    if (module.type() != "attention") continue;
    const ObjectReader& reader = module.reader;
    const auto dim = reader.integer("dim");
    const auto heads = reader.integer("heads");
    const auto kv_heads = reader.integer("kv_heads");
    if (dim && heads && *dim % *heads != 0) {
      reader.problems().add(
          reader.where("heads"),
          fmt::format("the dim of {}, {}, does not divide into {} heads: {} remain",
                      in_quotes(module.name), *dim, *heads, *dim % *heads),
          fmt::format("write a divisor of {}", *dim));
    }
    if (heads && kv_heads && *heads % *kv_heads != 0) {
      reader.problems().add(
          reader.where("kv_heads"),
          fmt::format("the {} heads of {} do not divide into groups for {} kv_heads: {} remain",
                      *heads, in_quotes(module.name), *kv_heads, *heads % *kv_heads),
          fmt::format("write a divisor of {}", *heads));
    }
  }
}

void check_experts(const std::vector<ModuleNode>& modules) {
  for (const ModuleNode& module : modules) {
    check_experts(module.children);
    if (module.type() != "moe") continue;
    const ObjectReader& reader = module.reader;
    const auto experts = reader.integer("experts");
    const auto top_k = reader.integer("top_k");
    constexpr std::int64_t kMostExperts = 65536;  // every rank counts what goes to each
    if (experts && *experts > kMostExperts) {
      reader.problems().add(reader.where("experts"),
                            fmt::format("{} has {} experts; the limit is {}",
                                        in_quotes(module.name), *experts, kMostExperts),
                            "write fewer");
      continue;
    }
    if (!experts || !top_k || *top_k <= *experts) continue;
    reader.problems().add(reader.where("top_k"),
                          fmt::format("{} sends every position to {} experts, but has {}",
                                      in_quotes(module.name), *top_k, *experts),
                          fmt::format("write at most {}", *experts));
  }
}

void check_features(const std::vector<ModuleNode>& modules) {
  FeatureFlow().pass(modules);
}

void check_embeddings(const LoweredModel& lowered) {
  const std::vector<ModuleSpec>& modules = lowered.model.modules;
  std::set<const ModuleNode*> told;
  for (std::size_t m = 1; m < modules.size(); ++m) {
    const ModuleNode& node = *lowered.nodes[m];
    if (modules[m].type == ModuleType::Embedding && told.insert(&node).second) {
      node.reader.problems().add(
          node.reader.where("type"),
          fmt::format("embedding {} takes tokens, but {} before it gives features",
                      in_quotes(modules[m].name), in_quotes(modules[m - 1].name)),
          "only the first module may be an embedding: tokens are the model's input");
    }
    const std::vector<int>& inputs = modules[m].inputs;
    const ModuleNode& first = *lowered.nodes.front();
    if (modules.front().type == ModuleType::Embedding &&
        std::find(inputs.begin(), inputs.end(), 0) != inputs.end() && told.insert(&first).second) {
      first.reader.problems().add(
          first.reader.where("type"),
          fmt::format("embedding {} takes tokens, which {} would add to features",
                      in_quotes(first.name), in_quotes(node.name)),
          "put the embedding before the residual");
    }
  }
}

Shape read_positions(const ObjectReader& scenario, const std::vector<ModuleNode>& modules,
                     const LoweredModel& lowered) {
  const ObjectReader data = scenario.object("data", "Data");
  if (data.is_bad("sample_shape")) return {};
  const auto attention = find_operation(lowered.model, ModuleType::AttentionCore);
  const bool is_tokens = lowered.model.modules.front().type == ModuleType::Embedding;
  const std::int64_t features = features_along(lowered.model).front();
  const std::string way_out = shape_example(is_tokens, attention.has_value(), features);
  const bool may_be_missing = modules.front().type() == "linear";
  const auto complain = [&](std::string message, std::string help) {
    scenario.problems().add(data.where("sample_shape"), std::move(message), std::move(help));
    return Shape{};
  };
  const auto given = data.integers("sample_shape");
  if (!given && !may_be_missing) {
    const ModuleNode& first = modules.front();
    scenario.problems().add(
        scenario.has("data") ? data.where("sample_shape") : first.reader.where("type"),
        fmt::format("data.sample_shape is missing: the first module, {}, is no linear",
                    in_quotes(first.name)),
        "add " + way_out);
    return {};
  }
  Shape positions = given.value_or(Shape{features});
  const std::size_t most_dims = is_tokens ? 1 : 2;
  if (positions.empty()) return complain("samples have no dims", "write " + way_out);
  if (positions.size() > most_dims) {
    return complain(
        fmt::format("not supported yet: samples of {} dims, {}{}", positions.size(),
                    to_string(positions), is_tokens ? ", of tokens" : ""),
        fmt::format("this version takes {}, such as {}",
                    is_tokens ? "[sequence]" : "[features] or [sequence, features]", way_out));
  }
  if (is_tokens) return positions;
  const ModuleNode& taker = *first_taker(modules);
  const char* const key = feature_keys(taker.type()).taken;  // null: a misplaced embedding
  const bool is_known = key != nullptr && !taker.reader.is_bad(key);
  if (is_known && positions.back() != features) {
    return complain(fmt::format("samples have {} features, but {} takes {}", positions.back(),
                                in_quotes(taker.name), features),
                    "write " + way_out + (may_be_missing && !attention ? ", or leave it out" : ""));
  }
  positions.pop_back();
  if (attention && positions.empty()) {
    const ModuleNode& node = *lowered.nodes[*attention];
    node.reader.problems().add(
        node.reader.where("type"),
        fmt::format("{} attends to the positions of a sequence, but samples are vectors of {} "
                    "features",
                    in_quotes(node.name), features),
        "write " + way_out);
  }
  return positions;
}

void check_numel(const LoweredModel& lowered) {
  std::set<const ModuleNode*> told;
  for (const ParameterSpec& parameter : list_parameters(lowered.model)) {
    if (checked_num_elems(parameter.shape)) continue;
    const auto module = static_cast<std::size_t>(parameter.module);
    const ModuleNode& node = *lowered.nodes[module];
    if (!told.insert(&node).second) continue;
    node.reader.problems().add(node.reader.at(),
                               fmt::format("the weight of {}, {}, has more than 2^63 - 1 elements",
                                           in_quotes(lowered.model.modules[module].name),
                                           fmt::join(parameter.shape, " * ")),
                               "make it smaller");
  }
}

}  // namespace hpsim
