#pragma once

#include <string>
#include <vector>

#include "model/model_spec.h"
#include "model/parameters.h"

namespace hpsim {

/// What fully_shard gathers and reduces together.
struct UnitSpec {
  std::string name;             ///< of the module or parameter that the pattern matched
  std::vector<int> parameters;  ///< indices into list_parameters, ascending
  bool is_root = false;         ///< takes what no other unit took; gathered first, reduced last
  bool is_ignored = false;      ///< parameters that fully_shard leaves alone
};

/// The name of the unit that takes what no pattern matched.
inline constexpr const char* kRootUnitName = "(root)";
/// The name of the unit of the parameters that fully_shard leaves alone.
inline constexpr const char* kIgnoredUnitName = "(ignored)";

/// What patterns of units match: the names of the modules, or those of the parameters if the model
/// is elementwise.
[[nodiscard]] std::vector<std::string> unit_names(const ModelSpec& model);

/// Splits the parameters into units. Patterns match module names, or parameter names if the model
/// is elementwise; every match is one unit, in model order, and the rest is the root unit. Units
/// without parameters are left out. No patterns given: every module with parameters is a unit; an
/// elementwise model is one root unit.
///
///   modules l0 a0 l1, no patterns    -> {l0.weight l0.bias} {l1.weight l1.bias}
///   the same, patterns {"l0"}        -> {l0.weight l0.bias} (root){l1.weight l1.bias}
///   parameters a b c, patterns {"b"} -> {b} (root){a c}
///
///   modules l0 l1, ignored l0.weight -> {l0.bias} {l1.weight l1.bias} (ignored){l0.weight}
///
/// The units come in the order in which a forward pass first needs them, the root unit first, the
/// ignored parameters last. `ignored` are indices into `parameters`, ascending.
/// \pre patterns and names are not so many that a GlobIndex gives up
[[nodiscard]] std::vector<UnitSpec> assign_units(const ModelSpec& model,
                                                 const std::vector<ParameterSpec>& parameters,
                                                 const std::vector<std::string>& patterns,
                                                 bool has_patterns,
                                                 const std::vector<int>& ignored = {});

}  // namespace hpsim
