#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"

namespace hpsim::test {

/// A scenario in which faults of plans have places, on a few ranks and on 131,072.
struct FaultCase {
  char letter = 'A';  ///< in `places` of a table
  const char* about = "";
  std::string few;
  std::string many;
};

///   A  uneven rows and an empty shard on one mesh dim
///   B  HSDP, the last of three micro-batches reduces
///   C  HSDP, the last of three micro-batches all-reduces
///   D  rows cut by TP, then by FSDP
///   E  SP transformer on rep x fsdp x tp, prefetched and computed again
///   F  experts on fsdp x ep x tp
///   G  weights averaged over fsdp
///   H  HSDP, a collective per parameter, in mixed precision, gradients clipped
[[nodiscard]] const std::vector<FaultCase>& fault_cases();

/// The JSON of the case called `letter`, on few ranks.
[[nodiscard]] const std::string& case_json(char letter);

/// The plan of a JSON text.
[[nodiscard]] Plan plan_of(const std::string& json);

}  // namespace hpsim::test
