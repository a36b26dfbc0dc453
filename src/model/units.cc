#include "model/units.h"

#include <algorithm>

#include "base/check.h"
#include "base/glob.h"

namespace hpsim {

std::vector<ModelPart> model_parts(const ModelSpec& model) {
  std::vector<ModelPart> parts;
  std::size_t next_group = 0;
  for (int m = 0; m < static_cast<int>(model.modules.size()); ++m) {
    for (; next_group < model.groups.size() && model.groups[next_group].first == m; ++next_group) {
      const ModuleGroup& group = model.groups[next_group];
      parts.push_back({group.name, group.first, group.end, static_cast<int>(next_group)});
    }
    parts.push_back({model.modules[static_cast<std::size_t>(m)].name, m, m + 1});
  }
  HPSIM_CHECK(next_group == model.groups.size(), "group \"{}\" is out of order",
              model.groups[next_group].name);
  for (int p = 0; p < static_cast<int>(model.elementwise.size()); ++p)
    parts.push_back({model.elementwise[static_cast<std::size_t>(p)].name, p, p + 1});
  return parts;
}

std::vector<std::string> names_of(const std::vector<ModelPart>& parts) {
  std::vector<std::string> names;
  for (const ModelPart& part : parts)
    names.push_back(part.name);
  return names;
}

std::vector<int> unit_owners(const ModelSpec& model, const std::vector<ModelPart>& parts,
                             const std::vector<std::string>& patterns, bool has_patterns) {
  const std::vector<std::string> names = names_of(parts);
  std::vector<bool> is_matched(parts.size());
  if (!has_patterns && !model.is_elementwise()) {
    for (std::size_t i = 0; i < parts.size(); ++i)
      is_matched[i] = names[i].find('.') == std::string::npos;
  }
  GlobIndex index(names);
  for (const std::string& pattern : patterns) {
    for (const int part : index.matches_of(pattern))
      is_matched[static_cast<std::size_t>(part)] = true;
  }
  HPSIM_CHECK(!index.has_given_up(), "{} patterns are too many for {} names", patterns.size(),
              names.size());
  std::vector<int> owners(std::max(model.modules.size(), model.elementwise.size()), -1);
  for (std::size_t i = 0; i < parts.size(); ++i) {  // inner parts come later
    if (!is_matched[i]) continue;
    std::fill(owners.begin() + parts[i].first, owners.begin() + parts[i].end, static_cast<int>(i));
  }
  return owners;
}

std::vector<UnitSpec> assign_units(const ModelSpec& model,
                                   const std::vector<ParameterSpec>& parameters,
                                   const std::vector<std::string>& patterns, bool has_patterns,
                                   const std::vector<int>& ignored) {
  const std::vector<ModelPart> parts = model_parts(model);
  const std::vector<int> owners = unit_owners(model, parts, patterns, has_patterns);
  UnitSpec root{.name = kRootUnitName, .parameters = {}, .is_root = true};
  root.end = static_cast<int>(owners.size());
  UnitSpec left_alone{.name = kIgnoredUnitName, .parameters = ignored, .is_ignored = true};
  std::vector<UnitSpec> units;
  std::vector<int> unit_of_part(parts.size(), -1);
  for (int p = 0; p < static_cast<int>(parameters.size()); ++p) {
    if (std::binary_search(ignored.begin(), ignored.end(), p)) continue;
    const int owner =
        owners.at(static_cast<std::size_t>(parameters[static_cast<std::size_t>(p)].module));
    if (owner < 0) {
      root.parameters.push_back(p);
      continue;
    }
    int& unit = unit_of_part[static_cast<std::size_t>(owner)];
    if (unit < 0) {
      unit = static_cast<int>(units.size());
      const ModelPart& part = parts[static_cast<std::size_t>(owner)];
      UnitSpec& spec = units.emplace_back(UnitSpec{.name = part.name, .parameters = {}});
      spec.first = part.first;
      spec.end = part.end;
    }
    units[static_cast<std::size_t>(unit)].parameters.push_back(p);
  }
  if (!root.parameters.empty()) units.insert(units.begin(), std::move(root));
  if (!ignored.empty()) units.push_back(std::move(left_alone));
  return units;
}

std::vector<std::vector<int>> units_around(const ModelSpec& model,
                                           const std::vector<UnitSpec>& units) {
  std::vector<std::vector<int>> around(std::max(model.modules.size(), model.elementwise.size()));
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    const UnitSpec& spec = units[static_cast<std::size_t>(unit)];
    if (spec.is_root) continue;
    for (int m = spec.first; m < spec.end; ++m)
      around.at(static_cast<std::size_t>(m)).push_back(unit);
  }
  const auto is_outer = [&](int a, int b) {
    const UnitSpec& left = units[static_cast<std::size_t>(a)];
    const UnitSpec& right = units[static_cast<std::size_t>(b)];
    return left.end - left.first > right.end - right.first;
  };
  for (std::vector<int>& of_module : around)
    std::stable_sort(of_module.begin(), of_module.end(), is_outer);
  return around;
}

}  // namespace hpsim
