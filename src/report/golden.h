#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hpsim {

struct Report;

/// What a golden says of the run it guards.
enum class GoldenState { Same, Differs, Missing, Unreadable };

/// "same", "differs", "missing", "unreadable"
[[nodiscard]] std::string_view name_of(GoldenState state);

/// One thing in which a run is not what its golden says.
struct GoldenDifference {
  std::string section;               ///< "parameters", "collectives", ...: a key of the golden
  std::string param;                 ///< fully qualified name; empty if none
  std::optional<std::int64_t> step;  ///< optimizer step; none if it is so in several or all
  std::string message;               ///< one line: "weight: rank 3 holds 0 rows, golden 1"
};

/// A run beside its golden.
struct GoldenComparison {
  std::string file;  ///< of the golden, as it would be typed
  GoldenState state = GoldenState::Same;
  std::int64_t compared = 0;  ///< values compared
  std::vector<GoldenDifference> differences;
  std::vector<std::string> not_compared;  ///< keys that this backend computes no numbers for
};

/// What is frozen of a run: nothing that differs between two runs, builds, machines or backends,
/// and nothing that cannot be derived by hand. Version 1 of the form:
///
///   "golden": 1, "name"
///   "mesh"         shape, mesh_dim_names, and ranks if they are permuted
///   "numerics"     dtype, mode
///   "steps"        optimizer steps
///   "groups"       the ranks of every group that anything is sent over, by mesh dims
///   "parameters"   shape, placements, groups by mesh dims, padded shape, shards rank by rank
///   "units"        what each fused collective carries
///   "collectives"  runs of optimizer steps that do the same, each phase in order, and totals
///   "memory"       peak bytes per rank, of all and of each kind, on meta that while parameters are
///                  made; padding allocated and written
///   "warnings"     code and parameter
///   "losses", "grad_norms"
///                  of a free training in float64 without ranks, to the digits that the bound
///                  leaves, with the bound; null where it passes 1/8 of the number. In exact mode
///                  losses as they are, and the "digest" of all numbers
///
/// Without numbers (symbolic) the last row is left out. Above 64 ranks groups and shards are folded
/// as in the report (see json.h).
/// \pre report.has_run
[[nodiscard]] nlohmann::ordered_json make_golden(const Report& report);

/// Pretty-printed for review, line by line.
[[nodiscard]] std::string golden_text(const nlohmann::ordered_json& golden);

/// Whether the text is that of a golden, of any version of the form.
[[nodiscard]] bool is_golden_text(std::string_view text);

/// Whether the text is JSON, with // comments or not, but that of no golden: somebody else's file.
[[nodiscard]] bool is_foreign_json(std::string_view text);

/// The run beside the golden with this text. Losses and norms of the run may be away from those of
/// the golden by the bound that the golden states; all else is equal or a difference, in words:
///
///   a row moved          "weight: rank 3 holds 0 rows, golden 1"
///   a collective added   "backward: reduce_scatter 12 → 13 over fsdp (unit l3 added)"
///   a loss out of bound  "loss step 2: 0.4197 → 0.4203, 31 times the bound"
///
/// Arrows lead from the golden to the run.
/// \pre report.has_run
[[nodiscard]] GoldenComparison compare_golden(const std::string& file, std::string_view text,
                                              const Report& report);

/// The text that makes the golden true again. Numbers that hold stay as `text`, the golden so far,
/// has them: their last digits may differ from build to build. Empty `text`: a new golden.
[[nodiscard]] std::string updated_golden(std::string_view text, const Report& report);

}  // namespace hpsim
