#include "verify/execution.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "layout/coverage.h"
#include "layout/placement.h"
#include "verify/diagnose.h"

namespace hpsim {
namespace {

/// `all_gather of unit "l0", step 0, forward`
std::string describe_collective(const Plan& plan, std::int64_t plan_step) {
  if (plan_step < 0 || plan_step >= static_cast<std::int64_t>(plan.steps.size())) {
    return fmt::format("plan step {}, which does not exist", plan_step);
  }
  const Step& step = plan.steps[static_cast<std::size_t>(plan_step)];
  if (!step.collective) {
    return fmt::format("plan step {}, a {} without collective", plan_step, name_of(step.kind));
  }
  const Bucket& bucket = plan.buckets.at(static_cast<std::size_t>(step.bucket));
  return fmt::format("{} of unit \"{}\", step {}, {}", name_of(step.collective->op),
                     plan.scenario.units.at(static_cast<std::size_t>(bucket.unit)).name, step.step,
                     name_of(step.phase));
}

/// Compares what ranks executed with the plan; the same fault on several ranks is one finding.
class ExecutionCheck {
 public:
  ExecutionCheck(const Evidence& evidence, CheckRecorder& recorder)
      : evidence_(evidence), plan_(evidence.plan), recorder_(recorder) {
    for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
      if (plan_.steps[i].collective) planned_.push_back(static_cast<std::int64_t>(i));
    }
  }

  void run() {
    for (std::int64_t rank = 0; rank < evidence_.num_ranks(); ++rank)
      check_sequence(Rank{rank});
    for (std::int64_t seq = 0; seq < num_planned(); ++seq)
      check_tags(seq);
    for (auto& [key, fault] : faults_)
      report(std::move(fault));
  }

 private:
  struct Fault {
    Finding finding;
    std::string text;  ///< follows the name of the first rank
    std::vector<std::int64_t> ranks;
  };
  /// Position in the plan first: what went wrong first is the root.
  using FaultKey = std::tuple<std::int64_t, FindingCode, std::string>;

  [[nodiscard]] std::int64_t num_planned() const {
    return static_cast<std::int64_t>(planned_.size());
  }
  [[nodiscard]] std::int64_t planned(std::int64_t seq) const {
    return planned_[static_cast<std::size_t>(seq)];
  }
  [[nodiscard]] std::int64_t num_executed(Rank rank) const {
    return evidence_.run.rank_record(rank).num_collectives;
  }
  /// Entries that lie in the record, whatever the rank says about their number.
  [[nodiscard]] std::int64_t num_readable(Rank rank) const {
    return std::clamp(num_executed(rank), std::int64_t{0},
                      evidence_.run.layout().max_collectives());
  }
  [[nodiscard]] const ExecutedCollective& executed(Rank rank, std::int64_t seq) const {
    return evidence_.run.executed(rank)[seq];
  }
  [[nodiscard]] const CollectiveSpec& spec(std::int64_t seq) const {
    return *plan_.steps[static_cast<std::size_t>(planned(seq))].collective;
  }
  [[nodiscard]] bool has_planned_shape(Rank rank, std::int64_t seq) const {
    const ExecutedCollective& entry = executed(rank, seq);
    return entry.elems_in == spec(seq).elems_in && entry.elems_out == spec(seq).elems_out;
  }

  void check_sequence(Rank rank) {
    recorder_.count(1);
    const std::int64_t count = std::min(num_readable(rank), num_planned());
    std::int64_t seq = 0;
    for (; seq < count && executed(rank, seq).plan_step == planned(seq); ++seq) {
      recorder_.count(1);
      if (!has_planned_shape(rank, seq)) wrong_shape(rank, seq);
    }
    if (seq == num_planned() && num_executed(rank) == num_planned()) return;
    wrong_sequence(rank, seq);
  }

