#include "verify/invariants.h"

#include <fmt/format.h>

#include <functional>
#include <utility>

#include "scenario/precision.h"
#include "verify/check_recorder.h"
#include "verify/compare_shard.h"
#include "verify/diagnose.h"
#include "verify/rank_counts.h"
#include "verify/suspect.h"
#include "verify/told_findings.h"

namespace hpsim {
namespace {

/// Compares the copies of shards; one finding per tensor and time.
class ReplicaCheck {
 public:
  ReplicaCheck(const Evidence& evidence, CheckRecorder& recorder)
      : evidence_(evidence), recorder_(recorder) {
    for (int p = 0; p < evidence.num_parameters(); ++p) {
      holders_.push_back(holders_of(evidence, p));
      RankGroups& alike = alike_.emplace_back();
      for (const std::vector<Rank>& holders : holders_.back()) {
        for (std::vector<Rank>& group : alike_of(evidence, p, holders))
          alike.push_back(std::move(group));
      }
    }
  }

  /// `subject` stands before the quoted name.
  void compare(const std::string& subject, const TensorPlace& place,
               const std::function<TensorView(Rank)>& view_of) {
    compare_within(holders_[static_cast<std::size_t>(place.parameter)], subject, place, view_of);
  }

  /// The same of what only ranks with the same samples have in common.
  void compare_alike(const std::string& subject, const TensorPlace& place,
                     const std::function<TensorView(Rank)>& view_of) {
    compare_within(alike_[static_cast<std::size_t>(place.parameter)], subject, place, view_of);
  }

 private:
  void compare_within(const RankGroups& groups, const std::string& subject,
                      const TensorPlace& place, const std::function<TensorView(Rank)>& view_of) {
    std::int64_t num_diverged = 0;
    std::optional<Finding> first;
    Rank first_holder;
    for (const std::vector<Rank>& group : groups) {
      const TensorView expected = view_of(group.front());
      for (std::size_t i = 1; i < group.size(); ++i) {
        const TensorView got = view_of(group[i]);
        recorder_.count(got.elems);
        const auto position = first_difference(expected, got);
        if (!position) continue;
        ++num_diverged;
        if (first) continue;
        first = describe(subject, place, group, group[i], *position, view_of);
        first_holder = group.front();
      }
    }
    if (!first) return;
    if (num_diverged > 1) {
      first->message += fmt::format("; {} copies diverged in all", num_diverged);
    }
    if (num_told_++ < kMaxFindingsPerCheck) tell_right_copy(place, first_holder, *first);
    recorder_.add(std::move(*first));
  }

  [[nodiscard]] Finding describe(const std::string& subject, const TensorPlace& place,
                                 const std::vector<Rank>& group, Rank rank, std::int64_t position,
                                 const std::function<TensorView(Rank)>& view_of) const {
    const int p = place.parameter;
    const std::optional<std::int64_t> step = place.step;
    const PlannedParameter& parameter = evidence_.parameter(p);
    const Mesh& mesh = evidence_.plan.mesh();
    const std::int64_t part = evidence_.part_index(p)[static_cast<std::size_t>(rank.value)];
    Finding finding{.code = FindingCode::ReplicaDiverged, .param = parameter.name, .step = step};
    finding.expected = view_of(group.front()).at(position);
    finding.got = view_of(rank).at(position);
    finding.index = index_in(evidence_.held(p, part).boxes, position);
    locate(finding, mesh, rank);
    std::vector<std::int64_t> ranks;
    for (const Rank member : group)
      ranks.push_back(member.value);
    const DType dtype = carrier_dtype(evidence_.plan.scenario);
    finding.message = fmt::format(
        "{} \"{}\", {}, index {}: copies on {} differ: {} expected as on rank {}, {} got on {}",
        subject, parameter.name, step ? fmt::format("step {}", *step) : "before step 0",
        to_string(finding.index), describe_ranks(ranks, evidence_.num_ranks()),
        format_value(*finding.expected, dtype), group.front().value,
        format_value(*finding.got, dtype), describe_rank(mesh, rank));
    return finding;
  }

  /// Which of the two copies the baseline agrees with, if it does with one alone.
  void tell_right_copy(const TensorPlace& place, Rank first, Finding& finding) const {
    const Rank other{*finding.rank};
    const Suspect of_first(evidence_, place, first);
    const Suspect of_other(evidence_, place, other);
    if (of_first.expected.value.size() != of_first.size()) return;
    const bool first_agrees = of_first.agrees(of_first.expected);
    if (first_agrees == of_other.agrees(of_other.expected)) return;
    finding.explains = {fmt::format(
        "is the copy on rank {} that is off: that on rank {} is what the "
        "baseline says",
        first_agrees ? other.value : first.value, first_agrees ? first.value : other.value)};
    finding.message += explained(finding.explains);
  }

