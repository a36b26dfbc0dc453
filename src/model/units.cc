#include "model/units.h"

#include <algorithm>

#include "base/check.h"
#include "base/glob.h"

namespace hpsim {

std::vector<std::string> unit_names(const ModelSpec& model) {
  std::vector<std::string> names;
  for (const ModuleSpec& module : model.modules)
    names.push_back(module.name);
  for (const ElementwiseSpec& parameter : model.elementwise)
    names.push_back(parameter.name);
  return names;
}

std::vector<UnitSpec> assign_units(const ModelSpec& model,
                                   const std::vector<ParameterSpec>& parameters,
                                   const std::vector<std::string>& patterns, bool has_patterns,
                                   const std::vector<int>& ignored) {
  const bool each_module = !has_patterns && !model.is_elementwise();
  const std::vector<std::string> owners = unit_names(model);
  std::vector<bool> is_matched(owners.size(), each_module);
  GlobIndex index(owners);
  for (const std::string& pattern : patterns) {
    for (const int owner : index.matches_of(pattern))
      is_matched[static_cast<std::size_t>(owner)] = true;
  }
  HPSIM_CHECK(!index.has_given_up(), "{} patterns are too many for {} names", patterns.size(),
              owners.size());
  UnitSpec root{.name = kRootUnitName, .parameters = {}, .is_root = true};
  UnitSpec left_alone{.name = kIgnoredUnitName, .parameters = ignored, .is_ignored = true};
  std::vector<UnitSpec> units;
  for (int i = 0; i < static_cast<int>(parameters.size()); ++i) {
    if (std::binary_search(ignored.begin(), ignored.end(), i)) continue;
    const auto index_of_owner =
        static_cast<std::size_t>(parameters[static_cast<std::size_t>(i)].module);
    const std::string& owner = owners[index_of_owner];
    if (!is_matched[index_of_owner]) {
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
