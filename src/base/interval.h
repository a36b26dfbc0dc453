#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

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

/// How an extent is cut into shards.
enum class Chunking {
  Ceil,      ///< torch.chunk, PyTorch FSDP2 and the ragged FSDP RFC (6.4)
  Balanced,  ///< lengths differ by at most one (HyperParallel on MindSpore)
};

/// The part of [0, extent) that a shard holds. The only place with shard arithmetic.
///   ceil      c = ceil(extent / count), begin = min(index * c, extent), end = min(begin + c,
///   extent) balanced  q, m = divmod(extent, count), begin = index * q + min(index, m), length q +
///   (index < m)
///
///   extent, count    ceil                             balanced
///   7, 4             [0,2) [2,4) [4,6) [6,7)          the same
///   6, 4             [0,2) [2,4) [4,6) [6,6)          [0,2) [2,4) [4,5) [5,6)
///   5, 4             [0,2) [2,4) [4,5) [5,5)          [0,2) [2,3) [3,4) [4,5)
///   9, 4             [0,3) [3,6) [6,9) [9,9)          [0,3) [3,5) [5,7) [7,9)
///   10, 4            [0,3) [3,6) [6,9) [9,10)         [0,3) [3,6) [6,8) [8,10)
///   2, 4             [0,1) [1,2) [2,2) [2,2)          the same: empty shards lie at the end
///   0, 2             [0,0) [0,0)                      the same
///   5, 1             [0,5)                            the same
///
/// \pre extent >= 0, count >= 1, 0 <= index < count
[[nodiscard]] Interval shard_interval(std::int64_t extent, ShardOf shard,
                                      Chunking chunking = Chunking::Ceil);

/// Neighbouring shards of one length: shard shards.begin + i is [first + i * length, + length).
struct ShardRun {
  Interval shards;
  std::int64_t first = 0;
  std::int64_t length = 0;  ///< of each shard
  bool operator==(const ShardRun&) const = default;
};

/// All shards as at most three runs, whatever their number.
///
///   extent, count    ceil                                       balanced
///   7, 4             [0,3) of 2 from 0, [3,4) of 1 from 6       the same
///   6, 4             [0,3) of 2 from 0, [3,4) of 0 from 6       [0,2) of 2 from 0, [2,4) of 1 from
///   4 8, 4             [0,4) of 2 from 0                          the same
///
/// \pre extent >= 0, count >= 1
[[nodiscard]] std::vector<ShardRun> shard_runs(std::int64_t extent, std::int64_t count,
                                               Chunking chunking = Chunking::Ceil);

}  // namespace hpsim
