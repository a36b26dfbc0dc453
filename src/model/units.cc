#include "model/units.h"

#include <algorithm>

#include "base/glob.h"

namespace hpsim {

std::vector<UnitSpec> assign_units(const ModelSpec& model,
                                   const std::vector<ParameterSpec>& parameters,
                                   const std::vector<std::string>& patterns, bool has_patterns,
                                   const std::vector<int>& ignored) {
  const bool each_module = !has_patterns && !model.is_elementwise();
  const auto owner_name = [&](const ParameterSpec& parameter) -> const std::string& {
    const auto index = static_cast<std::size_t>(parameter.module);
    return model.is_elementwise() ? parameter.name : model.modules[index].name;
  };
  const auto is_matched = [&](const std::string& name) {
    return each_module || std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) {
             return glob_matches(pattern, name);
           });
  };
  UnitSpec root{.name = kRootUnitName, .parameters = {}, .is_root = true};
  UnitSpec left_alone{.name = kIgnoredUnitName, .parameters = ignored, .is_ignored = true};
  std::vector<UnitSpec> units;
  for (int i = 0; i < static_cast<int>(parameters.size()); ++i) {
    if (std::binary_search(ignored.begin(), ignored.end(), i)) continue;
    const std::string& owner = owner_name(parameters[static_cast<std::size_t>(i)]);
    if (!is_matched(owner)) {
      root.parameters.push_back(i);
    } else if (!units.empty() && units.back().name == owner) {
      units.back().parameters.push_back(i);
    } else {
      units.push_back({.name = owner, .parameters = {i}, .is_root = false});
    }
  }
  if (!root.parameters.empty()) units.insert(units.begin(), std::move(root));
  if (!ignored.empty()) units.push_back(std::move(left_alone));
  return units;
}

}  // namespace hpsim
