#pragma once

#include "report/report.h"

namespace hpsim {

/// Weight (7, 8) cut over 4 ranks as 2 2 2 1 rows, one step of sgd, written out by hand: all_gather
/// of a 16-element slot twice, one reduce_scatter of 64 elements, 4 bytes each. It passes.
[[nodiscard]] Report sample_report();

/// The same with weight (32, 64) on a mesh of 2 x 64 ranks: 1 row for each of 32 shards, 32 empty.
[[nodiscard]] Report large_report();

}  // namespace hpsim
