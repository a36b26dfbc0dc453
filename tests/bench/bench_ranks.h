#pragma once

#include <gloo/context.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "exec/gloo/connect.h"
#include "exec/gloo/control_block.h"
#include "exec/gloo/rank_session.h"
#include "exec/rank_processes.h"
#include "exec/shared_memory.h"

namespace hpsim::bench {

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// What is timed: on one rank, the same on all.
struct Variant {
  std::string name;
  std::function<void()> run;
};

/// One rank, in its own process, connected to all others twice: what Gloo's older algorithms do to
/// the buffers of their sockets must not slow down what hpsim sends.
struct BenchRank {
  RankSession& session;
  std::shared_ptr<gloo::Context> stock_context;
};

using MakeVariants = std::function<std::vector<Variant>(const BenchRank&)>;

struct Measured {
  std::string name;
  std::vector<double> times_s;  ///< per repetition, slowest rank
  [[nodiscard]] double median_s() const { return median(times_s); }
};

/// Runs the variants in turn, `repetitions` times after one round that does not count, all ranks
/// starting each together.
inline std::vector<Measured> measure(std::int64_t num_ranks, int repetitions,
                                     const std::vector<std::string>& names,
                                     const MakeVariants& make) {
  constexpr double kTimeout_s = 120;
  const auto num_names = static_cast<std::int64_t>(names.size());
  const std::int64_t cells = repetitions * num_names * num_ranks;
  const auto memory = map_shared(cells * static_cast<std::int64_t>(sizeof(double)) + 64);
  auto* const arrived = new (memory.get()) std::atomic<std::uint32_t>(0);
  auto* const times = reinterpret_cast<double*>(memory.get() + 64);
  const ControlBlock control(num_ranks);
  const ControlBlock stock_control(num_ranks);

  RankProcesses processes(num_ranks, [&](Rank rank) {
    RankSession session(control, rank, kTimeout_s);
    session.connect();
    const BenchRank self{session, connect_mesh(stock_control, rank, kTimeout_s)};
    const std::vector<Variant> variants = make(self);
    std::uint32_t meetings = 0;
    const auto meet = [&] {
      const std::uint32_t target = ++meetings * static_cast<std::uint32_t>(num_ranks);
      arrived->fetch_add(1);
      wake_all(*arrived);
      for (std::uint32_t seen = arrived->load(); seen < target; seen = arrived->load()) {
        if (!wait_while_equal(*arrived, seen, deadline_after(kTimeout_s))) _exit(1);
      }
    };
    for (int repetition = -1; repetition < repetitions; ++repetition) {
      for (std::int64_t v = 0; v < num_names; ++v) {
        meet();
        const std::int64_t begin = now_ns();
        variants.at(static_cast<std::size_t>(v)).run();
        const double time_s = static_cast<double>(now_ns() - begin) * 1e-9;
        if (repetition >= 0) {
          times[(repetition * num_names + v) * num_ranks + rank.value] = time_s;
        }
      }
    }
    meet();
    _exit(0);
  });
  for (bool ended = false; !ended;) {
    processes.wait(std::chrono::milliseconds(100));
    const auto& states = processes.states();
    for (const ProcessState& state : states) {
      if (state.ended() && (state.kind == ProcessState::Kind::Killed || state.code != 0)) {
        throw std::runtime_error("a rank of the benchmark failed: " + processes.output());
      }
    }
    ended = std::all_of(states.begin(), states.end(), [](const auto& s) { return s.ended(); });
  }

  std::vector<Measured> measured;
  for (std::int64_t v = 0; v < num_names; ++v) {
    Measured row{names[static_cast<std::size_t>(v)], {}};
    for (int repetition = 0; repetition < repetitions; ++repetition) {
      const double* const first = times + (repetition * num_names + v) * num_ranks;
      row.times_s.push_back(*std::max_element(first, first + num_ranks));
    }
    measured.push_back(std::move(row));
  }
  return measured;
}

}  // namespace hpsim::bench
