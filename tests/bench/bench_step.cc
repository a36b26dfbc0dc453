// Measures what hpsim costs over what it cannot do without: `bench_step [hpsim binary]`.
// Ratios are taken within one repetition, in which everything runs once in turn; medians of 5.

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <Eigen/Core>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench_ranks.h"
#include "bench/engine_steps.h"
#include "bench/stock_collectives.h"
#include "exec/gloo/supervisor.h"
#include "exec/stopwatch.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "support/scenarios.h"

extern char** environ;

namespace hpsim::bench {
namespace {

constexpr int kRepetitions = 5;
constexpr std::int64_t kRanks = 4;
constexpr std::int64_t kGlobalBatch = 8;
constexpr int kLayers = 8;
constexpr std::int64_t kEven = 1024;
constexpr std::int64_t kUneven = 1021;

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Eight linear layers of `features` x `features`, one optimizer step more than is measured, or
/// `times` as many.
VerifiedPlan plan_of(std::int64_t features, std::int64_t units_ahead = 0, std::int64_t times = 1) {
  std::vector<ModuleSpec> modules;
  for (int i = 0; i < kLayers; ++i) {
    modules.push_back(test::linear(fmt::format("l{}", i), features, features));
  }
  Scenario scenario = test::fsdp_scenario(test::modules_model(std::move(modules)), kRanks);
  scenario.training.steps = (kRepetitions + 1) * times;
  scenario.training.global_batch = kGlobalBatch;
  scenario.fully_shard.forward_prefetch = units_ahead;
  scenario.fully_shard.backward_prefetch = units_ahead;
  return verify_plan(build_plan(std::move(scenario)));
}

/// The collectives and products of one optimizer step, without anything around them. Every bucket
/// has memory of its own, as its parameters have in the engine.
class BareStep {
 public:
  BareStep(const Plan& plan, const BenchRank& self) : self_(self) {
    for (std::int64_t i = 0; i < kRanks; ++i)
      everyone_.members.push_back(Rank{i});
    buckets_.resize(plan.buckets.size());
    for (const Step& step : plan.steps) {
      if (step.step > 0) break;
      if (!step.collective) continue;
      calls_.push_back({step.collective->op, static_cast<std::size_t>(step.bucket)});
    }
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      Buffers& bucket = buckets_[b];
      const std::int64_t row = plan.buckets[b].row_elems.largest();
      bucket.row.assign(static_cast<std::size_t>(row), 0.01F);
      bucket.parameters.assign(static_cast<std::size_t>(row * kRanks), 0.01F);
      bucket.gradients.assign(static_cast<std::size_t>(row * kRanks), 0.01F);
      bucket.stock =
          std::make_unique<StockReduceScatter>(self.stock_context, bucket.gradients.data(), row);
    }
    const std::int64_t batch = kGlobalBatch / kRanks;
    const std::int64_t features = plan.scenario.model.modules[0].in_features;
    activations_.assign(kLayers + 1, Matrix::Constant(batch, features, 0.01F));
    gradients_.assign(kLayers + 1, Matrix::Constant(batch, features, 0.01F));
  }

  void collectives() {
    for (const Call& call : calls_) {
      Buffers& bucket = buckets_[call.bucket];
      const auto row = static_cast<std::int64_t>(bucket.row.size());
      const bool gathers = call.op == CollectiveOp::AllGather;
      const float* const input = gathers ? bucket.row.data() : bucket.gradients.data();
      float* const output = gathers ? bucket.parameters.data() : bucket.row.data();
      (void)self_.session.communicate({0, call.op, DType::Float32, input, output,
                                       gathers ? row : row * kRanks, gathers ? row * kRanks : row},
                                      everyone_, ++tag_);
    }
  }

  void stock_collectives() {
    for (const Call& call : calls_) {
      Buffers& bucket = buckets_[call.bucket];
      if (call.op == CollectiveOp::AllGather) {
        stock_all_gather(self_.stock_context, bucket.row.data(), bucket.parameters.data(),
                         bucket.row.size(), static_cast<std::uint32_t>(++tag_));
      } else {
        bucket.stock->run();
      }
    }
  }