  const Evidence& evidence_;
  CheckRecorder& recorder_;
  std::vector<RankGroups> holders_;  ///< per parameter: ranks by shard
  std::vector<RankGroups> alike_;    ///< per parameter: see alike_of
  std::size_t num_told_ = 0;
};

bool has_copies(const Evidence& evidence) {
  for (int p = 0; p < evidence.num_parameters(); ++p) {
    if (evidence.num_parts(p) < evidence.num_ranks()) return true;
  }
  return false;
}

/// Slots hold more elements than the parameter has.
bool has_padding(const Evidence& evidence, int p) {
  const PlannedParameter& parameter = evidence.parameter(p);
  const Mesh& mesh = evidence.plan.mesh();
  std::int64_t slots = 0;
  Coordinate coordinate(static_cast<std::size_t>(mesh.num_dims()), 0);
  do {
    slots += parameter.padded_elems.at(mesh, coordinate);
  } while (advance(mesh, parameter.cut_dims(), coordinate));
  return slots != num_elems(parameter.shape);
}

bool has_padding(const Evidence& evidence) {
  for (int p = 0; p < evidence.num_parameters(); ++p) {
    if (has_padding(evidence, p)) return true;
  }
  return false;
}

void find_nonzero_padding(const Evidence& evidence, Rank rank, CheckRecorder& recorder) {
  const RankRecord& record = evidence.run.rank_record(rank);
  if (record.padding_nonzero == 0) return;
  Finding finding{.code = FindingCode::PaddingNonzero,
                  .expected = 0,
                  .got = static_cast<double>(record.padding_nonzero)};
  locate(finding, evidence.plan.mesh(), rank);
  const std::int64_t p = record.first_nonzero_parameter;
  if (p >= 0 && p < evidence.num_parameters()) {
    finding.param = evidence.parameter(static_cast<int>(p)).name;
  }
  if (record.first_nonzero_step >= 0) finding.step = record.first_nonzero_step;
  finding.message = fmt::format(
      "padding sent by {}: 0 elements that are not zero expected, {} of {} got, the first in "
      "\"{}\", step {}",
      describe_rank(evidence.plan.mesh(), rank), record.padding_nonzero, record.padding_checked,
      finding.param, record.first_nonzero_step);
  recorder.add(std::move(finding));
}

/// A padded parameter of which a rank held more than its true shard.
void find_exposed_padding(const Evidence& evidence, int p, CheckRecorder& recorder) {
  const PlannedParameter& parameter = evidence.parameter(p);
  if (!has_padding(evidence, p)) return;
  for (std::int64_t rank = 0; rank < evidence.num_ranks(); ++rank) {
    const std::int64_t part = evidence.part_index(p)[static_cast<std::size_t>(rank)];
    const std::int64_t wanted = evidence.held(p, part).elems;
    std::int64_t held = 0;
    for (const Box& box : evidence.run.held_boxes(Rank{rank}, p))
      held += num_elems(box.shape);
    if (held <= wanted) continue;
    Finding finding{.code = FindingCode::PaddingExposed,
                    .param = parameter.name,
                    .expected = static_cast<double>(wanted),
                    .got = static_cast<double>(held)};
    locate(finding, evidence.plan.mesh(), Rank{rank});
    finding.message = fmt::format(
        "\"{}\" on {}: {} elements of the true shard expected, {} held: "
        "padding shows outside communication",
        parameter.name, describe_rank(evidence.plan.mesh(), Rank{rank}), wanted, held);
    recorder.add(std::move(finding));
  }
}

}  // namespace

void check_replicas(const Evidence& evidence, Verdict& verdict) {
  if (!has_copies(evidence)) return;
  CheckRecorder recorder(CheckId::ReplicaAgreement);
  ReplicaCheck check(evidence, recorder);
  const RunResult& run = evidence.run;
  const int num_states = evidence.plan.scenario.training.optimizer.num_state_tensors();
  for (int p = 0; p < evidence.num_parameters(); ++p) {
    check.compare("parameter", {TensorKind::Parameter, 0, p, std::nullopt},
                  [&](Rank rank) { return run.parameter(rank, 0, p); });
  }
  for (std::int64_t step = 0; step < evidence.num_steps(); ++step) {
    for (int p = 0; p < evidence.num_parameters(); ++p) {
      check.compare_alike("gradient of", {TensorKind::Gradient, 0, p, step},
                          [&](Rank rank) { return run.gradient(rank, step, p); });
    }
    for (int p = 0; p < evidence.num_parameters(); ++p) {
      check.compare("parameter", {TensorKind::Parameter, 0, p, step},
                    [&](Rank rank) { return run.parameter(rank, step + 1, p); });
      for (int state = 0; state < num_states; ++state) {
        check.compare_alike(fmt::format("optimizer state {} of", state),
                            {TensorKind::State, state, p, step},
                            [&](Rank rank) { return run.state(rank, step, state, p); });
      }
    }
  }
  recorder.finish(verdict);
}

void check_padding(const Evidence& evidence, Verdict& verdict) {
  CheckRecorder recorder(CheckId::Padding);
  const bool is_padded = has_padding(evidence);
  PlannedMemories planned(evidence);
  CountCheck counts(evidence, FindingCode::PaddingExposed);
  for (std::int64_t rank = 0; rank < evidence.num_ranks(); ++rank) {
    const RankRecord& record = evidence.run.rank_record(Rank{rank});
    recorder.count(is_padded ? record.padding_checked : 1);
    find_nonzero_padding(evidence, Rank{rank}, recorder);
    const PlannedMemory& memory = planned.of(Rank{rank});
    counts.compare(Rank{rank}, std::nullopt, "padded slots allocated",
                   is_padded ? memory.pad_allocations : 0, record.pad_allocations);
    counts.compare(Rank{rank}, std::nullopt, "times padding was written",
                   is_padded ? memory.pad_copies : 0, record.pad_copies);
  }
  for (int p = 0; p < evidence.num_parameters(); ++p)
    find_exposed_padding(evidence, p, recorder);
  counts.report(recorder);
  recorder.finish(verdict);
}

}  // namespace hpsim
