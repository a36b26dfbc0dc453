#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/finding.h"

namespace hpsim {

/// Findings of one check that are told one by one; the others are counted.
inline constexpr std::size_t kMaxFindingsPerCheck = 5;

/// Findings of a check that are not told.
struct LeftOut {
  CheckId check = CheckId::Expect;
  std::int64_t errors = 0;
  std::int64_t warnings = 0;

  bool operator==(const LeftOut&) const = default;
};

/// Keeps of every check the first kMaxFindingsPerCheck findings, in their order, but one of each
/// code and severity that there is in place of others of the same, as long as there is room;
/// returns what is left out, by check. Whether a check failed, and with which codes, can still be
/// told.
///
///   findings of one check, by code     told        left out
///   A A B                              A A B       none
///   A A A A A A A (errors)             A A A A A   2 errors
///   A A A A A A B                      A A A A B   2 errors
[[nodiscard]] std::vector<LeftOut> keep_told(std::vector<Finding>& findings);

}  // namespace hpsim
