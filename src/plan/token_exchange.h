#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/interval.h"
#include "plan/plan.h"

namespace hpsim {

/// How many positions of its own a rank routes to each of all experts of one experts module. The
/// same on ranks that hold the same positions.
using RoutedCounts = std::vector<std::int64_t>;

/// Passes of a run count through: micro-batch m of M of optimizer step s is pass s M + m.
[[nodiscard]] std::int64_t pass_of(const Scenario& scenario, const Step& step);

/// Where a run, or an assumption, routed: the counts of the rank at a coordinate, in a pass, of the
/// experts module with that index among experts_modules.
using Routing = std::function<RoutedCounts(const Coordinate&, std::int64_t pass, int index)>;

/// Balanced routing of one member of an exchange group: `routed` positions over all experts. Where
/// they do not divide, what is left goes to some, beginning behind those of the member before: so
/// all members together are balanced, too.
///
///   10 over 4    member 0: 3 3 2 2    1: 2 2 3 3    2: 3 3 2 2
///   1 over 3     member 0: 1 0 0      1: 0 1 0      2: 0 0 1
[[nodiscard]] RoutedCounts balanced_counts(std::int64_t routed, std::int64_t num_experts,
                                           std::int64_t member);

/// Mesh dims over which an experts module exchanges positions: those that cut its experts and split
/// the samples too, ascending. Along others that cut them ranks hold the same positions, and each
/// computes for its own experts.
///
///   experts cut over ep, the batch split over it    ep
///   the same, every rank of ep has all samples      none
[[nodiscard]] MeshDims exchange_dims(const Plan& plan, int module);

/// Experts that the rank at `coordinate` holds.
[[nodiscard]] Interval experts_at(const Plan& plan, int module, const Coordinate& coordinate);

/// Experts that each member of its exchange group holds, in group order; the rank alone if nothing
/// is exchanged. Positions that it routes to others are taken by ranks that hold the same ones.
[[nodiscard]] std::vector<Interval> reached_experts(const Plan& plan, int module,
                                                    const Coordinate& coordinate);

/// Positions that a rank sends to each member of its exchange group, and gets from each, itself
/// included; where nothing is exchanged, what it keeps.
struct TokenCounts {
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;
  [[nodiscard]] std::int64_t num_sent() const;
  [[nodiscard]] std::int64_t num_received() const;
};

/// From what the members of the group routed.
[[nodiscard]] TokenCounts token_counts(const Plan& plan, int module, std::int64_t pass,
                                       const Coordinate& coordinate, const Routing& routing);

/// Positions of which the rank at `coordinate` chooses the experts.
[[nodiscard]] std::int64_t num_routed_rows(const Plan& plan, int module,
                                           const Coordinate& coordinate);

/// The routing of which plans without numbers speak: balanced_counts on every rank. \pre `plan`
/// outlives it
[[nodiscard]] Routing balanced_routing(const Plan& plan);

/// The collective of a Route, Dispatch or Combine step of an experts module, its elements those of
/// balanced routing; none where it exchanges nothing.
///
///   64 rows of 8, top 2 of 4 experts, ep 2    route     2 -> 2 numbers per member: 4 -> 4, int64
///                                             dispatch  128 x 8 -> 128 x 8
[[nodiscard]] std::optional<CollectiveSpec> token_collective(const Plan& plan, int module,
                                                             StepKind kind);

/// Elements of a routed collective of `step` on one rank.
struct RoutedElems {
  std::int64_t in = 0;
  std::int64_t out = 0;
};
[[nodiscard]] RoutedElems routed_elems(const Plan& plan, const Step& step,
                                       const Coordinate& coordinate, const Routing& routing);

}  // namespace hpsim
