#include "verify/ledger.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "plan/step_text.h"
#include "verify/check_recorder.h"
#include "verify/diagnose.h"
#include "verify/rank_counts.h"

namespace hpsim {
namespace {

/// Bytes that differ in an event: what, and both numbers.
struct Difference {
  std::string what;
  std::int64_t expected = 0;
  std::int64_t got = 0;
};

std::optional<Difference> difference_of(const MemoryEvent& expected, const MemoryEvent& got) {
  for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind) {
    if (expected.live_after[kind] == got.live_after[kind]) continue;
    return Difference{fmt::format("live bytes of {} after", name_of(static_cast<MemoryKind>(kind))),
                      expected.live_after[kind], got.live_after[kind]};
  }
  if (expected.peak_total == got.peak_total) return std::nullopt;
  return Difference{"most bytes alive within", expected.peak_total, got.peak_total};
}

/// Compares the events of all ranks; the first one of the plan that differs is the finding.
class EventCheck {
 public:
  explicit EventCheck(const Evidence& evidence) : evidence_(evidence) {}

  void compare(Rank rank, std::span<const MemoryEvent> expected, std::span<const MemoryEvent> got) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (expected[i] == got[i]) continue;
      ++num_different_;
      if (num_different_ > 1 && i >= first_.plan_step) continue;
      first_ = {i, rank, *difference_of(expected[i], got[i])};
    }
  }

  void report(CheckRecorder& recorder) const {
    if (num_different_ == 0) return;
    const Plan& plan = evidence_.plan;
    const Step& step = plan.steps[first_.plan_step];
    Finding finding{.code = FindingCode::MemEstimate,
                    .step = step.step,
                    .expected = static_cast<double>(first_.difference.expected),
                    .got = static_cast<double>(first_.difference.got)};
    locate(finding, plan.mesh(), first_.rank);
    finding.message =
        fmt::format("{}: {} {} (step {} of the plan, {} of optimizer step {}): {} expected, {} got",
                    describe_rank(plan.mesh(), first_.rank), first_.difference.what,
                    step_text(plan, step), first_.plan_step, name_of(step.phase), step.step,
                    first_.difference.expected, first_.difference.got);
    if (num_different_ > 1) {
      finding.message += fmt::format("; and {} more, of all ranks", num_different_ - 1);
    }
    recorder.add(std::move(finding));
  }

 private:
  struct First {
    std::size_t plan_step = 0;
    Rank rank;
    Difference difference;
  };

  const Evidence& evidence_;
  std::int64_t num_different_ = 0;
  First first_;
};

/// Peaks and what is alive after optimizer steps, of one rank.
class LevelCheck {
 public:
  LevelCheck(const Evidence& evidence, CheckRecorder& recorder)
      : recorder_(recorder), counts_(evidence, FindingCode::MemEstimate) {}

  void compare_peaks(Rank rank, const std::string& when, const Ledger& expected,
                     const Ledger& got) {
    recorder_.count(1);
    counts_.compare(rank, std::nullopt, "peak bytes in total" + when, expected.peak_total(),
                    got.peak_total());
    compare_kinds(rank, std::nullopt, expected.peak(), got.peak(), [&](std::string_view kind) {
      return fmt::format("peak bytes of {}{}", kind, when);
    });
  }

  void compare_after(Rank rank, std::int64_t step, const BytesByKind& expected,
                     const BytesByKind& got) {
    compare_kinds(rank, step, expected, got, [&](std::string_view kind) {
      return fmt::format("live bytes of {} after step {}", kind, step);
    });
  }

  void report() { counts_.report(recorder_); }

 private:
  template <class Describe>
  void compare_kinds(Rank rank, std::optional<std::int64_t> step, const BytesByKind& expected,
                     const BytesByKind& got, const Describe& describe) {
    recorder_.count(static_cast<std::int64_t>(kNumMemoryKinds));
    for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind) {
      if (expected[kind] == got[kind]) continue;
      counts_.compare(rank, step, describe(name_of(static_cast<MemoryKind>(kind))), expected[kind],
                      got[kind]);
    }
  }

  CheckRecorder& recorder_;
  CountCheck counts_;
};

}  // namespace

void check_ledger(const Evidence& evidence, Verdict& verdict) {
  CheckRecorder recorder(CheckId::Ledger);
  PlannedMemories planned(evidence);
  EventCheck events(evidence);
  LevelCheck levels(evidence, recorder);
  const RunResult& run = evidence.run;
  for (std::int64_t r = 0; r < evidence.num_ranks(); ++r) {
    const Rank rank{r};
    const RankRecord& measured = run.rank_record(rank);
    const PlannedMemory& memory = planned.of(rank);
    levels.compare_peaks(rank, " while parameters were made", memory.init, measured.init);
    levels.compare_peaks(rank, "", memory.ledger, measured.ledger);
    for (std::int64_t step = 0; step < evidence.num_steps(); ++step) {
      levels.compare_after(rank, step, memory.live_after.at(static_cast<std::size_t>(step)),
                           run.step_record(rank, step).live_after);
    }
    if (!run.layout().records_events()) continue;
    events.compare(rank, memory.events, run.memory_events(rank));
    recorder.count(run.layout().num_events() * static_cast<std::int64_t>(kNumMemoryKinds + 1));
  }
  events.report(recorder);
  levels.report();
  recorder.finish(verdict);
}

}  // namespace hpsim
