#pragma once

#include <string>
#include <vector>

#include "model/model_spec.h"
#include "model/parameters.h"

namespace hpsim {

/// What fully_shard gathers and reduces together.
struct UnitSpec {
  std::string name;             ///< of the module, group or parameter that the pattern matched
  std::vector<int> parameters;  ///< indices into list_parameters, ascending
  bool is_root = false;         ///< takes what no other unit took; gathered first, reduced last
  bool is_ignored = false;      ///< parameters that fully_shard leaves alone
  /// [first, end) of ModelSpec::modules, or elementwise: those of the part that the pattern
  /// matched, with parameters or without. The unit is whole while they compute, as by the hooks of
  /// torch/distributed/fsdp/_fully_shard/_fsdp_state.py. Root: all; ignored: none.
  int first = 0;
  int end = 0;
};

/// The name of the unit that takes what no pattern matched.
inline constexpr const char* kRootUnitName = "(root)";
/// The name of the unit of the parameters that fully_shard leaves alone.
inline constexpr const char* kIgnoredUnitName = "(ignored)";

/// A part of a model that patterns of units and of parallelize can name: a group, a module, or an
/// elementwise parameter.
struct ModelPart {
  std::string name;
  int first = 0;   ///< into ModelSpec::modules, or ModelSpec::elementwise
  int end = 0;     ///< behind its last
  int group = -1;  ///< into ModelSpec::groups; -1: a module, or an elementwise parameter
};

/// All of them, in the order of their first modules, outer before inner.
///
///   linear l0; mlp m of linear w1, act, linear w2    l0, m, m.w1, m.act, m.w2
[[nodiscard]] std::vector<ModelPart> model_parts(const ModelSpec& model);

[[nodiscard]] std::vector<std::string> names_of(const std::vector<ModelPart>& parts);

/// Per module, or elementwise parameter: the part whose unit it belongs to, the innermost one that
/// a pattern matches; -1: the root unit. No patterns given: every top-level module of the file is a
/// unit, its name has no dot; an elementwise model is one root unit. Parts without parameters
/// count. \pre patterns and names are not so many that a GlobIndex gives up
[[nodiscard]] std::vector<int> unit_owners(const ModelSpec& model,
                                           const std::vector<ModelPart>& parts,
                                           const std::vector<std::string>& patterns,
                                           bool has_patterns);

/// Splits the parameters into units, see unit_owners; every match is one unit, the rest is the root
/// unit. Units without parameters are left out.
///
///   modules l0 a0 l1, no patterns    -> {l0.weight l0.bias} {l1.weight l1.bias}
///   the same, patterns {"l0"}        -> {l0.weight l0.bias} (root){l1.weight l1.bias}
///   parameters a b c, patterns {"b"} -> {b} (root){a c}
///
///   modules l0 l1, ignored l0.weight -> {l0.bias} {l1.weight l1.bias} (ignored){l0.weight}
///
///   blocks.0 of n, attn and m, patterns {"blocks.*", "**.attn"}
///     -> blocks.0{n.weight m.w1.weight m.w2.weight} blocks.0.attn{wq.weight ... wo.weight}
///
/// The units come in the order in which a forward pass first needs them, the root unit first, the
/// ignored parameters last. `ignored` are indices into `parameters`, ascending.
/// \pre patterns and names are not so many that a GlobIndex gives up
[[nodiscard]] std::vector<UnitSpec> assign_units(const ModelSpec& model,
                                                 const std::vector<ParameterSpec>& parameters,
                                                 const std::vector<std::string>& patterns,
                                                 bool has_patterns,
                                                 const std::vector<int>& ignored = {});

/// Per module, or elementwise parameter: the units that it is in, outer before inner, without the
/// root unit.
///
///   blocks.0 of n, attn.wq, attn.wo, add; patterns {"blocks.*", "**.attn"}
///     -> {blocks.0} {blocks.0 blocks.0.attn} {blocks.0 blocks.0.attn} {blocks.0}
[[nodiscard]] std::vector<std::vector<int>> units_around(const ModelSpec& model,
                                                         const std::vector<UnitSpec>& units);

}  // namespace hpsim
