#pragma once

#include <cstdint>
#include <string_view>

namespace hpsim {

/// A limit that the caller sets, and what the run took.
struct BudgetLine {
  std::string_view name;  ///< "collectives", "bytes", "peak"
  std::int64_t limit = 0;
  std::int64_t got = 0;
  [[nodiscard]] bool is_over() const { return got > limit; }
};

}  // namespace hpsim
