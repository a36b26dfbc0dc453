#include <fmt/format.h>

#include <algorithm>

#include "scenario/pattern_matcher.h"
#include "scenario/sections.h"

namespace hpsim {
namespace {

std::optional<DType> read_dtype(const ObjectReader& reader, std::string_view key) {
  const auto name = reader.string(key);
  return name ? parse_dtype(*name) : std::nullopt;
}

/// `numerics.parameter_dtypes`; none where all parameters have the dtype of the run.
std::vector<DType> read_parameter_dtypes(const ObjectReader& numerics, const Scenario& scenario) {
  const auto members = numerics.members("parameter_dtypes");
  if (members.empty()) return {};
  const std::size_t num_parameters = scenario.parameters.size();
  std::vector<DType> dtypes(num_parameters, scenario.numerics.dtype);
  std::vector<const JsonCursor*> where(num_parameters);
  PatternMatcher matcher(names_of(scenario.parameters), "parameter", numerics.problems());
  for (const auto& [pattern, at] : members) {
    const std::vector<int> matched = matcher.matches_of(pattern, at);
    if (!at.is_string() || numerics.problems().is_bad(*at.value)) continue;
    const DType dtype = parse_dtype(at.string()).value();
    for (const int p : matched) {
      const auto index = static_cast<std::size_t>(p);
      if (where[index] != nullptr && dtypes[index] != dtype) {
        numerics.problems().add(
            at,
            fmt::format("{} is {} here, but {} at {}", in_quotes(scenario.parameters[index].name),
                        name_of(dtype), name_of(dtypes[index]), where[index]->pointer),
            "keep one of the two");
        break;
      }
      where[index] = &at;
      dtypes[index] = dtype;
    }
  }
  const bool is_uniform = std::all_of(
      dtypes.begin(), dtypes.end(), [&](DType dtype) { return dtype == scenario.numerics.dtype; });
  return is_uniform ? std::vector<DType>{} : dtypes;
}

/// The dtype of all parameters; nothing if they have several.
std::optional<DType> common_dtype(const Scenario& scenario) {
  const std::vector<DType>& own = scenario.numerics.parameter_dtypes;
  if (own.empty()) return scenario.numerics.dtype;
  const bool is_uniform =
      std::all_of(own.begin(), own.end(), [&](DType dtype) { return dtype == own.front(); });
  return is_uniform ? std::optional(own.front()) : std::nullopt;
}

/// Whether units never take another dtype than `dtype`, which all parameters have: the model's
/// input has it, and so has what units give.
bool casts_nothing(const Scenario& scenario, const MixedPrecision& policy, DType dtype) {
  if (!policy.cast_forward_inputs) return true;
  const std::vector<ModuleSpec>& modules = scenario.model.modules;
  const bool takes_tokens = !modules.empty() && modules.front().type == ModuleType::Embedding;
  return (takes_tokens || scenario.numerics.dtype == dtype) &&
         policy.output_dtype.value_or(dtype) == dtype;
}

}  // namespace

NumericsSpec read_numerics(const ObjectReader& scenario) {
  using Mode = NumericsSpec::Mode;
  const ObjectReader reader = scenario.object("numerics", "Numerics");
  NumericsSpec spec;
  spec.dtype = read_dtype(reader, "dtype").value_or(DType::Float32);
  spec.mode = reader.string("mode") == "exact" ? Mode::Exact : Mode::Derived;
  return spec;
}

void read_precision(const ObjectReader& scenario, Scenario& result) {
  const ObjectReader fully_shard = scenario.object("fully_shard", "FullyShard");
  const ObjectReader reader = fully_shard.object("mp_policy", "MpPolicy");
  result.numerics.parameter_dtypes =
      read_parameter_dtypes(scenario.object("numerics", "Numerics"), result);
  MixedPrecision& policy = result.fully_shard.mp_policy;
  policy.param_dtype = read_dtype(reader, "param_dtype");
  policy.reduce_dtype = read_dtype(reader, "reduce_dtype");
  policy.output_dtype = read_dtype(reader, "output_dtype");
  policy.cast_forward_inputs = reader.boolean("cast_forward_inputs").value_or(true);
  const std::optional<DType> common = common_dtype(result);
  if (policy.reduce_dtype == (policy.param_dtype ? policy.param_dtype : common)) {
    policy.reduce_dtype.reset();
  }
  if (common && policy.param_dtype == common && casts_nothing(result, policy, *common)) {
    policy.param_dtype.reset();
  }
}

}  // namespace hpsim
