#pragma once

#include <optional>
#include <string>

#include "base/finding.h"
#include "plan/step.h"

namespace hpsim {

/// The first thing in which a collective is not the one that is asked for, with both sides.
struct SpecDifference {
  FindingCode code = FindingCode::CommShape;
  std::string message;
};

/// In this order:
///
///   one is missing         COMM_COUNT   "no all_reduce over (tp), 2 ranks"
///   op, or max for sum     COMM_ORDER   "all_gather, expected all_reduce"
///   dims, size, runs       COMM_GROUP   "over (fsdp), 4 ranks, expected over (tp), 2 ranks"
///   dtype                  COMM_DTYPE   "bfloat16 on the wire, expected float32"
///   factors                GRAD_SCALE   "scaled by 0.5, expected 1"
///   elements               COMM_SHAPE   "9 elements in and 8 out, expected 8 and 8"
[[nodiscard]] std::optional<SpecDifference> difference_of(
    const Mesh& mesh, const std::optional<CollectiveSpec>& got,
    const std::optional<CollectiveSpec>& wanted);

/// "all_reduce of the largest" where it takes that, else the name of the op.
[[nodiscard]] std::string op_text(const CollectiveSpec& spec);

}  // namespace hpsim
