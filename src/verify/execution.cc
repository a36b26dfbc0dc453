#include "verify/execution.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "layout/coverage.h"
#include "layout/placement.h"
#include "mesh/group.h"
#include "plan/overlap.h"
#include "plan/recomputation.h"
#include "trace/planned_collectives.h"
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
  const std::string micro_batch = plan.scenario.training.micro_batches > 1
                                      ? fmt::format(", micro-batch {}", step.micro_batch)
                                      : std::string();
  return fmt::format("{} of {}, step {}{}, {}", name_of(step.collective->op),
                     payload_text(plan, step), step.step, micro_batch, phase_text(step));
}

/// Compares what ranks executed with the plan; the same fault on several ranks is one finding.
class ExecutionCheck {
 public:
  ExecutionCheck(const Evidence& evidence, CheckRecorder& recorder)
      : evidence_(evidence),
        plan_(evidence.plan),
        recorder_(recorder),
        routing_(run_routing(evidence.plan, evidence.run)) {
    const std::map<std::int64_t, Overlap> overlaps = overlaps_of(plan_);
    for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
      if (!plan_.steps[i].collective) continue;
      planned_.push_back(static_cast<std::int64_t>(i));
      completed_in_.push_back(plan_.steps[i].is_async ? overlaps.at(planned_.back()).completed_in
                                                      : planned_.back());
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
    const RoutedElems wanted = planned_at(rank, seq);
    return entry.elems_in == wanted.in && entry.elems_out == wanted.out;
  }
  /// Elements of the rank, from what it and its group routed where they follow from that.
  [[nodiscard]] RoutedElems planned_at(Rank rank, std::int64_t seq) const {
    const Step& step = plan_.steps[static_cast<std::size_t>(planned(seq))];
    const Coordinate coordinate = plan_.mesh().coordinate_of(rank);
    const CollectiveSpec& spec = *step.collective;
    if (spec.is_routed) return routed_elems(plan_, step, coordinate, routing_);
    return {spec.elems_in.at(plan_.mesh(), coordinate),
            spec.elems_out.at(plan_.mesh(), coordinate)};
  }

  void check_sequence(Rank rank) {
    recorder_.count(1);
    const std::int64_t count = std::min(num_readable(rank), num_planned());
    std::int64_t seq = 0;
    for (; seq < count && executed(rank, seq).plan_step == planned(seq); ++seq) {
      recorder_.count(1);
      check_kind(rank, seq);
      if (!has_planned_shape(rank, seq)) wrong_shape(rank, seq);
      check_completion(rank, seq);
    }
    if (seq == num_planned() && num_executed(rank) == num_planned()) return;
    wrong_sequence(rank, seq);
  }

  /// That it is the planned op, in the planned group and dtype. \pre the rank executed what is
  /// planned with number `seq`
  void check_kind(Rank rank, std::int64_t seq) {
    const ExecutedCollective& entry = executed(rank, seq);
    const auto code = difference_from_plan(plan_, planned(seq), rank, entry);
    if (!code || *code == FindingCode::CommShape) return;
    const auto op_text = [](CollectiveOp op, bool takes_max) {
      return fmt::format("{}{}", name_of(op), takes_max ? " that takes the largest" : "");
    };
    std::string wanted = op_text(spec(seq).op, spec(seq).takes_max);
    std::string got = op_text(entry.op, entry.takes_max);
    if (*code == FindingCode::CommGroup) {
      wanted = members_text(spec(seq).dims, spec(seq).consecutive);
      got = members_text(dims_of_mask(entry.dims), entry.consecutive);
    } else if (*code == FindingCode::CommDtype) {
      wanted = name_of(spec(seq).dtype);
      got = name_of(entry.dtype);
    }
    add(rank, seq, {.code = *code},
        fmt::format("collective {} ({}): {} expected, {} got", seq,
                    describe_collective(plan_, planned(seq)), wanted, got));
  }

  /// "groups along fsdp, such as ranks 0, 2"
  [[nodiscard]] std::string members_text(const MeshDims& dims, std::int64_t consecutive) const {
    std::vector<std::int64_t> members;
    for (const Rank member : group_along(plan_.mesh(), dims, consecutive, Rank{0}).members)
      members.push_back(member.value);
    return fmt::format("groups along {}{}, such as {}", plan_.mesh().names(dims),
                       consecutive > 0 ? fmt::format(" of {} in a row", consecutive) : "",
                       describe_ranks(members, evidence_.num_ranks()));
  }

