// What a step of tensor parallelism costs over its collectives and products: two linear layers,
// 512 -> 1408 -> 512, colwise and rowwise, batch 1024, on (fsdp 2, tp 2) over Gloo.
// Ratios are taken within one repetition, in which everything runs once in turn; medians of 15.

#include <fmt/format.h>

#include <Eigen/Core>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench_ranks.h"
#include "bench/engine_steps.h"
#include "mesh/group.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "support/scenarios.h"

namespace hpsim::bench {
namespace {

constexpr int kRepetitions = 15;
constexpr std::int64_t kRanks = 4;
constexpr std::int64_t kGlobalBatch = 1024;

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// One optimizer step more than is measured.
VerifiedPlan plan_of(std::int64_t hidden) {
  Scenario scenario = test::fsdp_scenario(
      test::modules_model({test::linear("up", 512, hidden), test::linear("down", hidden, 512)}), 2);
  scenario.mesh = Mesh({2, 2}, {"fsdp", "tp"});
  scenario.roles.tp_dim = 1;
  scenario.styles = {ParallelStyle::Colwise, ParallelStyle::Rowwise};
  const Placement whole = Replicate{};
  scenario.placements = {{whole, Shard{0}}, {whole, Shard{0}}, {whole, Shard{1}}, {whole, whole}};
  scenario.training.steps = kRepetitions + 1;
  scenario.training.global_batch = kGlobalBatch;
  return verify_plan(build_plan(std::move(scenario)));
}

/// The collectives of one optimizer step, and its products, without anything around them.
class BareStep {
 public:
  BareStep(const Plan& plan, RankSession& session, std::int64_t hidden) : session_(session) {
    const Mesh& mesh = plan.mesh();
    const Coordinate coordinate = mesh.coordinate_of(session.rank());
    for (const Step& step : plan.steps) {
      if (step.step > 0) break;
      if (!step.collective) continue;
      const CollectiveSpec& spec = *step.collective;
      Call& call = calls_.emplace_back();
      call.op = spec.op;
      call.group.members = group_of(mesh, spec.dims, session.rank());
      call.group.id = 1000 + static_cast<std::uint64_t>(call.group.members[0].value) +
                      100 * static_cast<std::uint64_t>(spec.dims[0]);
      call.input.assign(static_cast<std::size_t>(spec.elems_in.at(mesh, coordinate)), 0.01F);
      call.output.assign(static_cast<std::size_t>(spec.elems_out.at(mesh, coordinate)), 0.01F);
    }
    const std::int64_t batch = kGlobalBatch / 2;
    const std::int64_t part = (hidden + 1) / 2;
    input_ = Matrix::Constant(batch, 512, 0.01F);
    up_ = Matrix::Constant(part, 512, 0.01F);
    down_ = Matrix::Constant(512, part, 0.01F);
    output_gradient_ = Matrix::Constant(batch, 512, 0.01F);
    up_gradient_ = up_;
    down_gradient_ = down_;
  }

  void collectives() {
    for (Call& call : calls_) {
      const bool in_place = call.op == CollectiveOp::AllReduce;
      float* const output = in_place ? call.input.data() : call.output.data();
      (void)session_.communicate({0, call.op, DType::Float32, call.input.data(), output,
                                  static_cast<std::int64_t>(call.input.size()),
                                  static_cast<std::int64_t>(call.output.size())},
                                 call.group, ++tag_);
    }
  }

  void products() {
    hidden_.noalias() = input_ * up_.transpose();
    output_.noalias() = hidden_ * down_.transpose();
    down_gradient_.noalias() = output_gradient_.transpose() * hidden_;
    hidden_gradient_.noalias() = output_gradient_ * down_;
    up_gradient_.noalias() = hidden_gradient_.transpose() * input_;
  }

 private:
  struct Call {
    CollectiveOp op = CollectiveOp::AllGather;
    RankGroup group;
    std::vector<float> input, output;
  };

  RankSession& session_;
  std::vector<Call> calls_;
  Matrix input_, hidden_, output_, up_, down_;
  Matrix output_gradient_, hidden_gradient_, up_gradient_, down_gradient_;
  std::uint64_t tag_ = 1 << 20;
};

void bench(std::int64_t hidden) {
  const VerifiedPlan plan = plan_of(hidden);
  const auto rows =
      measure(kRanks, kRepetitions, {"engine step", "its collectives alone", "its products alone"},
              [&](const BenchRank& self) {
                const auto engine = std::make_shared<EngineSteps>(plan, self.session);
                const auto bare = std::make_shared<BareStep>(*plan, self.session, hidden);
                return std::vector<Variant>{{"", [engine] { engine->run_one(); }},
                                            {"", [bare] { bare->collectives(); }},
                                            {"", [bare] { bare->products(); }}};
              });
  std::vector<double> ratios;
  for (std::size_t r = 0; r < kRepetitions; ++r)
    ratios.push_back(rows[0].times_s[r] / (rows[1].times_s[r] + rows[2].times_s[r]));
  fmt::print("512 -> {} -> 512, batch {}, fsdp 2 x tp 2: ", hidden, kGlobalBatch);
  for (const Measured& row : rows)
    fmt::print("{} {:.1f} ms, ", row.name, row.median_s() * 1e3);
  fmt::print("step / (collectives + products) {:.2f} (aim <= 1.2)\n", median(ratios));
}

}  // namespace
}  // namespace hpsim::bench

int main() {
  hpsim::bench::bench(1408);
  hpsim::bench::bench(1401);
}
