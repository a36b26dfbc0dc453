#pragma once

#include "report/report.h"

namespace hpsim {

/// Weight (7, 8) cut over 4 ranks as 2 2 2 1 rows, one step of sgd, written out by hand: all_gather
/// of a 16-element slot twice, one reduce_scatter of 64 elements, 4 bytes each. It passes.
[[nodiscard]] Report sample_report();

/// The same, failed: an error in gradient-parity at 6:18 of the file, on rank 3, whose values are
/// four times too large, and a warning in placements at 6:18.
[[nodiscard]] Report failed_report();

/// The same as the first with weight (32, 64) on a mesh of 2 x 64 ranks: 1 row for each of 32
/// shards, 32 empty.
[[nodiscard]] Report large_report();

/// A rank failure in "b.json": exit code 6, one diagnostic with help.
[[nodiscard]] Report error_report();

/// Of golden/fsdp/uneven.json, with differences "d0", "d1", ...
[[nodiscard]] GoldenComparison golden_of(GoldenState state, std::size_t num_differences);

}  // namespace hpsim
