#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/finding.h"
#include "base/interval.h"

namespace hpsim {

/// What a set of row intervals does wrong as a tiling of [0, extent): one finding per gap
/// (LAYOUT_GAP) and per overlap (LAYOUT_OVERLAP), in row order; none if every row is held exactly
/// once. Empty intervals hold nothing, wherever they lie inside [0, extent].
///
///   extent 7    [0,2) [2,4) [4,6) [6,7)   -> none
///   extent 7    [0,3) [2,5) [4,7)         -> overlap of rows [2,3), overlap of rows [4,5)
///   extent 5    [0,2) [2,4)               -> gap of rows [4,5)
///   extent 5    [0,5) [5,5)               -> none
///   extent 5    [0,5) [6,6)               -> LAYOUT_GAP: shard 1 lies outside
[[nodiscard]] std::vector<Finding> tiling_findings(std::int64_t extent,
                                                   const std::vector<Interval>& shards,
                                                   const std::string& param);

/// The same for shards as runs, which cost no more for many shards than for few: run i holds
/// shards [a, b), the first of them begins at `first`, and each begins where the one before ends.
/// Together they must be the shards 0..num_shards-1.
///
///   extent 7, 4 shards    [0,3) of 2 from 0, [3,4) of 1 from 6    -> none
///   extent 7, 4 shards    [0,3) of 2 from 0, [3,4) of 1 from 5    -> overlap of rows [5,6), gap
///   [6,7) extent 6, 4 shards    [0,3) of 2 from 0                       -> LAYOUT_GAP: shard 3 is
///   missing
[[nodiscard]] std::vector<Finding> tiling_findings(std::int64_t extent, std::int64_t num_shards,
                                                   const std::vector<ShardRun>& runs,
                                                   const std::string& param);

}  // namespace hpsim
