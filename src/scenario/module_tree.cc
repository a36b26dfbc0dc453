#include "scenario/module_tree.h"

#include <fmt/format.h>

#include <map>

namespace hpsim {
namespace {

constexpr std::int64_t kMostOperations = 100'000;

class TreeReader {
 public:
  explicit TreeReader(Problems& problems) : problems_(problems) {}

  std::optional<std::vector<ModuleNode>> read_all(const std::vector<JsonCursor>& elements,
                                                  const std::string& prefix, bool is_residual) {
    std::vector<ModuleNode> nodes;
    bool is_known = true;
    std::map<std::string, std::size_t> indices;
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (!elements[i].is_object()) {
        is_known = false;
        continue;
      }
      const ObjectReader reader(elements[i], "Module", problems_);
      const std::string name = reader.string("name").value_or(std::to_string(i));
      check_name(reader, name, i, indices);
      if (is_residual && name == "add") {
        problems_.add(reader.where("name"), "the name \"add\" is that of the residual's sum",
                      "give the module another name");
      }
      std::optional<ModuleNode> node = read_one(reader, prefix + name);
      if (node) {
        nodes.push_back(std::move(*node));
      } else {
        is_known = false;
      }
    }
    if (!is_known) return std::nullopt;
    return nodes;
  }

 private:
  std::optional<ModuleNode> read_one(const ObjectReader& reader, const std::string& name) {
    if (reader.is_bad("type") || reader.variant().empty()) return std::nullopt;
    ModuleNode node{reader, name, {}};
    if (node.type() == "repeat") {
      std::optional<ModuleNode> child = read_repeated(reader, name);
      if (!child) return std::nullopt;
      node.children.push_back(std::move(*child));
    } else if (node.type() == "residual" || node.type() == "sequential") {
      if (!reader.where("modules").is_array()) return std::nullopt;
      auto children = read_all(reader.elements("modules"), name + ".", node.type() == "residual");
      if (children && children->empty()) {
        problems_.add(reader.where("modules"),
                      fmt::format("{} {} has no modules", node.type(), in_quotes(name)),
                      R"(list at least one, such as {"type": "relu"})");
        return std::nullopt;
      }
      if (!children) return std::nullopt;
      node.children = std::move(*children);
    }
    return node;
  }

  std::optional<ModuleNode> read_repeated(const ObjectReader& repeat, const std::string& name) {
    const JsonCursor at = repeat.where("module");
    if (!repeat.has("module") || !at.is_object()) return std::nullopt;
    const ObjectReader reader(at, "Module", problems_);
    if (reader.has("name")) {
      problems_.add(reader.where("name"),
                    fmt::format("the module of a repeat has a name, but its copies are called {}, "
                                "{}, ...",
                                in_quotes(name + ".0"), in_quotes(name + ".1")),
                    "leave \"name\" out");
    }
    return read_one(reader, name + ".0");
  }

  /// Names must be usable in fully qualified names, and unique.
  void check_name(const ObjectReader& module, const std::string& name, std::size_t index,
                  std::map<std::string, std::size_t>& indices) {
    if (module.is_bad("name")) return;
    const JsonCursor at = module.where("name");
    if (name.empty() || name.find('.') != std::string::npos) {
      problems_.add(
          at,
          name.empty()
              ? fmt::format("module {} has an empty name", index)
              : fmt::format("the name {} of module {} contains a dot", in_quotes(name), index),
          "dots separate the parts of \"module.weight\"; leave \"name\" out to use the index");
    }
    const auto [entry, is_new] = indices.emplace(name, index);
    if (is_new) return;
    problems_.add(at,
                  fmt::format("modules {} and {} both have the name {}", entry->second, index,
                              in_quotes(name)),
                  "give every module a name of its own; the default is its index");
  }

  Problems& problems_;
};

/// Of all copies; nothing if they are too many, which is then told.
std::optional<std::int64_t> num_operations(const ModuleNode& node) {
  if (node.type() == "attention") return 5;
  if (node.type() == "mlp") return node.reader.boolean("gated").value_or(true) ? 4 : 3;
  std::int64_t sum = node.children.empty() || node.type() == "residual" ? 1 : 0;
  for (const ModuleNode& child : node.children) {
    const auto of_child = num_operations(child);
    if (!of_child) return std::nullopt;
    sum += *of_child;
  }
  if (node.type() != "repeat") return sum;
  const std::int64_t count = node.reader.integer("count").value_or(1);
  if (sum <= kMostOperations / count) return count * sum;
  node.reader.problems().add(
      node.reader.where("count"),
      fmt::format("{} repeats {} operation{} {} times, but a model has at most {}",
                  in_quotes(node.name), sum, sum == 1 ? "" : "s", count, kMostOperations),
      fmt::format("repeat it {}", sum > kMostOperations
                                      ? "not at all: it is too large already"
                                      : fmt::format("at most {} times", kMostOperations / sum)));
  return std::nullopt;
}

}  // namespace

std::optional<std::vector<ModuleNode>> read_module_tree(const ObjectReader& scenario) {
  return TreeReader(scenario.problems()).read_all(scenario.elements("model"), "", false);
}

std::int64_t num_nodes(const std::vector<ModuleNode>& modules) {
  auto sum = static_cast<std::int64_t>(modules.size());
  for (const ModuleNode& module : modules)
    sum += num_nodes(module.children);
  return sum;
}

bool check_num_operations(const ObjectReader& scenario, const std::vector<ModuleNode>& modules) {
  std::int64_t sum = 0;
  for (const ModuleNode& module : modules) {
    const auto of_module = num_operations(module);
    if (!of_module) return false;
    sum += *of_module;
  }
  if (sum <= kMostOperations) return true;
  scenario.problems().add(
      scenario.where("model"),
      fmt::format("the model has {} operations, the limit is {}", sum, kMostOperations),
      "take modules out, or repeat them less often");
  return false;
}

}  // namespace hpsim
