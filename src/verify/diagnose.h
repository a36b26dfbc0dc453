#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/finding.h"
#include "plan/plan.h"
#include "verify/compare_shard.h"

namespace hpsim {

/// A number that a wrong factor may be, as reports name it: {"D=4", 4}, {"1/R=1/2", 0.5}.
struct NamedNumber {
  std::string text;
  double value = 1;
};

/// The numbers of a scenario that are easily applied once too often or too little, and their
/// inverses; those that are 1 are left out.
///
///   W      ranks                      R      replicas of the parameter (dp_size)
///   D      data ranks                 S*R    both, if neither is 1
///   S      shards of the parameter    F, k   gradient divisor and scaling factor
///   P      ranks of its partial group    tp, ep    ranks along these mesh dims
///   M      micro-batches              numel     elements of the parameter
///
/// and, where that is none of them yet, F/k, D/ep, and what float16 gradients are divided by before
/// they are summed.
///
///   4 ranks, fsdp, avg    W=4 D=4 S=4 F=4 1/W=1/4 1/D=1/4 1/S=1/4 1/F=1/4
[[nodiscard]] std::vector<NamedNumber> named_numbers(const Scenario& scenario,
                                                     const PlannedParameter& parameter);

/// W, D, F and k only: what may be wrong with a number that belongs to no parameter.
[[nodiscard]] std::vector<NamedNumber> named_numbers(const Scenario& scenario);

/// For the norm over all parameters, where a factor of a sum of squares shows as its root:
/// named_numbers of every parameter, and sqrt(W), sqrt(S), ... of them.
[[nodiscard]] std::vector<NamedNumber> named_norm_numbers(const Plan& plan);

/// Texts of those that have this value.
[[nodiscard]] std::vector<std::string> explain(double ratio,
                                               const std::vector<NamedNumber>& numbers);

/// "S=2, F=2", ready to follow a ratio; "" if nothing explains it.
[[nodiscard]] std::string join(const std::vector<std::string>& texts);

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
  int parameter = 0;
  std::optional<std::int64_t> step;  ///< nothing: before step 0
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
/// `scale_code` is the code of constant ratios, `value_code` of all else.
[[nodiscard]] std::vector<Finding> diagnose(const Plan& plan, std::vector<ShardFailure> failures,
                                            FindingCode scale_code, FindingCode value_code);

}  // namespace hpsim
