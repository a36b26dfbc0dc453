#pragma once

#include "verify/check_recorder.h"
#include "verify/evidence.h"

namespace hpsim {

// Whether the ranks did what the plan says. Each goes on from what verify_plan found under the same
// check id and appends the check with its findings.

/// plan-agreement: every rank executed exactly the collectives of the plan, in order, with the
/// planned sizes, groups and dtypes; ranks of one group entered each with the same tag. Compared:
/// collectives per rank and each rank's count; of those that are only begun, where they were
/// completed, too. \pre run.has_numbers(): a symbolic run executes nothing
///
///   planned    executed        finding
///   a b c      a b             COMM_COUNT: c is missing
///   a b c      a c             COMM_COUNT: b is missing
///   a b c      a b b c         COMM_COUNT: b where c is planned, 4 executed
///   a b c      a c b           COMM_ORDER: c where b is planned
///   a b c      a b' c          COMM_SHAPE: sizes of b; COMM_GROUP: its members; COMM_DTYPE: what
///   it
///                              is sent as; COMM_ORDER: its op, or the largest instead of the sum
///   b is begun, and completed in another step than the plan's: COMM_ORDER
///   tag of b differs from that of the first rank of the group, sizes right: COMM_GROUP
void check_plan_agreement(const Evidence& evidence, CheckRecorder recorder, Verdict& verdict);

/// placements: rows that each rank held are those that its placements imply (OFFSET_WRONG), and the
/// rows of each replica tile the parameter (LAYOUT_GAP, LAYOUT_OVERLAP). Compared: one per rank and
/// parameter.
void check_placements(const Evidence& evidence, CheckRecorder recorder, Verdict& verdict);

}  // namespace hpsim
