#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "plan/plan.h"

namespace hpsim {

/// When an unshard that is only begun is completed, and the compute that runs until then: steps
/// that are Forward, Loss or Backward. Indices are into Plan::steps, -1 for none.
struct Overlap {
  std::int64_t completed_in = -1;  ///< the WaitUnshard of its bucket
  std::int64_t first = -1;         ///< of the compute between its begin and its completion
  std::int64_t last = -1;
  std::int64_t before = -1;  ///< the compute that comes next
};

/// Those of a plan, by the step that begins it.
///
///   0 unshard root, 1 begin L0, 2 wait L0, 3 begin L1, 4 forward L0, 5 wait L1, 6 forward L1
///   1    completed in 2, no compute until then, before 4
///   3    completed in 5, 4 to 4, before 6
[[nodiscard]] std::map<std::int64_t, Overlap> overlaps_of(const Plan& plan);

/// "forward of l0", "backward of l0", "loss"; "forward again of l0" where it is computed once more
/// in backward. \pre it is such compute
[[nodiscard]] std::string compute_text(const Plan& plan, std::int64_t plan_step);

}  // namespace hpsim
