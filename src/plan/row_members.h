#pragma once

#include <vector>

#include "plan/plan.h"

namespace hpsim {

/// Which parameters are in which row of gradients. Plan::position_in goes through a row, which is
/// too slow to ask for every parameter of a large unit; this sorts a row when first asked for it.
class RowMembers {
 public:
  /// `plan` must outlive this; rows may be added to it, but do not change.
  explicit RowMembers(const Plan& plan) : plan_(plan) {}

  [[nodiscard]] bool holds(int row, int parameter);
  /// Whether one of the rows does.
  [[nodiscard]] bool any_holds(const std::vector<int>& rows, int parameter);

 private:
  const Plan& plan_;
  std::vector<std::vector<int>> sorted_;  ///< per row; empty: not asked for yet
};

}  // namespace hpsim
