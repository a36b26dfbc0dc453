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

Interval shard_interval(std::int64_t extent, ShardOf shard) {
  HPSIM_CHECK(shard.index >= 0 && shard.index < shard.count, "shard {} of {}", shard.index,
              shard.count);
  const std::int64_t chunk = padded_shard_length(extent, shard.count);
  // Neither the product nor the sum may overflow, however large the extent.
  const bool is_past_end = chunk == 0 || shard.index > extent / chunk;
  const std::int64_t begin = is_past_end ? extent : shard.index * chunk;
  return {begin, begin + std::min(chunk, extent - begin)};
}

}  // namespace hpsim
