#include "base/interval.h"

#include <fmt/format.h>

#include "base/check.h"

namespace hpsim {

std::string to_string(Interval interval) {
  return fmt::format("[{}, {})", interval.begin, interval.end);
}

std::int64_t padded_shard_length(std::int64_t extent, std::int64_t count) {
  HPSIM_CHECK(extent >= 0 && count >= 1, "extent {}, count {}", extent, count);
  return extent / count + (extent % count != 0 ? 1 : 0);
}

Interval shard_interval(std::int64_t extent, ShardOf shard, Chunking chunking) {
  HPSIM_CHECK(shard.index >= 0 && shard.index < shard.count, "shard {} of {}", shard.index,
              shard.count);
  const std::int64_t chunk = padded_shard_length(extent, shard.count);
  if (chunking == Chunking::Balanced) {
    const std::int64_t length = extent / shard.count;
    const std::int64_t num_longer = extent % shard.count;
    const std::int64_t begin = shard.index * length + std::min(shard.index, num_longer);
    return {begin, begin + length + (shard.index < num_longer ? 1 : 0)};
  }
  // Neither the product nor the sum may overflow, however large the extent.
  const bool is_past_end = chunk == 0 || shard.index > extent / chunk;
  const std::int64_t begin = is_past_end ? extent : shard.index * chunk;
  return {begin, begin + std::min(chunk, extent - begin)};
}

std::vector<ShardRun> shard_runs(std::int64_t extent, std::int64_t count, Chunking chunking) {
  const std::int64_t chunk = padded_shard_length(extent, count);
  // Where the length changes: after the full shards, and for ceil after the shard with the rest.
  std::int64_t num_full = count;
  if (extent % count != 0) {
    num_full = chunking == Chunking::Balanced ? extent % count : extent / chunk;
  }
  std::vector<ShardRun> runs;
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    const Interval first = shard_interval(extent, {begin, count}, chunking);
    runs.push_back({{begin, end}, first.begin, first.length()});
  };
  add(0, num_full);
  const bool has_rest = chunking == Chunking::Ceil && num_full < count && extent % chunk != 0;
  const std::int64_t end_of_rest = num_full + (has_rest ? 1 : 0);
  add(num_full, end_of_rest);
  add(end_of_rest, count);
  return runs;
}

}  // namespace hpsim
