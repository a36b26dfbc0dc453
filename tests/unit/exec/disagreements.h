#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "support/scenarios.h"

namespace hpsim::test {

/// A fault of some ranks only, and what the run must end with: the rank that is named, and why.
struct Disagreement {
  std::string fault;
  std::vector<Rank> ranks;
  std::optional<int> unit;
  std::string code;
  std::string begins;  ///< of the message
};

/// Three linear layers of one size over (rep 2, fsdp 2), two steps: per step gathers of l0 l1 l2 in
/// forward, l2 l1 l0 in backward, each followed there by its reduce-scatter over fsdp and its
/// all-reduce over rep.
inline Scenario disagreeing_scenario() {
  Scenario scenario =
      hsdp_scenario(modules_model({linear("l0", 4, 4, false), linear("l1", 4, 4, false),
                                   linear("l2", 4, 4, false)}),
                    2, 2);
  scenario.training.steps = 2;
  return scenario;
}

inline VerifiedPlan disagreeing_plan(const Disagreement& disagreement) {
  Scenario scenario = disagreeing_scenario();
  FaultSpec fault;
  fault.name = disagreement.fault;
  fault.ranks = disagreement.ranks;
  fault.unit = disagreement.unit;
  fault.pointer = "/faults/0";
  scenario.faults = {fault};
  return verify_plan(build_plan(std::move(scenario)));
}

/// Groups along fsdp are 0 1 and 2 3, along rep 0 2 and 1 3. Of two that disagree, the one that
/// left the plan is named, whichever it is.
inline std::vector<Disagreement> disagreements() {
  return {
      // Gathers l1 where the others of its group gather l0.
      {"skip_all_gather", {Rank{1}}, 0, "COMM_ORDER", "rank 1 entered all_gather of unit l1"},
      {"skip_all_gather", {Rank{0}}, 0, "COMM_ORDER", "rank 0 entered all_gather of unit l1"},
      // Goes on to its all-reduce, and further.
      {"skip_reduce_scatter", {Rank{3}}, 2, "COMM_ORDER", "rank 3 entered all_gather of unit l1"},
      // The next collective over rep is the all-reduce of the unit after it in backward.
      {"skip_all_reduce", {Rank{2}}, 2, "COMM_ORDER", "rank 2 entered all_reduce of unit l1"},
      {"double_all_gather", {Rank{1}}, 0, "COMM_ORDER", "rank 1 entered all_gather of unit l0"},
      {"reorder_collectives", {Rank{1}}, 0, "COMM_ORDER", "rank 1 entered all_gather of unit l1"},
      {"wrong_unit_gathered", {Rank{2}}, 0, "COMM_ORDER", "rank 2 entered all_gather of unit l1"},
      {"wrong_op_max", {Rank{1}}, 2, "COMM_ORDER", "rank 1 entered reduce_scatter of unit l2"},
      {"all_reduce_for_reduce_scatter",
       {Rank{1}},
       2,
       "COMM_ORDER",
       "rank 1 entered reduce_scatter of unit l2"},
      {"wrong_wire_dtype", {Rank{0}}, 2, "COMM_DTYPE", "rank 0 entered reduce_scatter of unit l2"},
      // 8 of the 16 elements, and a row of 4 more.
      {"extra_row_on_rank",
       {Rank{1}},
       0,
       "COMM_SHAPE",
       "rank 1 entered all_gather of unit l0 (forward, step 0) with 12 -> 24 elements, but rank 0 "
       "entered all_gather of unit l0 (forward, step 0) with 8 -> 16 elements"},
      // Rank 1 gathers with rank 3 over rep, where rank 0 waits for it.
      {"wrong_group_dim",
       {Rank{1}},
       0,
       "COMM_GROUP",
       "rank 1 entered all_gather of unit l0 (forward, step 0) in another group than ranks 0"},
      {"wrong_group_stride",
       {Rank{2}},
       2,
       "COMM_GROUP",
       "rank 2 entered all_reduce of unit l2 (backward, step 0) in another group than ranks 0"},
  };
}

}  // namespace hpsim::test
