#include "scenario/scenario.h"

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/check.h"

namespace hpsim {

FillSpec parameter_fill(const DataSpec& data, const ParameterSpec& parameter) {
  FillSpec fill = data.init;
  if (fill.kind == FillSpec::Kind::Uniform && data.init_bound_from_shape) {
    HPSIM_CHECK(!parameter.shape.empty() && parameter.shape.back() > 0, "\"{}\" has no last dim",
                parameter.name);
    fill.bound = 1 / std::sqrt(static_cast<double>(parameter.shape.back()));
  }
  return fill;
}

double mean_divisor(const Scenario& scenario, std::int64_t count) {
  if (!scenario.is_exact()) return static_cast<double>(count);
  // In integers: a logarithm would raise the INEXACT flag that exact mode watches.
  return static_cast<double>(std::bit_ceil(static_cast<std::uint64_t>(count)));
}

double gradient_divisor(const Scenario& scenario) {
  if (scenario.fully_shard.gradient_divide_factor) {
    return *scenario.fully_shard.gradient_divide_factor;
  }
  if (scenario.fully_shard.reduce_op == ReduceOp::Sum) return 1;
  return mean_divisor(scenario, scenario.num_data_ranks());
}

}  // namespace hpsim