  void products() {
    for (std::size_t i = 0; i < kLayers; ++i) {
      activations_[i + 1].noalias() = activations_[i] * weight(i).transpose();
    }
    for (std::size_t i = kLayers; i-- > 0;) {
      const auto size = activations_[0].cols();
      Eigen::Map<Matrix> weight_gradient(buckets_[i].gradients.data(), size, size);
      weight_gradient.noalias() = gradients_[i + 1].transpose() * activations_[i];
      if (i > 0) gradients_[i].noalias() = gradients_[i + 1] * weight(i);
    }
  }

 private:
  struct Buffers {
    std::vector<float> row, parameters, gradients;
    std::unique_ptr<StockReduceScatter> stock;
  };
  struct Call {
    CollectiveOp op;
    std::size_t bucket;
  };
  [[nodiscard]] Eigen::Map<const Matrix> weight(std::size_t layer) const {
    const auto size = activations_[0].cols();
    return {buckets_[layer].parameters.data(), size, size};
  }

  const BenchRank self_;
  RankGroup everyone_;
  std::vector<Call> calls_;
  std::vector<Buffers> buckets_;
  std::vector<Matrix> activations_, gradients_;
  std::uint64_t tag_ = 1 << 20;
};

/// What the events of one optimizer step cost alone, in seconds: a ledger that is told of one
/// buffer per step of the plan, and writes each event down.
double time_of_events(const Plan& plan) {
  constexpr int kRounds = 1000;
  const auto num_events = plan.steps.size() / static_cast<std::size_t>(kRepetitions + 1);
  std::vector<MemoryEvent> events(num_events);
  const auto run = [&](bool records) {
    Ledger ledger;
    const Stopwatch watch;
    for (int round = 0; round < kRounds; ++round) {
      for (std::size_t i = 0; i < num_events; ++i) {
        if (records) ledger.begin_event();
        ledger.allocate(MemoryKind::Gradients, static_cast<std::int64_t>(i));
        ledger.release(MemoryKind::Gradients, static_cast<std::int64_t>(i));
        if (records) events[i] = ledger.event();
      }
    }
    return watch.elapsed_s() / kRounds;
  };
  (void)run(true);
  return run(true) - run(false);
}

void print_row(const std::string& what, const std::string& aim, const std::string& figure) {
  fmt::print("{:<58} {:>10} {:>10}\n", what, aim, figure);
}

std::string ms(double seconds) {
  return fmt::format("{:.1f} ms", seconds * 1e3);
}

/// Median over repetitions of what `ratio` makes of one repetition.
template <class Ratio>
double median_ratio(Ratio ratio) {
  std::vector<double> ratios;
  for (std::size_t r = 0; r < kRepetitions; ++r)
    ratios.push_back(ratio(r));
  return median(ratios);
}

void bench_steps() {
  const VerifiedPlan even_plan = plan_of(kEven);
  const VerifiedPlan uneven_plan = plan_of(kUneven);
  const auto rows = measure(
      kRanks, kRepetitions,
      {"engine step, 8 linear layers 1024 x 1024, FSDP over 4", "the same, 1021 x 1021",
       "its collectives alone", "its collectives by Gloo's own algorithms",
       "its Eigen products alone", "the engine step without events of memory"},
      [&](const BenchRank& self) {
        const auto even = std::make_shared<EngineSteps>(even_plan, self.session);
        const auto uneven = std::make_shared<EngineSteps>(uneven_plan, self.session);
        const auto bare = std::make_shared<BareStep>(*even_plan, self);
        const auto unrecorded = std::make_shared<EngineSteps>(even_plan, self.session, false);
        return std::vector<Variant>{
            {"", [even] { even->run_one(); }},     {"", [uneven] { uneven->run_one(); }},
            {"", [bare] { bare->collectives(); }}, {"", [bare] { bare->stock_collectives(); }},
            {"", [bare] { bare->products(); }},    {"", [unrecorded] { unrecorded->run_one(); }}};
      });
  for (const Measured& row : rows)
    print_row(row.name, "", ms(row.median_s()));
  const auto time = [&](std::size_t row, std::size_t repetition) {
    return rows[row].times_s[repetition];
  };
  print_row("engine step / (collectives + products)", "<= 1.2",
            fmt::format("{:.2f}", median_ratio([&](std::size_t r) {
                          return time(0, r) / (time(2, r) + time(4, r));
                        })));
  print_row("engine step / (Gloo's own collectives + products)", "<= 1.2",
            fmt::format("{:.2f}", median_ratio([&](std::size_t r) {
                          return time(0, r) / (time(3, r) + time(4, r));
                        })));
  print_row(
      "1021 / 1024", "<= 1.05",
      fmt::format("{:.2f}", median_ratio([&](std::size_t r) { return time(1, r) / time(0, r); })));
  print_row("events of memory alone / engine step", "<= 0.01",
            fmt::format("{:.6f}", time_of_events(*even_plan) / rows[0].median_s()));
  print_row(
      "engine step / without events of memory", "",
      fmt::format("{:.3f}", median_ratio([&](std::size_t r) { return time(0, r) / time(5, r); })));
}

/// A step without and with one unit gathered ahead. Each comes first and last in turn: what is run
/// first in a repetition is slower.
void bench_prefetch() {
  const VerifiedPlan plain_plan = plan_of(kEven, 0, 2);
  const VerifiedPlan ahead_plan = plan_of(kEven, 1, 2);
  const auto rows = measure(
      kRanks, kRepetitions, {"plain", "ahead", "ahead", "plain"}, [&](const BenchRank& self) {
        const auto plain = std::make_shared<EngineSteps>(plain_plan, self.session);
        const auto ahead = std::make_shared<EngineSteps>(ahead_plan, self.session);
        const Variant of_plain{"", [plain] { plain->run_one(); }};
        const Variant of_ahead{"", [ahead] { ahead->run_one(); }};
        return std::vector<Variant>{of_plain, of_ahead, of_ahead, of_plain};
      });
  const auto time = [&](std::size_t row, std::size_t repetition) {
    return rows[row].times_s[repetition];
  };
  print_row("engine step, one unit gathered ahead", "",
            ms((rows[1].median_s() + rows[2].median_s()) / 2));
  print_row("one unit ahead / none", "<= 1.02",
            fmt::format("{:.2f}", median_ratio([&](std::size_t r) {
                          return (time(1, r) + time(2, r)) / (time(0, r) + time(3, r));
                        })));
}

void bench_connect() {
  const auto describe = [](std::int64_t) { return std::string("nothing"); };
  for (const std::int64_t num_ranks : {4, 8}) {
    std::vector<double> times;
    for (int i = 0; i < kRepetitions; ++i) {
      times.push_back(run_ranks(num_ranks, RunOptions{}, describe, [](RankSession&) {}).connect_s);
    }
    print_row(fmt::format("starting and connecting {} ranks", num_ranks),
              num_ranks == 4 ? "< 60 ms" : "", ms(median(times)));
  }
}

/// Wall time of one run of the binary; nothing if it did not pass.
std::optional<double> time_of_run(const std::string& binary, const std::string& scenario) {
  std::string run = "run";
  std::string program = binary;
  std::string file = scenario;
  char* const arguments[] = {program.data(), run.data(), file.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", 1 /* O_WRONLY */, 0);
  const Stopwatch watch;
  pid_t pid = 0;
  const int failed = posix_spawn(&pid, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return std::nullopt;
  int status = 0;
  waitpid(pid, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return std::nullopt;
  return watch.elapsed_s();
}

void bench_start_to_verdict(const std::string& binary) {
  const std::string scenario = (std::filesystem::temp_directory_path() /
                                ("hpsim_bench_" + std::to_string(getpid()) + ".json"))
                                   .string();
  std::ofstream(scenario) << R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
                                 "parameters": {"weight": [7, 8]}})";
  std::vector<double> times;
  for (int i = 0; i < kRepetitions; ++i) {
    if (const auto time_s = time_of_run(binary, scenario)) times.push_back(*time_s);
  }
  std::remove(scenario.c_str());
  const bool all_passed = times.size() == kRepetitions;
  print_row("start to verdict, smallest scenario, 4 ranks on Gloo", "< 150 ms",
            all_passed ? ms(median(times)) : "no run of " + binary);
}

}  // namespace
}  // namespace hpsim::bench

int main(int argc, char** argv) {
  fmt::print("{:<58} {:>10} {:>10}\n", "median of 5, interleaved", "aim", "figure");
  hpsim::bench::bench_steps();
  hpsim::bench::bench_prefetch();
  hpsim::bench::bench_connect();
  hpsim::bench::bench_start_to_verdict(argc > 1 ? argv[1] : "build/hpsim");
}
