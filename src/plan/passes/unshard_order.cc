#include "plan/passes/unshard_order.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace hpsim {

UnshardOrder::UnshardOrder(std::vector<int> units, std::int64_t ahead)
    : units_(std::move(units)), ahead_(std::min(static_cast<std::size_t>(ahead), units_.size())) {}

std::vector<int> UnshardOrder::ask_for(int unit) {
  HPSIM_CHECK(num_asked_ < units_.size() && units_[num_asked_] == unit,
              "unit {} is asked for as number {} of {}", unit, num_asked_, units_.size());
  ++num_asked_;
  const std::size_t first = std::max(num_asked_, num_begun_);
  num_begun_ = std::max(first, std::min(units_.size(), num_asked_ + ahead_));
  return {units_.begin() + static_cast<std::ptrdiff_t>(first),
          units_.begin() + static_cast<std::ptrdiff_t>(num_begun_)};
}

}  // namespace hpsim
