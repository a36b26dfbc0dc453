#include "plan/row_members.h"

#include <algorithm>

namespace hpsim {

bool RowMembers::holds(int row, int parameter) {
  const auto at = static_cast<std::size_t>(row);
  if (at >= sorted_.size()) sorted_.resize(plan_.gradient_rows.size());
  std::vector<int>& members = sorted_.at(at);
  if (members.empty()) {
    members = plan_.gradient_row(row).parameters;
    std::sort(members.begin(), members.end());
  }
  return std::binary_search(members.begin(), members.end(), parameter);
}

bool RowMembers::any_holds(const std::vector<int>& rows, int parameter) {
  return std::any_of(rows.begin(), rows.end(), [&](int row) { return holds(row, parameter); });
}

}  // namespace hpsim
