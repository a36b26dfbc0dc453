#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/report.h"

namespace hpsim {

inline constexpr std::size_t kTextWidth = 100;
inline constexpr std::size_t kIndent = 2;

/// Rows of every shard, short: the first of these that is not too long.
///
///   7 over 4 -> "2 2 2 1"    10 over 4 -> "3 3 3 1"    1000 over 16 -> "63 (x15) 55"
///   one shard of 7 -> "7"
[[nodiscard]] std::string shard_rows_text(const std::vector<ShardRun>& runs);

/// What the shards of a parameter hold, in rows of tensor dim 0; or in what is cut: indices of
/// another dim, or elements. Where TP leaves ranks different numbers of rows, shards of each
/// number.
///
///   (7, 8) over 4            "2 2 2 1"             (32, 64), dim 1, over 8    "8 (dim 1)"
///   (7, 2), tp 2, over 4     "1 1 1 1 | 1 1 1 0"   (2, 64), dims 0 and 1      "42 42 44 0
///   elements"
[[nodiscard]] std::string shards_text(const Mesh& mesh, const PlannedParameter& parameter);

/// Padding over all shards of one replica, in the same. (7, 8) over 4 -> 1; 5 over 4, to 2 each
/// -> 3.
[[nodiscard]] std::int64_t padding_of(const Mesh& mesh, const PlannedParameter& parameter);

/// Collectives of one kind in one optimizer step.
struct CollectiveKind {
  CollectiveOp op = CollectiveOp::AllGather;
  MeshDims dims;
  std::int64_t group_size = 1;
  DType dtype = DType::Float32;
  Phase phase = Phase::Forward;  ///< of the first
  std::int64_t count = 0;
  std::int64_t bytes_in = 0;    ///< per rank, all of them together; the most on any rank
  std::int64_t bytes_out = 0;   ///< likewise
  std::optional<double> scale;  ///< prescale * scale; none if they differ
};

/// The collectives of optimizer step `step` by op, dims and dtype, in the order of their first use.
[[nodiscard]] std::vector<CollectiveKind> collective_kinds(const Report& report, std::int64_t step);

/// Sum of `compared` over all checks.
[[nodiscard]] std::int64_t total_compared(const Report& report);

/// The largest err/bound over all checks that have one.
[[nodiscard]] std::optional<WorstElement> worst_of(const Report& report);

/// "0.12", or "equal" where exact mode found equality.
[[nodiscard]] std::string ratio_text(const Report& report, double ratio);

/// "gradient-parity: weight, rank 3 at (0, 3), step 0, index (5, 0)": where a finding is.
[[nodiscard]] std::string place_of(const Finding& finding);

/// "(1, 2)"
[[nodiscard]] std::string tuple_text(const std::vector<std::int64_t>& values);

}  // namespace hpsim
