#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trace/plan_ledger.h"
#include "verify/check_recorder.h"
#include "verify/evidence.h"

namespace hpsim {

/// Plans of memory, one per set of sizes that ranks may hold.
class PlannedMemories {
 public:
  explicit PlannedMemories(const Evidence& evidence) : evidence_(evidence) {}

  [[nodiscard]] const PlannedMemory& of(Rank rank);

 private:
  const Evidence& evidence_;
  std::map<std::vector<std::int64_t>, PlannedMemory> memories_;
};

/// Compares integers of ranks with the plan; the same thing wrong on several ranks is one finding.
class CountCheck {
 public:
  CountCheck(const Evidence& evidence, FindingCode code) : evidence_(evidence), code_(code) {}

  /// `what` reads on with "expected": "peak bytes of gradients".
  void compare(Rank rank, std::optional<std::int64_t> step, const std::string& what,
               std::int64_t expected, std::int64_t got);
  void report(CheckRecorder& recorder);

 private:
  struct Fault {
    Finding finding;
    std::vector<std::int64_t> ranks;
  };

  const Evidence& evidence_;
  FindingCode code_;
  std::map<std::string, std::size_t> position_of_;
  std::vector<Fault> faults_;
};

}  // namespace hpsim
