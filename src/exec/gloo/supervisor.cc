#include "exec/gloo/supervisor.h"

#include <fmt/format.h>
#include <gloo/common/error.h>
#include <gloo/common/logging.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "exec/gloo/announced_counts.h"
#include "exec/interrupted.h"
#include "exec/shared_memory.h"

namespace hpsim {

namespace {

constexpr std::chrono::milliseconds kLook{10};
constexpr std::int64_t kProgress_ns = 100'000'000;
// How long something may be wrong before it must be explained by what is known: the end of the
// process that others lost, or the entry of the last rank of a group, shows soon after.
constexpr std::int64_t kGrace_ns = 500'000'000;

/// Memory that a rank frees it soon needs again, and a page fresh from the kernel costs 13 us here.
void keep_freed_memory() {
  constexpr int kNever = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kNever);
  mallopt(M_TRIM_THRESHOLD, kNever);
}

constexpr int kFailed = 1;
constexpr int kLostInThread = 2;

/// Gloo's own thread meets a lost connection too, often before the rank does, and throws where
/// nobody can catch. That is no fault of this rank's own; all else that ends it this way is.
[[noreturn]] void end_on_terminate() {
  try {
    if (const auto thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const gloo::Exception&) {
    _exit(kLostInThread);
  } catch (const gloo::EnforceNotMet&) {
    _exit(kLostInThread);
  } catch (const std::exception& fault) {
    fmt::print(stderr, "{}\n", fault.what());
  }
  std::fflush(stderr);
  std::abort();
}

void run_as_rank(const ControlBlock& control, Rank rank, double timeout_s,
                 const std::function<void(RankSession&)>& body) {
  std::set_terminate(end_on_terminate);
  keep_freed_memory();
  RankSession session(control, rank, timeout_s);
  try {
    session.connect();
    body(session);
    session.meet();
  } catch (const gloo::Exception& lost) {
    session.fail(FailureKind::Transport, lost.what());
    _exit(kFailed);
  } catch (const gloo::EnforceNotMet& lost) {
    session.fail(FailureKind::Transport, lost.what());
    _exit(kFailed);
  } catch (const CountsDisagree& fault) {
    session.fail(FailureKind::Counts, fault.what());
    _exit(kFailed);
  } catch (const std::bad_alloc&) {
    session.fail(FailureKind::Own,
                 "out of memory; fewer ranks, smaller parameters or a smaller batch need less, and "
                 "--backend symbolic needs nearly none");
    _exit(kFailed);
  } catch (const std::system_error& fault) {
    // What a thread that finds no room for its stack throws.
    const bool lacks_thread = fault.code() == std::errc::resource_unavailable_try_again;
    session.fail(FailureKind::Own,
                 lacks_thread ? "out of memory, or of processes, for another thread; fewer ranks "
                                "need less, and --backend symbolic needs nearly none"
                              : fault.what());
    _exit(kFailed);
  } catch (const std::exception& fault) {
    session.fail(FailureKind::Own, fault.what());
    _exit(kFailed);
  }
  _exit(0);  // tearing connections down takes longer than ending the process
}

std::vector<RankView> look_at(const RankProcesses& processes, const ControlBlock& control) {
  std::vector<RankView> views;
  for (std::int64_t i = 0; i < control.num_ranks(); ++i) {
    const RankSlot& slot = control.slot(Rank{i});
    RankView view;
    view.status = slot.read();
    view.entered = slot.entered();
    view.waiting_for = slot.waiting_for.load(std::memory_order_relaxed);
    if (view.status.state == RankState::Failed) view.text = slot.text();
    view.process = processes.states()[static_cast<std::size_t>(i)];
    const bool lost_in_thread =
        view.process == ProcessState{ProcessState::Kind::Exited, kLostInThread};
    if (lost_in_thread && view.status.state != RankState::Failed) {
      view.status.failed_in = view.status.state;
      view.status.state = RankState::Failed;
      view.status.failure = FailureKind::Transport;
      view.text = "a connection was lost";
    }
    views.push_back(std::move(view));
  }
  return views;
}

std::int64_t slowest_step(const ControlBlock& control) {
  std::int64_t slowest = control.slot(Rank{0}).progress.load(std::memory_order_relaxed);
  for (std::int64_t i = 1; i < control.num_ranks(); ++i) {
    slowest = std::min(slowest, control.slot(Rank{i}).progress.load(std::memory_order_relaxed));
  }
  return slowest;
}

/// Whether a rank is where it stays: it ended, or failed, or waits for the end of all.
bool stays(const RankView& rank) {
  return rank.process.ended() || rank.status.state == RankState::Failed ||
         rank.status.state == RankState::Meeting;
}

/// The same failure, told again once the other ranks have come to where they need the rank that
/// ended; at most kGrace_ns later. Those who wait in vain for any other reason do so already.
Failure settled(Failure failure, RankProcesses& processes, const ControlBlock& control,
                const RunOptions& options, const DescribeStep& describe) {
  const auto root = static_cast<std::size_t>(failure.root.value);
  const std::int64_t deadline_ns = now_ns() + kGrace_ns;
  std::vector<RankView> views = look_at(processes, control);
  if (!stays(views[root])) return failure;
  while (!std::all_of(views.begin(), views.end(), stays) && now_ns() < deadline_ns) {
    processes.wait(kLook);
    views = look_at(processes, control);
  }
  const Judgement again = judge_ranks(views, describe, options.timeout_s, true, now_ns());
  if (!again.failure) return failure;
  const auto is_killed = [&](Rank rank) {
    return views[static_cast<std::size_t>(rank.value)].process.kind == ProcessState::Kind::Killed;
  };
  // Of several that were killed at a time, the judge names the lowest.
  const Rank other = again.failure->root;
  const bool same_cause = other == failure.root || (is_killed(other) && is_killed(failure.root));
  return same_cause ? *again.failure : failure;
}

[[noreturn]] void throw_failure(const Failure& failure, const RankProcesses& processes) {
  std::string help = failure.help;
  const std::string output = processes.output();
  if (!output.empty()) help += (help.empty() ? "" : "; ") + ("the ranks wrote: " + output);
  throw Error(ErrorKind::RankFailure, {Diagnostic{.message = failure.message,
                                                  .help = help,
                                                  .code = std::string(name_of(failure.code))}});
}

}  // namespace

void supervise(RankProcesses& processes, const ControlBlock& control, const RunOptions& options,
               const DescribeStep& describe) {
  const SignalWatch signals;
  std::optional<std::int64_t> suspicious_since_ns;
  std::int64_t next_progress_ns = now_ns() + kProgress_ns;
  for (;;) {
    processes.wait(kLook);
    signals.check();
    if (control.all_met()) break;  // asked after the states were read: who ended has met before

    const std::int64_t now = now_ns();
    const std::vector<RankView> views = look_at(processes, control);
    const bool patience_over = suspicious_since_ns && now - *suspicious_since_ns > kGrace_ns;
    const Judgement judgement = judge_ranks(views, describe, options.timeout_s, patience_over, now);
    if (judgement.failure) {
      throw_failure(settled(*judgement.failure, processes, control, options, describe), processes);
    }
    if (judgement.is_suspicious && !suspicious_since_ns) suspicious_since_ns = now;
    if (options.on_progress && now >= next_progress_ns) {
      options.on_progress(slowest_step(control));
      next_progress_ns = now + kProgress_ns;
    }
  }
  processes.end_all();
}

RanksRun run_ranks(std::int64_t num_ranks, const RunOptions& options, const DescribeStep& describe,
                   const std::function<void(RankSession&)>& body) {
  const std::int64_t start_ns = now_ns();
  const ControlBlock control(num_ranks);
  const SignalWatch signals;  // from before the first fork until the last process is gone
  RankProcesses processes(num_ranks,
                          [&](Rank rank) { run_as_rank(control, rank, options.timeout_s, body); });
  supervise(processes, control, options, describe);

  RanksRun run;
  run.output = processes.output();
  std::int64_t last_connected_ns = start_ns;
  std::int64_t last_end_ns = start_ns;
  for (std::int64_t i = 0; i < num_ranks; ++i) {
    const RankSlot& slot = control.slot(Rank{i});
    last_connected_ns = std::max(last_connected_ns, slot.connected_ns.load());
    last_end_ns = std::max(last_end_ns, slot.steps_end_ns.load());
  }
  // Ranks begin as soon as they are connected themselves: what they do before the last one is
  // counts as connecting, so that the two times add up.
  run.connect_s = static_cast<double>(last_connected_ns - start_ns) * 1e-9;
  run.steps_s =
      static_cast<double>(std::max(last_end_ns - last_connected_ns, std::int64_t{0})) * 1e-9;
  return run;
}

}  // namespace hpsim
