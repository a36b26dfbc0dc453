#include "scenario/lower_modules.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace hpsim {
namespace {

std::int64_t size_of(const ModuleNode& node, const char* key) {
  return node.reader.integer(key).value_or(1);
}

ModuleType type_of_leaf(std::string_view name) {
  for (const ModuleType type :
       {ModuleType::Linear, ModuleType::Relu, ModuleType::Tanh, ModuleType::Silu, ModuleType::Gelu,
        ModuleType::LayerNorm, ModuleType::RmsNorm, ModuleType::Embedding}) {
    if (name_of(type) == name) return type;
  }
  HPSIM_CHECK(false, "module type \"{}\" passed the type check", name);
  return ModuleType::Linear;
}

class Lowering {
 public:
  LoweredModel lower(const std::vector<ModuleNode>& modules) {
    for (const ModuleNode& module : modules)
      lower(module);
    return std::move(result_);
  }

 private:
  /// The activation that the next module reads, see ModuleSpec::inputs: every module ends with the
  /// operation whose output it gives.
  [[nodiscard]] int now() const { return static_cast<int>(result_.model.modules.size()); }

  void add(const ModuleNode& node, ModuleSpec spec) {
    result_.model.modules.push_back(std::move(spec));
    result_.nodes.push_back(&node);
  }

  void add_projection(const ModuleNode& node, const char* part, std::int64_t in, std::int64_t out,
                      std::vector<int> inputs = {}) {
    ModuleSpec spec{.name = node.name + part, .type = ModuleType::Linear};
    spec.inputs = std::move(inputs);
    spec.in_features = in;
    spec.out_features = out;
    spec.bias = false;
    add(node, std::move(spec));
  }

  void lower(const ModuleNode& node) {
    using Kind = ModuleGroup::Kind;
    for (const Kind kind :
         {Kind::Attention, Kind::Mlp, Kind::Moe, Kind::Residual, Kind::Sequential, Kind::Repeat}) {
      if (name_of(kind) != node.type()) continue;
      const std::size_t group = result_.model.groups.size();
      result_.model.groups.push_back({node.name, now(), now(), kind});
      lower_parts(node, kind);
      result_.model.groups[group].end = now();
      return;
    }
    lower_leaf(node);
  }

  void lower_parts(const ModuleNode& node, ModuleGroup::Kind kind) {
    const int input = now();
    switch (kind) {
      case ModuleGroup::Kind::Attention:
        lower_attention(node);
        break;
      case ModuleGroup::Kind::Mlp:
        lower_mlp(node);
        break;
      case ModuleGroup::Kind::Moe:
        lower_moe(node);
        break;
      case ModuleGroup::Kind::Repeat:
        lower_repeat(node);
        break;
      case ModuleGroup::Kind::Residual:
      case ModuleGroup::Kind::Sequential:
        for (const ModuleNode& child : node.children)
          lower(child);
        if (kind == ModuleGroup::Kind::Residual) {
          add(node,
              {.name = node.name + ".add", .type = ModuleType::Add, .inputs = {now(), input}});
        }
    }
  }

  void lower_leaf(const ModuleNode& node) {
    ModuleSpec spec{.name = node.name, .type = type_of_leaf(node.type())};
    switch (spec.type) {
      case ModuleType::Linear:
        spec.in_features = size_of(node, "in_features");
        spec.out_features = size_of(node, "out_features");
        spec.bias = node.reader.boolean("bias").value_or(true);
        break;
      case ModuleType::Embedding:
        spec.in_features = size_of(node, "num_embeddings");
        spec.out_features = size_of(node, "embedding_dim");
        break;
      case ModuleType::LayerNorm:
      case ModuleType::RmsNorm:
        spec.in_features = size_of(node, "dim");
        spec.eps = node.reader.number("eps").value_or(1);
        break;
      case ModuleType::Gelu:
        spec.tanh_approximation = node.reader.string("approximate") == "tanh";
        break;
      default:
        break;
    }
    add(node, std::move(spec));
  }