  /// \pre the rank executed what is planned with number `seq`
  void check_completion(Rank rank, std::int64_t seq) {
    if (plan_.steps[static_cast<std::size_t>(planned(seq))].is_async) recorder_.count(1);
    const std::int64_t wanted = completed_in_[static_cast<std::size_t>(seq)];
    const std::int64_t got = executed(rank, seq).completed_in;
    if (got == wanted) return;
    const auto place = [&](std::int64_t plan_step) {
      const auto num_steps = static_cast<std::int64_t>(plan_.steps.size());
      if (plan_step < 0 || plan_step >= num_steps) return std::string("nowhere");
      const Step& step = plan_.steps[static_cast<std::size_t>(plan_step)];
      return fmt::format("in plan step {}, {}", plan_step, name_of(step.kind));
    };
    add(rank, seq, {.code = FindingCode::CommOrder},
        fmt::format("collective {} ({}): completed {} expected, {} got", seq,
                    describe_collective(plan_, planned(seq)), place(wanted), place(got)));
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
    const auto [in, out] = planned_at(rank, seq);
    const bool is_input = entry.elems_in != in;
    finding.expected = static_cast<double>(is_input ? in : out);
    finding.got = static_cast<double>(is_input ? entry.elems_in : entry.elems_out);
    add(rank, seq, std::move(finding),
        fmt::format("collective {} ({}): {} elements in and {} out expected, {} and {} got", seq,
                    describe_collective(plan_, planned(seq)), in, out, entry.elems_in,
                    entry.elems_out));
  }

  /// Whether the rank executed the plan up to and including number `seq`, with its sizes.
  [[nodiscard]] bool is_comparable(Rank rank, std::int64_t seq) const {
    return seq < num_readable(rank) && executed(rank, seq).plan_step == planned(seq) &&
           has_planned_shape(rank, seq);
  }

  void check_tags(std::int64_t seq) {
    const auto group = evidence_.ranks.group_along(spec(seq).dims, spec(seq).consecutive);
    std::map<std::int64_t, Rank> first_of_group;
    for (std::int64_t rank = 0; rank < evidence_.num_ranks(); ++rank) {
      if (!is_comparable(Rank{rank}, seq)) continue;
      const auto [it, is_first] =
          first_of_group.try_emplace(group[static_cast<std::size_t>(rank)], Rank{rank});
      const std::uint64_t tag = executed(Rank{rank}, seq).tag;
      const std::uint64_t expected =
          is_first ? collective_tag(plan_, planned(seq), it->first, planned_at(Rank{rank}, seq).in,
                                    planned_at(Rank{rank}, seq).out)
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
  Routing routing_;
  std::vector<std::int64_t> planned_;       ///< plan steps with a collective
  std::vector<std::int64_t> completed_in_;  ///< likewise: the plan step
  std::map<FaultKey, Fault> faults_;
};

/// The parts of the global tensor, in elements, that boxes cover.
std::vector<Interval> flat_parts(const Shape& shape, const std::vector<Box>& boxes) {
  std::vector<Interval> parts;
  for (const Box& box : boxes) {
    each_run(shape, box, [&](std::int64_t first, std::int64_t count) {
      parts.push_back({first, first + count});
    });
  }
  return parts;
}

bool is_inside(const Shape& shape, const Box& box) {
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (box.offset[dim] < 0 || box.shape[dim] < 0 || box.offset[dim] + box.shape[dim] > shape[dim])
      return false;
  }
  return true;
}

/// Gaps and overlaps of what the ranks of each replica held; of the first faulty replica only.
void check_tiling(const Evidence& evidence, int p, CheckRecorder& recorder) {
  const PlannedParameter& parameter = evidence.parameter(p);
  const auto& replica = evidence.ranks.group_along(parameter.cut_dims());
  std::map<std::int64_t, std::vector<Interval>> held_by;
  for (std::int64_t rank = 0; rank < evidence.num_ranks(); ++rank) {
    const std::vector<Box> boxes = evidence.run.held_boxes(Rank{rank}, p);
    auto& parts = held_by[replica[static_cast<std::size_t>(rank)]];
    const bool all_inside = std::all_of(boxes.begin(), boxes.end(), [&](const Box& box) {
      return is_inside(parameter.shape, box);
    });
    if (!all_inside) continue;  // told as OFFSET_WRONG; what it should hold is a gap
    for (const Interval part : flat_parts(parameter.shape, boxes))
      parts.push_back(part);
  }
  for (const auto& [index, parts] : held_by) {
    // In rows where all parts are whole rows, as they mostly are.
    const std::int64_t row = row_elems(parameter.shape);
    const bool in_rows = std::all_of(parts.begin(), parts.end(), [&](const Interval& part) {
      return part.begin % row == 0 && part.end % row == 0;
    });
    std::vector<Interval> tiles = parts;
    for (Interval& tile : tiles) {
      if (in_rows) tile = {tile.begin / row, tile.end / row};
    }
    const std::int64_t extent = in_rows ? parameter.shape[0] : num_elems(parameter.shape);
    std::vector<Finding> findings = tiling_findings(extent, tiles, parameter.name);
    for (Finding& finding : findings) {
      finding.message = fmt::format("\"{}\", replica {}, as held, in {}: {}", parameter.name, index,
                                    in_rows ? "rows" : "elements", finding.message);
      recorder.add(std::move(finding));
    }
    if (!findings.empty()) return;
  }
}

/// The first number in which two lists of boxes differ.
std::pair<double, double> first_difference(const std::vector<Box>& expected,
                                           const std::vector<Box>& got) {
  for (std::size_t i = 0; i < std::min(expected.size(), got.size()); ++i) {
    for (std::size_t dim = 0; dim < expected[i].offset.size(); ++dim) {
      const auto pick = [&](const Box& box, bool of_offset) {
        return static_cast<double>(of_offset ? box.offset[dim] : box.offset[dim] + box.shape[dim]);
      };
      for (const bool of_offset : {true, false}) {
        const double a = pick(expected[i], of_offset);
        const double b = pick(got[i], of_offset);
        if (a != b) return {a, b};
      }
    }
  }
  return {static_cast<double>(expected.size()), static_cast<double>(got.size())};
}

}  // namespace