  /// From number `seq` on, the rank did not do what is planned.
  void wrong_sequence(Rank rank, std::int64_t seq) {
    const bool is_count = num_executed(rank) != num_planned();
    Finding finding{.code = is_count ? FindingCode::CommCount : FindingCode::CommOrder};
    const std::string wanted =
        seq < num_planned() ? describe_collective(plan_, planned(seq)) : std::string("the end");
    const std::string found =
        seq < num_readable(rank)
            ? describe_collective(plan_, executed(rank, seq).plan_step)
            : std::string(num_executed(rank) > num_planned() ? "one more collective" : "the end");
    if (is_count) {
      finding.expected = static_cast<double>(num_planned());
      finding.got = static_cast<double>(num_executed(rank));
    }
    std::string text =
        is_count ? fmt::format("executed {} collectives, {} planned; from number {} on they differ",
                               num_executed(rank), num_planned(), seq)
                 : fmt::format("collective {} is out of order", seq);
    text += fmt::format(": {} expected, {} got", wanted, found);
    add(rank, seq, std::move(finding), std::move(text));
  }

  void wrong_shape(Rank rank, std::int64_t seq) {
    const ExecutedCollective& entry = executed(rank, seq);
    Finding finding{.code = FindingCode::CommShape};
    const bool is_input = entry.elems_in != spec(seq).elems_in;
    finding.expected = static_cast<double>(is_input ? spec(seq).elems_in : spec(seq).elems_out);
    finding.got = static_cast<double>(is_input ? entry.elems_in : entry.elems_out);
    add(rank, seq, std::move(finding),
        fmt::format("collective {} ({}): {} elements in and {} out expected, {} and {} got", seq,
                    describe_collective(plan_, planned(seq)), spec(seq).elems_in,
                    spec(seq).elems_out, entry.elems_in, entry.elems_out));
  }

  /// Whether the rank executed the plan up to and including number `seq`, with its sizes.
  [[nodiscard]] bool is_comparable(Rank rank, std::int64_t seq) const {
    return seq < num_readable(rank) && executed(rank, seq).plan_step == planned(seq) &&
           has_planned_shape(rank, seq);
  }

  void check_tags(std::int64_t seq) {
    const auto& group = evidence_.ranks.group_along(spec(seq).dims);
    std::map<std::int64_t, Rank> first_of_group;
    for (std::int64_t rank = 0; rank < evidence_.num_ranks(); ++rank) {
      if (!is_comparable(Rank{rank}, seq)) continue;
      const auto [it, is_first] =
          first_of_group.try_emplace(group[static_cast<std::size_t>(rank)], Rank{rank});
      const std::uint64_t tag = executed(Rank{rank}, seq).tag;
      const std::uint64_t expected = is_first
                                         ? collective_tag(plan_, planned(seq), it->first,
                                                          spec(seq).elems_in, spec(seq).elems_out)
                                         : executed(it->second, seq).tag;
      if (tag == expected) continue;
      add(Rank{rank}, seq, {.code = FindingCode::CommGroup},
          fmt::format("collective {} ({}): tag {:#018x} expected {}, {:#018x} got", seq,
                      describe_collective(plan_, planned(seq)), expected,
                      is_first ? "from the plan"
                               : fmt::format("as on rank {} of the same group", it->second.value),
                      tag));
    }
  }

  void add(Rank rank, std::int64_t seq, Finding finding, std::string text) {
    FaultKey key{seq, finding.code, text};
    const auto [it, is_new] = faults_.try_emplace(std::move(key));
    if (is_new) {
      if (seq < num_planned()) {
        finding.step = plan_.steps[static_cast<std::size_t>(planned(seq))].step;
      }
      locate(finding, plan_.mesh(), rank);
      it->second = {std::move(finding), std::move(text), {}};
    }
    it->second.ranks.push_back(rank.value);
  }

  void report(Fault fault) {
    fault.finding.message =
        fmt::format("{}: {}", describe_rank(plan_.mesh(), Rank{*fault.finding.rank}), fault.text);
    if (fault.ranks.size() > 1) {
      fault.finding.message +=
          "; likewise on " + describe_ranks(fault.ranks, evidence_.num_ranks());
    }
    recorder_.add(std::move(fault.finding));
  }

