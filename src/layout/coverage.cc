#include "layout/coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace hpsim {

std::vector<Finding> tiling_findings(std::int64_t extent, const std::vector<Interval>& shards,
                                     const std::string& param) {
  std::vector<Finding> findings;
  const auto report = [&](FindingCode code, std::string message) {
    findings.push_back(
        {.code = code, .check = CheckId::Coverage, .param = param, .message = std::move(message)});
  };
  std::vector<std::size_t> order(shards.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return shards[a].begin < shards[b].begin; });
  std::int64_t covered = 0;     // rows [0, covered) are held
  std::size_t last_holder = 0;  // the shard that reached `covered`
  for (const std::size_t i : order) {
    const Interval shard = shards[i];
    if (shard.begin < 0 || shard.end < shard.begin || shard.end > extent) {
      report(FindingCode::LayoutGap,
             fmt::format("shard {} holds rows {} outside [0, {})", i, to_string(shard), extent));
      continue;
    }
    if (shard.empty()) continue;
    if (shard.begin > covered) {
      report(FindingCode::LayoutGap, fmt::format("rows {} are held by no shard",
                                                 to_string(Interval{covered, shard.begin})));
    } else if (shard.begin < covered) {
      const Interval twice = {shard.begin, std::min(covered, shard.end)};
      report(FindingCode::LayoutOverlap,
             fmt::format("rows {} are held by shards {} and {}", to_string(twice), last_holder, i));
    }
    if (shard.end > covered) {
      covered = shard.end;
      last_holder = i;
    }
  }
  if (covered < extent) {
    report(FindingCode::LayoutGap,
           fmt::format("rows {} are held by no shard", to_string(Interval{covered, extent})));
  }
  return findings;
}

std::vector<Finding> tiling_findings(std::int64_t extent, std::int64_t num_shards,
                                     const std::vector<ShardRun>& runs, const std::string& param) {
  std::vector<Interval> covered;
  std::int64_t next_shard = 0;
  std::vector<Finding> findings;
  for (const ShardRun& run : runs) {
    if (run.shards.begin != next_shard || run.shards.empty()) break;
    next_shard = run.shards.end;
    covered.push_back({run.first, run.first + run.length * run.shards.length()});
  }
  if (next_shard != num_shards) {
    findings.push_back({.code = FindingCode::LayoutGap,
                        .check = CheckId::Coverage,
                        .param = param,
                        .message = fmt::format("shards up to {} are laid out, {} expected",
                                               next_shard, num_shards)});
  }
  for (Finding& finding : tiling_findings(extent, covered, param))
    findings.push_back(std::move(finding));
  return findings;
}

}  // namespace hpsim