void check_plan_agreement(const Evidence& evidence, CheckRecorder recorder, Verdict& verdict) {
  ExecutionCheck(evidence, recorder).run();
  recorder.finish(verdict);
}

void check_placements(const Evidence& evidence, CheckRecorder recorder, Verdict& verdict) {
  const Mesh& mesh = evidence.plan.mesh();
  const Vocabulary vocabulary = evidence.plan.scenario.fully_shard.vocabulary;
  for (int p = 0; p < evidence.num_parameters(); ++p) {
    const PlannedParameter& parameter = evidence.parameter(p);
    const bool is_disagreed = std::any_of(
        evidence.plan_warnings.begin(), evidence.plan_warnings.end(), [&](const Finding& warning) {
          return warning.code == FindingCode::SpecDisagrees && warning.param == parameter.name;
        });
    const TensorLayout sharded{parameter.shape, parameter.sharded};  // its units may be many
    bool all_as_implied = true;
    for (const Rank rank : evidence.run.layout().recording()) {
      recorder.count(1);
      // What a vocabulary cannot express is compared with the cut itself.
      const Coordinate coordinate = mesh.coordinate_of(rank);
      const std::vector<Box> implied = is_disagreed ? held_shard(mesh, parameter, coordinate).boxes
                                                    : local_boxes(sharded, mesh, coordinate);
      const std::vector<Box> held = evidence.run.held_boxes(rank, p);
      if (held == implied) continue;
      all_as_implied = false;
      const auto [expected, got] = first_difference(implied, held);
      Finding finding{.code = FindingCode::OffsetWrong,
                      .param = parameter.name,
                      .expected = expected,
                      .got = got};
      locate(finding, mesh, rank);
      finding.message =
          fmt::format("\"{}\" on {}: placements {} imply {}, {} held", parameter.name,
                      describe_rank(mesh, rank), to_string(parameter.sharded, vocabulary),
                      to_string(implied), to_string(held));
      recorder.add(std::move(finding));
    }
    // Boxes that are as implied tile the tensor: verify_plan proved it.
    if (!all_as_implied && evidence.run.has_numbers()) check_tiling(evidence, p, recorder);
  }
  recorder.finish(verdict);
}

}  // namespace hpsim
