#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/report.h"
#include "report/text.h"

namespace hpsim {

inline constexpr std::size_t kTextWidth = 100;
inline constexpr std::size_t kIndent = 2;

/// "1 rank", "8 ranks"
[[nodiscard]] std::string counted(std::int64_t count, std::string_view noun);

/// "fsdp 4", "rep 2 x fsdp 4"
[[nodiscard]] std::string mesh_text(const Mesh& mesh);

/// "fsdp 4", "(rep, fsdp) 8": mesh dims and the ranks along them together
[[nodiscard]] std::string dims_text(const Mesh& mesh, const MeshDims& dims);

/// Name and description; then `leader` (a backend), mesh, dtype, steps, optimizer.
[[nodiscard]] std::string header_text(const Scenario& scenario, std::string_view leader,
                                      const TextStyle& style);

/// "forward", "dispatch"; "unshard async" of what is only begun, "forward again" of what is
/// recomputed.
[[nodiscard]] std::string step_text(const Step& step);

/// The parts of `activation_checkpointing` through which backward runs: it computes no others
/// again.
[[nodiscard]] std::vector<std::string> recomputed_parts(const Plan& plan);

/// What backward computes again, of a scenario that asks for it; of many parts the first, and how
/// many more. `rest` follows the words "again in backward".
///
///   "computed again in backward: blocks.0, blocks.1"
///   "nothing is computed again in backward: it runs through none of the parts to checkpoint"
[[nodiscard]] std::string recomputed_text(const std::vector<std::string>& parts,
                                          std::string_view rest);

/// The text cut at blanks into lines of at most `width` columns; a longer word gets its own line.
[[nodiscard]] std::string wrapped(std::string_view text, std::size_t indent, std::size_t width);

/// A label, and beside it the text, wrapped; both may be empty.
///
///   "  fsdp  7 % 4 != 0: ceil rule,"       indent 2, label "fsdp" of 4 columns
///   "        chunks of 2 rows"
[[nodiscard]] std::string labelled(std::string_view label, std::size_t indent,
                                   std::size_t label_columns, std::string_view text);

/// Ranks in their order, neighbours in numbers as runs; `total` counts those left out too.
///
///   3 -> "rank 3"    0 4 -> "ranks 0, 4"    0 1 2 3 8 -> "ranks 0..3, 8"
///   0 1 2 of 100 -> "ranks 0..2, … (100)"
[[nodiscard]] std::string ranks_text(const std::vector<Rank>& ranks, std::int64_t total);

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
  bool takes_max = false;
  Phase phase = Phase::Forward;  ///< of the first
  std::int64_t count = 0;
  std::int64_t bytes_in = 0;    ///< per rank, all of them together; the most on any rank
  std::int64_t bytes_out = 0;   ///< likewise
  std::optional<double> scale;  ///< prescale * scale; none if they differ

  /// Whether a collective is of this kind: op, dims, size of groups, dtype, sum or maximum.
  [[nodiscard]] bool has(const CollectiveSpec& spec) const;
  [[nodiscard]] bool is_like(const CollectiveKind& other) const;
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

/// "and 12 more findings of gradient-parity: 12 errors": what is left out of the findings.
[[nodiscard]] std::string left_out_text(const LeftOut& left_out);

/// "scenarios/hsdp/b4.json:8:15": where the scenario says what a finding is about; the file alone
/// if it is not known where.
[[nodiscard]] std::string source_of(const Report& report, const Finding& finding);

/// "(1, 2)"
[[nodiscard]] std::string tuple_text(const std::vector<std::int64_t>& values);

}  // namespace hpsim
