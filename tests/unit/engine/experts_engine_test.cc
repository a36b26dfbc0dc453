// Whole trainings with experts, every rank's engine driven by hand: they agree with one rank, and
// hold the memory that the plan says.

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <numeric>

#include "all_to_all_by_hand.h"
#include "engine/rank_engine.h"
#include "mesh/group.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "trace/plan_ledger.h"

namespace hpsim {
namespace {

const char* const kMoe =
    R"({"name": "moe", "type": "moe", "dim": 4, "hidden": 6, "experts": 6, "top_k": 2})";

struct ModelText {
  std::string modules;
  std::string sample_shape;
};

struct Case {
  std::string shape, names, settings, data;
};

VerifiedPlan plan_of(const ModelText& model, const Case& on) {
  return verify_plan(build_plan(parse_scenario(
      fmt::format(R"({{"hpsim": 1, "mesh": {{"shape": [{}], "mesh_dim_names": [{}]}},
                       "model": [{}], "numerics": {{"dtype": "float64"}},
                       "data": {{"sample_shape": [{}]{}}},
                       "training": {{"steps": 3, "global_batch": 12}}{}}})",
                  on.shape, on.names, model.modules, model.sample_shape, on.data, on.settings),
      "test.json")));
}

/// All ranks of a plan in lockstep. Collectives of doubles. Where steps of a kind are spoiled, one
/// number that arrives is another.
class Lockstep {
 public:
  explicit Lockstep(const VerifiedPlan& plan, std::optional<StepKind> spoiled = {})
      : plan_(*plan),
        spoiled_(spoiled),
        result_("test", ResultLayout(*plan, true),
                {static_cast<std::byte*>(std::calloc(
                     1, static_cast<std::size_t>(ResultLayout(*plan, true).size_bytes()))),
                 [](std::byte* data) { std::free(data); }}) {
    for (std::int64_t rank = 0; rank < plan->mesh().num_ranks(); ++rank)
      engines_.push_back(make_rank_engine(plan, Rank{rank}, result_));
    for (std::size_t i = 0; i < plan->steps.size(); ++i)
      run_step(static_cast<std::int64_t>(i));
  }

  [[nodiscard]] const RunResult& result() const { return result_; }

 private:
  using Calls = std::vector<CollectiveCall>;

  void run_step(std::int64_t plan_step) {
    std::vector<std::optional<CollectiveCall>> calls;
    for (const auto& engine : engines_)
      calls.push_back(engine->begin(plan_step));
    const Step& step = plan_.steps[static_cast<std::size_t>(plan_step)];
    if (step.collective) {
      for (const std::vector<Rank>& group : groups_along(plan_.mesh(), step.collective->dims)) {
        Calls of_group;
        for (const Rank rank : group)
          of_group.push_back(calls[static_cast<std::size_t>(rank.value)].value());
        carry_out(of_group);
        if (step.kind == spoiled_) spoil(of_group);
      }
    }
    for (const auto& engine : engines_)
      engine->finish(plan_step);
  }

  static void carry_out(const Calls& group) {
    if (group[0].op == CollectiveOp::AllToAll) return exchange(group);
    const bool is_sum = is_reduction(group[0].op);
    std::vector<double> whole;
    for (const CollectiveCall& call : group) {
      const auto* const input = static_cast<const double*>(call.input);
      if (is_sum) whole.resize(static_cast<std::size_t>(call.elems_in), 0.0);
      for (std::int64_t i = 0; i < call.elems_in; ++i) {
        if (is_sum) {
          whole[static_cast<std::size_t>(i)] += input[i];
        } else {
          whole.push_back(input[i]);
        }
      }
    }
    const double* next = whole.data();
    for (const CollectiveCall& call : group) {
      std::copy_n(next, call.elems_out, static_cast<double*>(call.output));
      if (call.op == CollectiveOp::ReduceScatter) next += call.elems_out;
    }
  }

