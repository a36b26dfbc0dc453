#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/finding.h"
#include "plan/plan.h"
#include "verify/compare_shard.h"
#include "verify/named_numbers.h"
#include "verify/suspect.h"

namespace hpsim {

/// A number as its dtype prints it: 0.1f -> "0.1", 1.0 -> "1".
[[nodiscard]] std::string format_value(double value, DType dtype);

/// Sets rank and coordinate.
void locate(Finding& finding, const Mesh& mesh, Rank rank);

/// "all 4 ranks", "ranks 0, 2", "6 ranks". \pre sorted, not empty
[[nodiscard]] std::string describe_ranks(const std::vector<std::int64_t>& ranks,
                                         std::int64_t num_ranks);

/// A shard that is not what it should be.
struct ShardFailure {
  std::string subject;  ///< `gradient of "weight"`
  TensorPlace place;
  Rank rank;
  ShardComparison comparison;
  std::vector<std::int64_t> index;  ///< global, of the worst element
  double expected = 0;              ///< at the worst element
  double got = 0;
  std::optional<ConstantRatio> ratio;
};

/// Findings of failed shards, root causes first: earlier steps first, then constant ratios, then
/// the farthest from their bounds. Shards that are off by the same ratio are one finding, whatever
/// their parameter, rank and step; so are the other shards of one tensor at one step.
/// `scale_code` is the code of constant ratios, `value_code` of all else. The first
/// kMaxFindingsPerCheck, which are told, say what explains them.
[[nodiscard]] std::vector<Finding> diagnose(const Evidence& evidence,
                                            std::vector<ShardFailure> failures,
                                            FindingCode scale_code, FindingCode value_code);

/// "; it equals ...; or it counts ...": sentences that continue a message; "" for none.
[[nodiscard]] std::string explained(const std::vector<std::string>& causes);

}  // namespace hpsim
