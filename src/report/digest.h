#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"
#include "trace/run_result.h"

namespace hpsim {

/// One hash of all numbers of a run, equal for every executor and every sharding that trains the
/// same in exact mode: fnv1a64, as 16 hex digits, over float64 values in little-endian order, -0 as
/// +0. Per step: the loss, then for every parameter its whole gradient, the parameter after the
/// update, and its optimizer state, each put together from the shards of the first replica;
/// gradients and state that ranks hold of their own are their means. \pre run.has_numbers(), one
/// loss per step
[[nodiscard]] std::string digest_of(const Plan& plan, const RunResult& run,
                                    const std::vector<double>& losses);

/// The hash of these values, as above.
[[nodiscard]] std::string digest_of_values(const std::vector<double>& values);

}  // namespace hpsim
