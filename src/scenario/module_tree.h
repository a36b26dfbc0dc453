#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scenario/object_reader.h"

namespace hpsim {

/// A module of the file, with the modules in it.
struct ModuleNode {
  ObjectReader reader;
  std::string name;                  ///< fully qualified; inside repeat that of the first copy
  std::vector<ModuleNode> children;  ///< of residual and sequential; of repeat the one

  [[nodiscard]] std::string_view type() const { return reader.variant(); }
};

/// `model` as a tree; names are unique among siblings and without dots, for dots join them. Nothing
/// if it is unknown what some module computes, or if one is made of none.
///
///   {"name": "b", "type": "repeat", "module": {"type": "residual", "modules": [{"type": "relu"}]}}
///     -> b, b.0, b.0.0
///   a name with a dot, the name of a sibling, a name in the module of a repeat    refused
///   the name "add" in a residual                                                  refused: its sum
[[nodiscard]] std::optional<std::vector<ModuleNode>> read_module_tree(const ObjectReader& scenario);

/// Number of modules in the tree, each once however often it is repeated.
[[nodiscard]] std::int64_t num_nodes(const std::vector<ModuleNode>& modules);

/// Whether the tree is at most 100,000 operations (see lower_modules), all copies counted.
[[nodiscard]] bool check_num_operations(const ObjectReader& scenario,
                                        const std::vector<ModuleNode>& modules);

}  // namespace hpsim