  static void exchange(const Calls& group) {
    std::vector<TokenEnds> ends;
    for (const CollectiveCall& call : group) {
      ends.push_back({call.input, call.output, call.elems_in, call.elems_out, call.counts_in,
                      call.counts_out});
    }
    all_to_all_by_hand(ends, 8);  // float64 and int64
  }

  static void spoil(const Calls& group) {
    for (const CollectiveCall& call : group) {
      if (call.elems_out == 0) continue;
      static_cast<double*>(call.output)[0] += 0x1p-20;
      return;
    }
  }

  const Plan& plan_;
  std::optional<StepKind> spoiled_;
  RunResult result_;
  std::vector<std::unique_ptr<RankEngine>> engines_;
};

void check_memory(const Plan& plan, const RunResult& run) {
  const Routing routing = run_routing(plan, run);
  for (std::int64_t rank = 0; rank < plan.mesh().num_ranks(); ++rank) {
    const PlannedMemory planned =
        planned_memory(plan, plan.mesh().coordinate_of(Rank{rank}), routing);
    const Ledger& ledger = run.rank_record(Rank{rank}).ledger;
    CAPTURE(rank);
    CHECK(ledger.live() == planned.ledger.live());
    CHECK(ledger.peak() == planned.ledger.peak());
    CHECK(ledger.peak_total() == planned.ledger.peak_total());
    for (std::int64_t step = 0; step < plan.scenario.training.steps; ++step) {
      CHECK(run.step_record(Rank{rank}, step).live_after ==
            planned.live_after[static_cast<std::size_t>(step)]);
    }
  }
}

/// The largest difference of any weight after the last step.
double largest_difference(const Plan& plan, const RunResult& run, const Plan& plan_of_one,
                          const RunResult& run_of_one) {
  const std::int64_t steps = plan.scenario.training.steps;
  const TrainingState got = assemble_state(plan, run, steps);
  const TrainingState expected = assemble_state(plan_of_one, run_of_one, steps);
  double largest = 0;
  for (std::size_t p = 0; p < expected.parameters.size(); ++p) {
    REQUIRE(got.parameters[p].size() == expected.parameters[p].size());
    for (std::size_t i = 0; i < expected.parameters[p].size(); ++i) {
      const double difference = std::abs(got.parameters[p][i] - expected.parameters[p][i]);
      largest = std::max(largest, std::isnan(difference) ? INFINITY : difference);
    }
  }
  return largest;
}

/// Every one of 3 steps does the same sums in another order: of at most 24 rows, 6 experts, 6
/// inner features, three products deep, all numbers under 8, and updates by a tenth of gradients.
constexpr double kTolerance = 3 * 8 * (24 + 6 + 6) * 3 * 0x1p-52;

std::vector<Case> cases(const std::string& moe) {
  const std::string expert = fmt::format(R"(, "parallelize": {{"{}": "expert"}})", moe);
  const std::string inside = fmt::format(
      R"x(, "placements": {{"{0}.experts.w1": {{"tp": "Shard(1)"}},
            "{0}.experts.w3": {{"tp": "Shard(1)"}}, "{0}.experts.w2": {{"tp": "Shard(2)"}}}})x",
      moe);
  const std::string columns =
      fmt::format(R"(, "fully_shard": {{"shard_placement": {{"{}.experts.w*": 1}}}})", moe);
  return {{"2", R"("ep")", expert, ""},
          {"4", R"("fsdp")", "", ""},
          {"2, 2", R"("ep", "fsdp")", expert + columns, ""},
          {"3", R"("ep")", expert, ""},
          {"2", R"("ep")", expert, R"(, "data_dims": [])"},
          {"2", R"("fsdp")", "", ""},
          {"2, 2", R"("fsdp", "ep")", expert, ""},
          {"2, 3", R"("ep", "fsdp")", expert, ""},
          {"2, 2", R"("fsdp", "ep")", expert, R"(, "data_dims": ["fsdp"])"},
          {"2", R"("tp")", inside, ""},
          {"4", R"("tp")", inside, ""},
          {"3, 2", R"("ep", "tp")", expert + inside, ""}};
}

