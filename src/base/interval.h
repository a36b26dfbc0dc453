#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace hpsim {

/// Half-open range [begin, end). Empty is [b, b), and b still says where.
struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t length() const { return end - begin; }
  [[nodiscard]] bool empty() const { return end == begin; }
  bool operator==(const Interval&) const = default;
};

[[nodiscard]] inline Interval intersect(Interval a, Interval b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

/// "[2, 4)"
[[nodiscard]] std::string to_string(Interval interval);

/// Shard number `index` of `count`.
struct ShardOf {
  std::int64_t index = 0;
  std::int64_t count = 1;
};

/// ceil(extent / count): what every shard is padded to, and the length of all full shards.
///
///   extent, count    7,4 -> 2    6,4 -> 2    1,4 -> 1    0,4 -> 0    8,4 -> 2    7,1 -> 7
///
/// \pre extent >= 0, count >= 1
[[nodiscard]] std::int64_t padded_shard_length(std::int64_t extent, std::int64_t count);

/// The part of [0, extent) that a shard holds under the "ceil" rule of torch.chunk and of the
/// ragged FSDP RFC (6.4): c = ceil(extent / count), begin = min(index * c, extent),
/// end = min(begin + c, extent). The only place with shard arithmetic.
///
///   extent, count    shards
///   7, 4             [0,2) [2,4) [4,6) [6,7)
///   6, 4             [0,2) [2,4) [4,6) [6,6)          not 2,2,1,1
///   5, 4             [0,2) [2,4) [4,5) [5,5)          not 2,1,1,1
///   9, 4             [0,3) [3,6) [6,9) [9,9)
///   10, 4            [0,3) [3,6) [6,9) [9,10)
///   2, 4             [0,1) [1,2) [2,2) [2,2)          several empty shards, all at the end
///   0, 2             [0,0) [0,0)
///   5, 1             [0,5)
///
/// \pre extent >= 0, count >= 1, 0 <= index < count
[[nodiscard]] Interval shard_interval(std::int64_t extent, ShardOf shard);

}  // namespace hpsim
