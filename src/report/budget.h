#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hpsim {

struct Report;

/// A limit that the caller sets, and what the run took.
///
///   collectives   collectives of an optimizer step, the most in any
///   bytes         what these carry per rank, each by the larger of its input and output
///   peak          bytes of memory per rank, the most at any moment of the training
struct BudgetLine {
  std::string_view name;  ///< "collectives", "bytes", "peak"
  std::int64_t limit = 0;
  std::int64_t got = 0;
  [[nodiscard]] bool is_over() const { return got > limit; }
};

/// Reads limits; `got` is 0.
///
///   "collectives=12,bytes=4096"   two limits
///   "peak=1.5GiB"                 B, KiB, MiB, GiB and TiB for bytes and peak
///   "peaks=1"                     refused: did you mean "peak"?
///   "peak=1,peak=2"               refused: given twice
///
/// \throws Error (Usage) with everything that is wrong
[[nodiscard]] std::vector<BudgetLine> parse_budget(const std::string& text);

/// Compares the run with the limits; a run that passed and is over one exits with 5.
void apply_budget(const std::vector<BudgetLine>& limits, Report& report);

}  // namespace hpsim