void check(const ModelText& model, const std::string& moe) {
  const VerifiedPlan plan_of_one = plan_of(model, {"1", R"("ep")", "", ""});
  const Lockstep one(plan_of_one);
  check_memory(*plan_of_one, one.result());
  for (const Case& tried : cases(moe)) {
    const VerifiedPlan plan = plan_of(model, tried);
    const Lockstep ranks(plan);
    CAPTURE(tried.shape, tried.names, tried.settings, tried.data);
    CHECK(largest_difference(*plan, ranks.result(), *plan_of_one, one.result()) <= kTolerance);
    check_memory(*plan, ranks.result());
  }
}

TEST_CASE("a training with experts whose inputs need gradients") {
  check({std::string(R"({"type": "linear", "in_features": 5, "out_features": 4}, )") + kMoe, "5"},
        "moe");
}

TEST_CASE("a training with experts that read the model's input") {
  check({std::string(kMoe) + R"(, {"type": "linear", "in_features": 4, "out_features": 2})", "4"},
        "moe");
}

TEST_CASE("a training with experts in a residual, between other modules") {
  check({std::string(R"({"type": "linear", "in_features": 5, "out_features": 4},
                        {"name": "r", "type": "residual",
                         "modules": [{"type": "rms_norm", "dim": 4}, )") +
             kMoe + R"(]}, {"type": "linear", "in_features": 4, "out_features": 3})",
         "5"},
        "r.moe");
}

TEST_CASE("a training with experts one after the other, on sequences") {
  check({std::string(R"({"name": "r", "type": "repeat", "count": 2, "module":
                         {"type": "residual", "modules": [)") +
             kMoe + "]}}",
         "2, 4"},
        "r.*.moe");
}

const Case kThreeRanks = {"3", R"("ep")", R"(, "parallelize": {"moe": "expert"})", ""};

TEST_CASE("trainings with experts: the check sees a number changed on its way to or from them") {
  const ModelText model = {kMoe, "4"};
  const VerifiedPlan plan_of_one = plan_of(model, {"1", R"("ep")", "", ""});
  const VerifiedPlan plan = plan_of(model, kThreeRanks);
  const Lockstep one(plan_of_one);
  const auto difference = [&](std::optional<StepKind> spoiled) {
    const Lockstep ranks(plan, spoiled);
    return largest_difference(*plan, ranks.result(), *plan_of_one, one.result());
  };
  CHECK(difference({}) <= kTolerance);
  for (const StepKind kind : {StepKind::Dispatch, StepKind::Combine})
    CHECK(difference(kind) > 100 * kTolerance);
}

TEST_CASE("routing is recorded: every row chooses top_k experts") {
  const VerifiedPlan plan = plan_of({kMoe, "4"}, kThreeRanks);
  const Lockstep ranks(plan);
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    for (std::int64_t step = 0; step < 3; ++step) {
      const std::int64_t* const counts = ranks.result().routed(Rank{rank}, step, 0);
      CHECK(std::accumulate(counts, counts + 6, std::int64_t{0}) == 4 * 2);
    }
  }
}

TEST_CASE("memory of experts: the check sees that routing is not balanced") {
  const VerifiedPlan plan = plan_of({kMoe, "4"}, kThreeRanks);
  const Lockstep ranks(plan);
  std::int64_t num_different = 0;
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    const PlannedMemory balanced = planned_memory(*plan, plan->mesh().coordinate_of(Rank{rank}));
    const Ledger& ledger = ranks.result().rank_record(Rank{rank}).ledger;
    num_different += ledger.peak() == balanced.ledger.peak() ? 0 : 1;
  }
  CHECK(num_different > 0);
}

}  // namespace
}  // namespace hpsim
