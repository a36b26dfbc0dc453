#include <fmt/format.h>
#include <gloo/common/error.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "exec/gloo/supervisor.h"
#include "exec/interrupted.h"
#include "exec/shared_memory.h"
#include "exec/stopwatch.h"
#include "support/catch.h"
#include "unit/exec/leftovers.h"

namespace hpsim {
namespace {

using Catch::Matchers::Contains;
using Body = std::function<void(RankSession&)>;

const DescribeStep kDescribe = [](std::int64_t step) { return fmt::format("step {}", step); };

RunOptions within(double timeout_s) {
  RunOptions options;
  options.timeout_s = timeout_s;
  return options;
}

RankGroup everyone(std::int64_t num_ranks) {
  RankGroup group;
  for (std::int64_t i = 0; i < num_ranks; ++i)
    group.members.push_back(Rank{i});
  return group;
}

/// One all-gather of `elems` elements among all four ranks.
void gather(RankSession& session, RankGroup& group, std::int64_t plan_step, std::uint64_t tag,
            std::int64_t elems = 3) {
  const std::vector<float> input(static_cast<std::size_t>(elems), 1.0F);
  std::vector<float> output(static_cast<std::size_t>(elems) * group.members.size());
  session.enter_step(plan_step);
  (void)session.communicate({plan_step, CollectiveOp::AllGather, DType::Float32, input.data(),
                             output.data(), elems, elems * 4},
                            group, tag);
}

/// Three all-gathers on four ranks; between the second and the third, `rank` does `fault`.
Body with_fault(std::int64_t rank, std::function<void()> fault) {
  return [rank, fault = std::move(fault)](RankSession& session) {
    RankGroup group = everyone(4);
    gather(session, group, 0, 100);
    gather(session, group, 1, 101);
    session.enter_step(2);
    if (session.rank() == Rank{rank}) fault();
    gather(session, group, 3, 103);
  };
}

struct Outcome {
  std::string message;
  std::string help;
  double time_s = 0;
};

/// Runs four ranks that must fail, and leave nothing behind.
Outcome fail(const Body& body, double timeout_s = 20) {
  const PrivateDirectory directory;
  const std::string before = leftovers();
  const Stopwatch watch;
  Outcome outcome;
  try {
    run_ranks(4, within(timeout_s), kDescribe, body);
    FAIL("the run did not fail");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::RankFailure);
    outcome = {error.diagnostics().at(0).message, error.diagnostics().at(0).help,
               watch.elapsed_s()};
  }
  CHECK(leftovers() == before);
  INFO(outcome.message);
  return outcome;
}

TEST_CASE("a rank killed by SIGKILL is named, with what it did and who waited for it") {
  const Outcome outcome = fail(with_fault(2, [] { kill(getpid(), SIGKILL); }));
  CHECK_THAT(outcome.message, Contains("rank 2 was killed by SIGKILL while at work on step 2"));
  CHECK(outcome.time_s < 5);
}

TEST_CASE("a rank killed while the others compute is told of with where they then need it") {
  const Outcome outcome = fail([](RankSession& session) {
    RankGroup group = everyone(4);
    gather(session, group, 1, 101);
    session.enter_step(2);
    if (session.rank() == Rank{2}) kill(getpid(), SIGKILL);
    usleep(20'000);
    gather(session, group, 3, 103);
  });
  CHECK_THAT(outcome.message, Contains("rank 2 was killed by SIGKILL while at work on step 2"));
  CHECK_THAT(outcome.message, Contains("waited for it"));
  CHECK(outcome.help == "ranks 0, 1, 3 were in step 3");
}

TEST_CASE("a rank that throws is named with its own words, not with the errors that follow") {
  const Outcome outcome = fail(with_fault(1, [] { throw std::runtime_error("no such shard"); }));
  CHECK_THAT(outcome.message, Contains("rank 1 failed while at work on step 2: no such shard"));
  CHECK(outcome.time_s < 5);
}

TEST_CASE("a rank that exits before all have met is named with its status") {
  const Outcome outcome = fail(with_fault(0, [] { _exit(3); }));
  CHECK_THAT(outcome.message, Contains("rank 0 exited with status 3 while at work on step 2"));
  CHECK(outcome.time_s < 5);
}

TEST_CASE("a rank that aborts is named, and what it wrote is kept") {
  const Outcome outcome = fail(with_fault(3, [] {
    fmt::print(stderr, "last words\n");
    std::fflush(stderr);
    std::signal(SIGABRT, SIG_DFL);  // the test framework's handler would write more
    std::abort();
  }));
  CHECK_THAT(outcome.message, Contains("rank 3 was killed by SIGABRT while at work on step 2"));
  CHECK_THAT(outcome.help, Contains("the ranks wrote: last words"));
}

TEST_CASE("a stopped rank ends the run soon after the timeout") {
  const Outcome outcome = fail(with_fault(3, [] { raise(SIGSTOP); }), 1);
  CHECK_THAT(outcome.message, Contains("rank 3 is stopped by SIGSTOP while at work on step 2"));
  CHECK_THAT(outcome.message, Contains("waited for it"));
  CHECK(outcome.time_s >= 1);
  CHECK(outcome.time_s < 3);
}

TEST_CASE("a rank that is busy for longer than the timeout is named") {
  const Outcome outcome = fail(with_fault(0, [] { sleep(60); }), 1);
  CHECK_THAT(outcome.message, Contains("rank 0 has been at work on step 2 for "));
  CHECK_THAT(outcome.message, Contains("ranks 1, 2, 3 waited for it"));
  CHECK_THAT(outcome.help, Contains("ranks 1, 2, 3 were in step 3"));
  CHECK(outcome.time_s < 3);
}

TEST_CASE("a rank that never connects is named") {
  const PrivateDirectory directory;
  const std::string before = leftovers();
  const Stopwatch watch;
  const ControlBlock control(3);
  RankProcesses processes(3, [&](Rank rank) {
    RankSession session(control, rank, 1);
    if (rank == Rank{1}) sleep(60);
    try {
      session.connect();
    } catch (const gloo::Exception& lost) {
      session.fail(FailureKind::Transport, lost.what());
    }
  });
  CHECK_THROWS_WITH(
      supervise(processes, control, within(1), kDescribe),
      Contains("rank 1 has been starting for") && Contains("ranks 0, 2 waited for it"));
  CHECK(watch.elapsed_s() < 3);
  processes.end_all();
  CHECK(leftovers().find("children") == std::string::npos);
}

TEST_CASE("a process killed from outside, by the pid that the pool knows, is named") {
  const ControlBlock control(2);
  RankProcesses processes(2, [&](Rank rank) {
    RankSession session(control, rank, 20);
    session.connect();
    session.enter_step(4);
    sleep(60);
  });
  while (control.slot(Rank{1}).read().plan_step != 4)
    usleep(1000);
  kill(processes.pid(Rank{1}), SIGKILL);
  CHECK_THROWS_WITH(supervise(processes, control, within(20), kDescribe),
                    Contains("rank 1 was killed by SIGKILL while at work on step 4"));
}

TEST_CASE("ranks that enter different collectives are told apart at once and both named") {
  const Outcome outcome = fail([](RankSession& session) {
    RankGroup group = everyone(4);
    gather(session, group, 0, 100);
    const bool differs = session.rank() == Rank{2};
    gather(session, group, differs ? 8 : 1, differs ? 108 : 101, differs ? 5 : 3);
  });
  CHECK_THAT(outcome.message, Contains("rank 2 entered step 8 with 5 -> 20 elements"));
  CHECK_THAT(outcome.message, Contains("rank 0 entered step 1 with 3 -> 12 elements"));
  CHECK(outcome.time_s < 5);
}

TEST_CASE("two collectives of equal size in swapped order exchange nothing") {
  const Outcome outcome = fail([](RankSession& session) {
    RankGroup group = everyone(4);
    const bool swapped = session.rank() == Rank{3};
    gather(session, group, swapped ? 1 : 0, swapped ? 101 : 100);
    gather(session, group, swapped ? 0 : 1, swapped ? 100 : 101);
  });
  CHECK_THAT(outcome.message,
             Contains("rank 3 entered step 1") && Contains("rank 0 entered step 0"));
}

TEST_CASE("a rank that leaves out a collective is found at the timeout") {
  const Outcome outcome = fail(
      [](RankSession& session) {
        RankGroup group = everyone(4);
        gather(session, group, 0, 100);
        if (session.rank() != Rank{1}) gather(session, group, 1, 101);
      },
      1);
  CHECK_THAT(outcome.message,
             Contains("rank 1") && Contains("done with all steps") && Contains("waited for it"));
  CHECK(outcome.time_s < 3);
}

/// An all-gather that is only begun; its buffers last as long as it does.
class Begun {
 public:
  Begun(RankSession& session, RankGroup& group, std::int64_t plan_step, std::uint64_t tag)
      : input_(3, 1.0F), output_(3 * group.members.size()) {
    session.enter_step(plan_step);
    collective_ = session.begin(
        {plan_step, CollectiveOp::AllGather, DType::Float32, input_.data(), output_.data(), 3, 12},
        group, tag);
  }
  void complete(RankSession& session) { session.complete(collective_); }

 private:
  std::vector<float> input_;
  std::vector<float> output_;
  BegunCollective collective_;
};

/// Step 0 is begun, `rank` does `fault` in step 1, then step 0 is completed and step 3 entered.
Body with_fault_while_pending(std::int64_t rank, std::function<void()> fault) {
  return [rank, fault = std::move(fault)](RankSession& session) {
    RankGroup group = everyone(4);
    Begun begun(session, group, 0, 100);
    session.enter_step(1);
    if (session.rank() == Rank{rank}) fault();
    begun.complete(session);
    gather(session, group, 3, 103);
  };
}

TEST_CASE("a rank that dies between the begin and the end of a collective is named") {
  const Outcome outcome = fail(with_fault_while_pending(2, [] { kill(getpid(), SIGKILL); }));
  CHECK_THAT(outcome.message, Contains("rank 2 was killed by SIGKILL while at work on step 1"));
  CHECK(outcome.time_s < 5);
}

TEST_CASE("a rank that throws while a collective is pending is named with its own words") {
  const Outcome outcome =
      fail(with_fault_while_pending(1, [] { throw std::runtime_error("no such shard"); }));
  CHECK_THAT(outcome.message, Contains("rank 1 failed while at work on step 1: no such shard"));
  CHECK(outcome.time_s < 5);
}

TEST_CASE("a rank that stalls while a collective is pending is named where others need it next") {
  // What it had begun reaches the others: they wait for it in step 3.
  const Outcome outcome = fail(with_fault_while_pending(0, [] { sleep(60); }), 1);
  CHECK_THAT(outcome.message, Contains("rank 0 has been at work on step 1 for "));
  CHECK_THAT(outcome.message, Contains("ranks 1, 2, 3 waited for it"));
  CHECK(outcome.help == "ranks 1, 2, 3 were in step 3");
  CHECK(outcome.time_s < 3);
}

TEST_CASE("a rank that stalls before it begins is waited for where others complete it") {
  const Outcome outcome = fail(
      [](RankSession& session) {
        RankGroup group = everyone(4);
        session.enter_step(5);
        if (session.rank() == Rank{3}) sleep(60);
        Begun begun(session, group, 0, 100);
        session.enter_step(1);
        begun.complete(session);
      },
      1);
  CHECK_THAT(outcome.message, Contains("rank 3 has been at work on step 5 for "));
  CHECK_THAT(outcome.message, Contains("ranks 0, 1, 2 waited for it"));
  // Not in step 1, which they compute, but in the collective that they complete.
  CHECK(outcome.help == "ranks 0, 1, 2 were in step 0");
  CHECK(outcome.time_s < 3);
}

TEST_CASE("ranks that begin collectives in different order exchange nothing and are told apart") {
  const Outcome outcome = fail([](RankSession& session) {
    RankGroup group = everyone(4);
    const bool swapped = session.rank() == Rank{3};
    Begun first(session, group, swapped ? 1 : 0, swapped ? 101 : 100);
    Begun second(session, group, swapped ? 0 : 1, swapped ? 100 : 101);
    // By tag alone the two would meet: all ranks complete the same one.
    (swapped ? second : first).complete(session);
    (swapped ? first : second).complete(session);
  });
  CHECK_THAT(outcome.message, Contains("rank 3 entered step 1") &&
                                  Contains("rank 0 entered step 0") &&
                                  Contains("as collective 0 of the same group"));
  CHECK(outcome.time_s < 5);
}

TEST_CASE("a rank that begins one more than the others is found where they enter the next") {
  const Outcome outcome = fail([](RankSession& session) {
    RankGroup group = everyone(4);
    std::optional<Begun> extra;
    if (session.rank() == Rank{2}) extra.emplace(session, group, 7, 107);
    gather(session, group, 1, 101);
  });
  CHECK_THAT(outcome.message,
             Contains("rank 2 entered step 7") && Contains("rank 0 entered step 1"));
  CHECK(outcome.time_s < 5);
}

TEST_CASE("SIGINT and SIGTERM end a run and leave nothing") {
  for (const int signal : {SIGINT, SIGTERM}) {
    const PrivateDirectory directory;
    const std::string before = leftovers();
    const Stopwatch watch;
    try {
      run_ranks(4, within(20), kDescribe, with_fault(0, [signal] {
                  kill(getppid(), signal);
                  sleep(60);
                }));
      FAIL("the run was not interrupted");
    } catch (const Interrupted& interrupted) {
      CHECK(interrupted.signal() == signal);
    }
    CHECK(watch.elapsed_s() < 5);
    CHECK(leftovers() == before);
  }
}

TEST_CASE("twenty runs in a row leave nothing behind") {
  const PrivateDirectory directory;
  const std::string before = leftovers();
  for (int i = 0; i < 20; ++i) {
    const RanksRun run = run_ranks(4, within(20), kDescribe, with_fault(0, [] {}));
    CHECK(run.connect_s > 0);
    CHECK(run.output == "");
    CHECK(run.connect_s < 20);
  }
  CHECK(leftovers() == before);
}

/// Whether the process runs; one that ended and nobody has waited for does not.
bool is_running(int pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(stat, line)) return false;
  const std::size_t name_end = line.rfind(')');
  return name_end != std::string::npos && line.compare(name_end, 3, ") Z") != 0;
}

TEST_CASE("ranks do not outlive a parent that is killed") {
  const auto block = map_shared(3 * sizeof(std::atomic<int>));
  auto* const pids = reinterpret_cast<std::atomic<int>*>(block.get());
  const pid_t parent = fork();
  REQUIRE(parent >= 0);
  if (parent == 0) {
    const RankProcesses processes(3, [&](Rank rank) {
      pids[rank.value] = getpid();
      sleep(60);
    });
    sleep(60);
    _exit(0);
  }
  for (int i = 0; i < 3; ++i) {
    while (pids[i] == 0)
      usleep(1000);
    CHECK(is_running(pids[i]));
  }
  kill(parent, SIGKILL);
  REQUIRE(waitpid(parent, nullptr, 0) == parent);
  const Stopwatch watch;
  for (int i = 0; i < 3; ++i) {
    while (is_running(pids[i]) && watch.elapsed_s() < 10)
      usleep(1000);
    CHECK_FALSE(is_running(pids[i]));
  }
}

TEST_CASE("progress is reported with the step of the slowest rank") {
  std::vector<std::int64_t> seen;
  RunOptions options = within(20);
  options.on_progress = [&](std::int64_t step) { seen.push_back(step); };
  run_ranks(2, options, kDescribe, [](RankSession& session) {
    session.slot().progress = session.rank() == Rank{0} ? 7 : 4;
    usleep(450'000);
  });
  CHECK(seen.size() >= 2);
  CHECK(seen.size() <= 5);
  CHECK(seen.back() == 4);
}

TEST_CASE("memory that the machine cannot give is an error of the environment") {
  try {
    (void)map_shared(std::int64_t{1} << 62);
    FAIL("mapped 4 EiB");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Environment);
    CHECK_THAT(error.what(), Contains("cannot map"));
  }
}

TEST_CASE("processes that cannot be started are an error of the environment") {
  // In a child, since giving up root, whom the limit does not bind, cannot be undone.
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (getuid() == 0 && setuid(kNobody) != 0) _exit(2);
    const rlimit none{0, 0};
    setrlimit(RLIMIT_NPROC, &none);
    try {
      const RankProcesses processes(2, [](Rank) {});
    } catch (const Error& error) {
      const bool says_so =
          std::string(error.what()).find("cannot start process 1 of 2") != std::string::npos;
      _exit(error.kind() == ErrorKind::Environment && says_so ? 0 : 3);
    }
    _exit(4);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace hpsim