  const Evidence& evidence_;
  const Plan& plan_;
  CheckRecorder& recorder_;
  std::vector<std::int64_t> planned_;  ///< plan steps with a collective
  std::map<FaultKey, Fault> faults_;
};

/// Rows that the placements of a parameter give to each coordinate along the mesh dim that cuts
/// it, and that dim; -1 and all rows where none does. Read from the placements alone.
std::pair<int, std::vector<Interval>> implied_rows(const PlannedParameter& parameter,
                                                   const Mesh& mesh) {
  const std::int64_t rows = parameter.shape.at(0);
  for (int dim = 0; dim < mesh.num_dims(); ++dim) {
    const Placement& placement = parameter.sharded.at(static_cast<std::size_t>(dim));
    const auto* shard = std::get_if<Shard>(&placement);
    if ((shard != nullptr && shard->dim == 0) || std::holds_alternative<RaggedShard>(placement)) {
      return {dim, rows_along(placement, rows, mesh.size(dim))};
    }
  }
  return {-1, {{0, rows}}};
}

/// Gaps and overlaps of what the ranks of each replica held; of the first faulty replica only.
void check_tiling(const Evidence& evidence, int p, CheckRecorder& recorder) {
  const PlannedParameter& parameter = evidence.parameter(p);
  const auto& shard = evidence.shard_index(p);
  const auto& replica = evidence.ranks.group_along(parameter.sharded_group.dims);
  std::map<std::int64_t, std::vector<Interval>> held_by;
  for (std::int64_t rank = 0; rank < evidence.num_ranks(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const HeldRows held = evidence.run.held_rows(Rank{rank}, p);
    auto& shards = held_by[replica[r]];
    shards.resize(static_cast<std::size_t>(parameter.shard_size()));
    shards[static_cast<std::size_t>(shard[r])] = {held.begin, held.end};
  }
  for (const auto& [index, shards] : held_by) {
    std::vector<Finding> findings = tiling_findings(parameter.shape.at(0), shards, parameter.name);
    for (Finding& finding : findings) {
      finding.message =
          fmt::format("\"{}\", replica {}, as held: {}", parameter.name, index, finding.message);
      recorder.add(std::move(finding));
    }
    if (!findings.empty()) return;
  }
}

}  // namespace

void check_plan_agreement(const Evidence& evidence, CheckRecorder recorder, Verdict& verdict) {
  ExecutionCheck(evidence, recorder).run();
  recorder.finish(verdict);
}

void check_placements(const Evidence& evidence, CheckRecorder recorder, Verdict& verdict) {
  const Mesh& mesh = evidence.plan.mesh();
  for (int p = 0; p < evidence.num_parameters(); ++p) {
    const PlannedParameter& parameter = evidence.parameter(p);
    const auto [cut_dim, rows] = implied_rows(parameter, mesh);
    const auto& coordinate =
        evidence.ranks.index_along(cut_dim < 0 ? MeshDims{} : MeshDims{cut_dim});
    for (std::int64_t rank = 0; rank < evidence.num_ranks(); ++rank) {
      recorder.count(1);
      const Interval implied =
          rows.at(static_cast<std::size_t>(coordinate[static_cast<std::size_t>(rank)]));
      const HeldRows record = evidence.run.held_rows(Rank{rank}, p);
      const Interval held = {record.begin, record.end};
      if (held == implied) continue;
      const bool is_begin = held.begin != implied.begin;
      Finding finding{.code = FindingCode::OffsetWrong,
                      .param = parameter.name,
                      .expected = static_cast<double>(is_begin ? implied.begin : implied.end),
                      .got = static_cast<double>(is_begin ? held.begin : held.end)};
      locate(finding, mesh, Rank{rank});
      finding.message =
          fmt::format("\"{}\" on {}: placements {} imply rows {}, {} held", parameter.name,
                      describe_rank(mesh, Rank{rank}), to_string(parameter.sharded),
                      to_string(implied), to_string(held));
      recorder.add(std::move(finding));
    }
    check_tiling(evidence, p, recorder);
  }
  recorder.finish(verdict);
}

}  // namespace hpsim
