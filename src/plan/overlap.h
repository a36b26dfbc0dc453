#pragma once

#include <cstdint>
#include <string>

#include "plan/plan.h"

namespace hpsim {

/// When a collective is completed, and the compute that runs until then: steps that are Forward,
/// Loss or Backward. Indices are into Plan::steps, -1 for none.
struct Overlap {
  std::int64_t completed_in = -1;  ///< of one that is only begun, the WaitUnshard of its bucket
  std::int64_t first = -1;         ///< of the compute between its begin and its completion
  std::int64_t last = -1;
  std::int64_t before = -1;  ///< the compute that comes next
};

/// Of the collective of a step.
///
///   0 unshard root, 1 begin L0, 2 wait L0, 3 begin L1, 4 forward L0, 5 wait L1, 6 forward L1
///   step 0    completed in 0, no compute until then, before 4
///   step 1    completed in 2, none, before 4
///   step 3    completed in 5, 4 to 4, before 6
/// \pre it has one
[[nodiscard]] Overlap overlap_of(const Plan& plan, std::int64_t plan_step);

/// "forward of l0", "backward of l0", "loss". \pre it is such compute
[[nodiscard]] std::string compute_text(const Plan& plan, std::int64_t plan_step);

}  // namespace hpsim
