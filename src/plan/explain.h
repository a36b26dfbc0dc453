#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/axis_cuts.h"
#include "plan/plan.h"
#include "plan/rank_layout.h"

namespace hpsim {

/// What one mesh dim does to a parameter.
struct DimFact {
  int mesh_dim = 0;
  std::string rule;  ///< that gave its placement, with its source
};

enum class GroupKind { Sharded, Unsharded, Partial };

/// "sharded", "unsharded", "partial"
[[nodiscard]] std::string_view name_of(GroupKind kind);

/// One of the three groups of a parameter (multi-dim RFC 2.2.1), and what is sent over it.
struct GroupFact {
  GroupKind kind = GroupKind::Sharded;
  GroupInfo group;
  std::vector<int> steps;  ///< the collectives, into Plan::steps
  std::string why;         ///< they are sent, or nothing is
};

/// What a gradient is along one mesh dim when backward has computed it.
enum class GradientState {
  Partial,   ///< a term of a sum over the ranks along the dim
  Complete,  ///< the same on all ranks along it
  Cut,       ///< that of the part which the rank holds along it
};

/// "partial", "complete", "cut"
[[nodiscard]] std::string_view name_of(GradientState state);

struct GradientFact {
  int mesh_dim = 0;
  GradientState state = GradientState::Complete;
  std::vector<int> steps;  ///< that add it up along the dim, into Plan::steps
  std::string why;         ///< it is in that state
};

/// The factor k/F of a gradient, and where it is applied.
struct ScaleFact {
  double factor = 1;      ///< k
  double divisor = 1;     ///< F
  std::string why;        ///< F is what it is
  int factor_step = -1;   ///< into Plan::steps; -1: there is nothing to apply
  int divisor_step = -1;  ///< likewise
};

/// What one step does to a parameter or to its gradient, as one rank holds it.
struct LifeStep {
  int step = 0;  ///< into Plan::steps
  bool is_gradient = false;
  std::vector<Placement> before;
  std::vector<Placement> after;
  std::int64_t bytes_before = 0;  ///< of this parameter, padding included where it is there
  std::int64_t bytes_after = 0;
};

/// What one rank holds of a parameter.
struct RankFact {
  Coordinate coordinate;
  HeldShard held;
  std::int64_t padding_elems = 0;  ///< in its slot
  std::int64_t offset_elems = 0;   ///< of the slot in the row of the bucket
  std::int64_t row_elems = 0;      ///< of the bucket
  MeshDims same_dims;              ///< the ranks that vary along these hold the same
};

/// Where every element of a parameter lives, and why.
struct ParameterFacts {
  int parameter = 0;
  std::vector<DimFact> dims;           ///< all mesh dims
  std::vector<AxisCut> cuts;           ///< none if several tensor dims are cut in ragged runs
  std::vector<GroupFact> groups;       ///< sharded, unsharded, partial
  std::vector<GradientFact> gradient;  ///< mesh dims of more than one rank
  ScaleFact scale;
  std::vector<LifeStep> life;  ///< through optimizer step 0
  RankFact rank;
};

/// The rule that gave each mesh dim its placement: one per mesh dim.
///
///   (7, 8), fsdp 4          fsdp: "7 % 4 != 0: ceil rule, chunks of 2 rows (ragged RFC 6.4)"
///   (32, 64), fsdp 8        fsdp: "32 % 8 == 0: 4 rows each (multi-dim RFC 2.1.1)"
///   rep 2                   rep: "holds copies: role dp_replicate_dim (multi-dim RFC 2.1.1)"
///   6 float32, min 64       fsdp: "not cut: 24 bytes < min_shard_bytes 64 (multi-dim RFC 2.2.5)"
///   (10, 3), tp 2, fsdp 2   fsdp: "tp leaves 5 rows, 5 % 2 != 0: ceil rule, chunks of 3 rows
///                           (ragged RFC 6.4); split_factor 2 = tp 2, which cuts the same tensor
///                           dim first (ragged RFC 6.4)"
///   in ignored_params       "not cut: in ignored_params, fully_shard leaves it alone"
[[nodiscard]] std::vector<DimFact> dim_facts(const Plan& plan, int parameter);

/// Explains the parameters of a plan. Cost per parameter does not depend on the number of ranks.
class Explainer {
 public:
  /// \pre `plan` outlives the object
  explicit Explainer(const Plan& plan);

  /// The facts of one parameter; those of LifeStep and RankFact for the rank at `coordinate`.
  ///
  ///   (7, 8), fsdp 4     sharded group: fsdp 4, all_gather, all_gather, reduce_scatter
  ///                      gradient: fsdp partial, reduce_scatter adds it up; k/F = 1/4 on it
  ///                      life at (3): unshard 64 -> 256 B, forward 224 B, reshard 256 -> 64 B, ...
  ///                      rank (3): (6, 0)+(1, 8), 8 elements, 8 of padding, slot at 0 of 16
  [[nodiscard]] ParameterFacts explain(int parameter, const Coordinate& coordinate) const;

 private:
  [[nodiscard]] std::vector<int> steps_of(int parameter) const;

  const Plan& plan_;
  std::vector<std::vector<int>> by_bucket_;  ///< steps of optimizer step 0
  std::vector<std::vector<int>> by_module_;
  std::vector<int> of_all_;  ///< loss, clipping, optimizer
};

}  // namespace hpsim