  void lower_attention(const ModuleNode& node) {
    const std::int64_t dim = size_of(node, "dim");
    auto heads = node.reader.integer("heads");
    auto kv_heads = node.reader.has("kv_heads") ? node.reader.integer("kv_heads") : heads;
    if (!heads || !kv_heads || !node.reader.integer("dim")) heads = kv_heads = 1;
    const std::int64_t head_dim = dim / *heads;
    const int input = now();
    add_projection(node, ".wq", dim, *heads * head_dim);
    add_projection(node, ".wk", dim, *kv_heads * head_dim, {input});
    add_projection(node, ".wv", dim, *kv_heads * head_dim, {input});
    ModuleSpec core{.name = node.name + ".core", .type = ModuleType::AttentionCore};
    core.inputs = {input + 1, input + 2, input + 3};
    core.heads = *heads;
    core.kv_heads = *kv_heads;
    core.head_dim = head_dim;
    core.causal = node.reader.boolean("causal").value_or(true);
    add(node, std::move(core));
    add_projection(node, ".wo", *heads * head_dim, dim);
  }

  void lower_mlp(const ModuleNode& node) {
    const std::int64_t dim = size_of(node, "dim");
    const std::int64_t hidden = size_of(node, "hidden");
    const int input = now();
    add_projection(node, ".w1", dim, hidden);
    if (node.reader.boolean("gated").value_or(true)) {
      add_projection(node, ".w3", dim, hidden, {input});
      add(node, {.name = node.name + ".gate",
                 .type = ModuleType::SiluGate,
                 .inputs = {input + 1, input + 2}});
    } else {
      add(node, {.name = node.name + ".act", .type = ModuleType::Gelu});
    }
    add_projection(node, ".w2", hidden, dim);
  }

  void lower_moe(const ModuleNode& node) {
    const std::int64_t dim = size_of(node, "dim");
    const std::int64_t num_experts = size_of(node, "experts");
    const int input = now();
    add_projection(node, ".router", dim, num_experts);
    ModuleSpec experts{.name = node.name + ".experts", .type = ModuleType::Experts};
    experts.inputs = {input, input + 1};
    experts.in_features = dim;
    experts.hidden = size_of(node, "hidden");
    experts.num_experts = num_experts;
    experts.top_k = std::min(size_of(node, "top_k"), num_experts);
    add(node, std::move(experts));
  }

  /// The first copy is lowered; the others are as it is, but for their names and what they read.
  void lower_repeat(const ModuleNode& node) {
    std::vector<ModuleSpec>& modules = result_.model.modules;
    std::vector<ModuleGroup>& groups = result_.model.groups;
    const std::size_t first_module = modules.size();
    const std::size_t first_group = groups.size();
    lower(node.children.front());
    const std::size_t num_modules = modules.size() - first_module;
    const std::size_t num_groups = groups.size() - first_group;
    const std::size_t prefix_length = node.children.front().name.size();
    const std::int64_t count = size_of(node, "count");
    for (std::int64_t copy = 1; copy < count; ++copy) {
      const std::string prefix = fmt::format("{}.{}", node.name, copy);
      const int shift = static_cast<int>(num_modules) * static_cast<int>(copy);
      for (std::size_t i = 0; i < num_modules; ++i) {
        ModuleSpec spec = modules[first_module + i];
        spec.name = prefix + spec.name.substr(prefix_length);
        for (int& input : spec.inputs)
          input += shift;
        add(*result_.nodes[first_module + i], std::move(spec));
      }
      for (std::size_t i = 0; i < num_groups; ++i) {
        ModuleGroup group = groups[first_group + i];
        group.name = prefix + group.name.substr(prefix_length);
        group.first += shift;
        group.end += shift;
        groups.push_back(std::move(group));
      }
    }
  }

  LoweredModel result_;
};

}  // namespace

LoweredModel lower_modules(const std::vector<ModuleNode>& modules) {
  return Lowering().lower(modules);
}

}  // namespace hpsim
