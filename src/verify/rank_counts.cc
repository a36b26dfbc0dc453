#include "verify/rank_counts.h"

#include <fmt/format.h>

#include <utility>

#include "plan/activation_part.h"
#include "verify/diagnose.h"

namespace hpsim {

const PlannedMemory& PlannedMemories::of(Rank rank) {
  const Mesh& mesh = evidence_.plan.mesh();
  const Coordinate coordinate = mesh.coordinate_of(rank);
  std::vector<std::int64_t> sizes;
  for (int p = 0; p < evidence_.num_parameters(); ++p) {
    const HeldShard held = held_shard(mesh, evidence_.parameter(p), coordinate);
    sizes.push_back(held.elems);
    sizes.insert(sizes.end(), held.whole.shape.begin(), held.whole.shape.end());
    sizes.push_back(evidence_.parameter(p).padded_elems.at(mesh, coordinate));
  }
  for (const Redistribution& redistribution : evidence_.plan.redistributions) {
    const RedistributionSizes moved =
        redistribution_sizes(evidence_.plan, redistribution, coordinate);
    sizes.insert(sizes.end(), {moved.before_elems, moved.after_elems, moved.slot_elems,
                               moved.packs ? 1 : 0, moved.unpacks ? 1 : 0});
  }
  // What experts get differs from rank to rank.
  if (!experts_modules(evidence_.plan.scenario.model).empty()) sizes.push_back(rank.value);
  const auto [it, is_new] = memories_.try_emplace(std::move(sizes));
  if (is_new) {
    it->second =
        planned_memory(evidence_.plan, coordinate, run_routing(evidence_.plan, evidence_.run));
  }
  return it->second;
}

void CountCheck::compare(Rank rank, std::optional<std::int64_t> step, const std::string& what,
                         std::int64_t expected, std::int64_t got) {
  if (expected == got) return;
  const auto it = position_of_.find(what);
  if (it != position_of_.end()) {
    faults_[it->second].ranks.push_back(rank.value);
    return;
  }
  Finding finding{.code = code_,
                  .step = step,
                  .expected = static_cast<double>(expected),
                  .got = static_cast<double>(got)};
  locate(finding, evidence_.plan.mesh(), rank);
  finding.message = fmt::format("{}: {}: {} expected, {} got",
                                describe_rank(evidence_.plan.mesh(), rank), what, expected, got);
  position_of_.emplace(what, faults_.size());
  faults_.push_back({std::move(finding), {rank.value}});
}

void CountCheck::report(CheckRecorder& recorder) {
  for (Fault& fault : faults_) {
    if (fault.ranks.size() > 1) {
      fault.finding.message += "; wrong on " + describe_ranks(fault.ranks, evidence_.num_ranks());
    }
    recorder.add(std::move(fault.finding));
  }
}

}  // namespace hpsim
