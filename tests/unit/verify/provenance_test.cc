// Which ranks and micro-batches made a gradient that is off: each fault is planted in what ranks
// send or get, and one beside it that is similar must not be taken for it.

#include "verify/provenance.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "baseline/contributions.h"
#include "baseline/eigen_baseline.h"
#include "explained_run.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "support/scenarios.h"
#include "verify/compare_runs.h"
#include "verify/gradient_causes.h"

namespace hpsim::test {
namespace {

using Texts = std::vector<std::string>;

constexpr auto kGradients = CheckId::GradientParity;

/// Two layers on rep 2 x fsdp 2, two micro-batches, all of which are reduced.
Scenario layers() {
  Scenario scenario = hsdp_scenario(
      modules_model({linear("l0", 5, 7), activation("a", ModuleType::Gelu), linear("l1", 7, 3)}), 2,
      2);
  scenario.training.micro_batches = 2;
  scenario.training.global_batch = 4 * scenario.num_data_ranks();
  return scenario;
}

/// The same on fsdp 3.
Scenario three() {
  Scenario scenario = fsdp_scenario(
      modules_model({linear("l0", 5, 7), activation("a", ModuleType::Gelu), linear("l1", 7, 3)}),
      3);
  scenario.training.micro_batches = 3;
  scenario.training.global_batch = 6 * scenario.num_data_ranks();
  return scenario;
}

/// Ranks for which `is_it` holds scatter their gradients times a factor.
Spoiling scattered(float factor,
                   const std::function<bool(std::int64_t rank, std::int64_t m)>& is_it) {
  return {.sent =
              [=](const Step& step, Rank rank, const CollectiveCall& call) {
                if (step.kind != StepKind::ReduceScatter) return;
                if (!is_it(rank.value, step.micro_batch)) return;
                auto* const data = static_cast<float*>(const_cast<void*>(call.input));
                std::for_each(data, data + call.elems_in, [&](float& value) { value *= factor; });
              },
          .got = {}};
}

Texts explained_of(const Scenario& scenario, const Spoiling& spoiling) {
  return explanations(ExplainedRun(scenario, spoiling).judge(), kGradients);
}

/// The rank of the first finding, and what explains it.
struct Told {
  std::int64_t rank = 0;
  Texts texts;
};

Told told_of(const Scenario& scenario, const Spoiling& spoiling) {
  const Verdict verdict = ExplainedRun(scenario, spoiling).judge();
  for (const Finding& finding : verdict.findings) {
    if (finding.check == kGradients) return {*finding.rank, finding.explains};
  }
  FAIL("no such finding");
  return {};
}

/// What was got is replaced: `what(sent buffers, call, rank)` gives it.
using Replacement =
    std::function<std::vector<float>(const SentBuffers&, const CollectiveCall&, Rank)>;
Spoiling replaced(StepKind kind, const Replacement& what) {
  auto sent = std::make_shared<SentBuffers>();
  return {.sent =
              [=](const Step& step, Rank rank, const CollectiveCall& call) {
                if (step.kind == kind) sent->keep(step, rank, call);
              },
          .got =
              [=](const Step& step, Rank rank, const CollectiveCall& call) {
                if (step.kind != kind) return;
                const std::vector<float> values = what(*sent, call, rank);
                std::copy(values.begin(), values.end(), static_cast<float*>(call.output));
              }};
}

/// The slot of `rank` on fsdp 3 in what `sender` sent.
std::vector<float> slot_of(const SentBuffers& sent, const CollectiveCall& call, Rank sender,
                           Rank rank) {
  const std::vector<float>& all = sent.of(call, sender);
  const auto begin = all.begin() + rank.value * call.elems_out;
  return {begin, begin + call.elems_out};
}

TEST_CASE("right runs ask the baseline nothing") {
  CHECK(ExplainedRun(layers()).judge().passed());
  CHECK(ExplainedRun(three()).judge().passed());
}

TEST_CASE("planted: the contribution of a rank is lost, or counts twice, or by half") {
  const auto is_3 = [](std::int64_t rank, std::int64_t) { return rank == 3; };
  CHECK(explained_of(layers(), scattered(0, is_3)) ==
        Texts{"equals the gradient without the contribution of rank 3"});
  CHECK(explained_of(layers(), scattered(2, is_3)) ==
        Texts{"counts the contribution of rank 3 twice"});
  // Half of it: neither. Least squares find the factor, which is 1/M.
  CHECK(explained_of(layers(), scattered(0.5F, is_3)) ==
        Texts{"counts the contributions of data ranks 3 times 0.5, others once"});
  // A factor that nothing has.
  CHECK(explained_of(layers(), scattered(0.9F, is_3)).empty());
}

TEST_CASE("planted: several ranks count by factors of their own") {
  const auto texts = explained_of(
      three(), {.sent =
                    [](const Step& step, Rank rank, const CollectiveCall& call) {
                      if (step.kind != StepKind::ReduceScatter || rank.value == 0) return;
                      auto* const data = static_cast<float*>(const_cast<void*>(call.input));
                      for (std::int64_t i = 0; i < call.elems_in; ++i)
                        data[i] *= rank.value == 1 ? 3.0F : 2.0F;
                    },
                .got = {}});
  CHECK(texts == Texts{"counts the contributions of data ranks 1, 2 times 3, 2, others once"});
}

TEST_CASE("planted: a micro-batch is lost, counts twice, or is all that there is") {
  const auto is_1 = [](std::int64_t, std::int64_t m) { return m == 1; };
  CHECK(explained_of(three(), scattered(0, is_1)) ==
        Texts{"equals the gradient without micro-batch 1"});
  CHECK(explained_of(three(), scattered(2, is_1)) == Texts{"counts micro-batch 1 twice"});
  const auto is_not_2 = [](std::int64_t, std::int64_t m) { return m != 2; };
  CHECK(explained_of(three(), scattered(0, is_not_2)) == Texts{"equals micro-batch 2 alone"});
  // Of one rank only, it is another fault.
  const auto is_one_pass = [](std::int64_t rank, std::int64_t m) { return m == 1 && rank == 2; };
  CHECK(explained_of(three(), scattered(0, is_one_pass)) ==
        Texts{"equals the gradient without micro-batch 1 of rank 2"});
  CHECK(explained_of(three(), scattered(2, is_one_pass)) ==
        Texts{"counts micro-batch 1 of rank 2 twice"});
}

TEST_CASE("planted: replicas are not averaged, or shards not reduced") {
  const auto own = [](const SentBuffers& sent, const CollectiveCall& call, Rank rank) {
    return sent.of(call, rank);
  };
  const Told replicas = told_of(layers(), replaced(StepKind::AllReduce, own));
  CHECK(replicas.texts == Texts{fmt::format("equals what rep={} alone adds: not reduced over rep",
                                            replicas.rank / 2)});
  // D times too large besides, as where it is scaled for a mean that never came.
  const auto scaled = [](const SentBuffers& sent, const CollectiveCall& call, Rank rank) {
    std::vector<float> values = sent.of(call, rank);
    for (float& value : values)
      value *= 4;
    return values;
  };
  const Told times_4 = told_of(layers(), replaced(StepKind::AllReduce, scaled));
  CHECK(times_4.texts ==
        Texts{fmt::format("equals D=4 times what rep={} alone adds: not reduced over rep",
                          times_4.rank / 2)});
  const auto own_slot = [](const SentBuffers& sent, const CollectiveCall& call, Rank rank) {
    return slot_of(sent, call, rank, rank);
  };
  const Told shards = told_of(three(), replaced(StepKind::ReduceScatter, own_slot));
  CHECK(shards.texts ==
        Texts{fmt::format("equals the contribution of rank {} alone: not reduced", shards.rank)});
}

TEST_CASE("planted: a rank gets what another one sent, or it counts in place of a third") {
  const auto of_next = [](const SentBuffers& sent, const CollectiveCall& call, Rank rank) {
    return slot_of(sent, call, Rank{(rank.value + 1) % 3}, rank);
  };
  const Told next = told_of(three(), replaced(StepKind::ReduceScatter, of_next));
  CHECK(next.texts ==
        Texts{fmt::format("equals the contribution of rank {} alone", (next.rank + 1) % 3)});
  const auto instead = [](const SentBuffers& sent, const CollectiveCall& call, Rank rank) {
    std::vector<float> values = slot_of(sent, call, Rank{0}, rank);
    const std::vector<float> of_1 = slot_of(sent, call, Rank{1}, rank);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] += 2 * of_1[i];
    return values;
  };
  const Texts texts = explained_of(three(), replaced(StepKind::ReduceScatter, instead));
  CHECK(texts == Texts{"counts the contribution of rank 1 in place of that of rank 2"});
}

TEST_CASE("planted: the largest is taken for the sum; the smallest is not the largest") {
  const auto extreme = [](bool is_largest) {
    return [=](const SentBuffers& sent, const CollectiveCall& call, Rank rank) {
      std::vector<float> values = slot_of(sent, call, Rank{0}, rank);
      for (const std::int64_t other : {1, 2}) {
        const std::vector<float> next = slot_of(sent, call, Rank{other}, rank);
        for (std::size_t i = 0; i < values.size(); ++i)
          values[i] = is_largest ? std::max(values[i], next[i]) : std::min(values[i], next[i]);
      }
      return values;
    };
  };
  // One micro-batch: the largest of sums is not the sum of the largest.
  Scenario scenario = three();
  scenario.training.micro_batches = 1;
  CHECK(explained_of(scenario, replaced(StepKind::ReduceScatter, extreme(true))) ==
        Texts{"is the largest contribution of all ranks, element by element: max in place of sum"});
  CHECK(explained_of(scenario, replaced(StepKind::ReduceScatter, extreme(false))).empty());
}

TEST_CASE("in exact mode, what follows from an error of an earlier step is told as such") {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {8, 4}}}), 4);
  make_exact(scenario);
  scenario.training.optimizer.lr = 64;  // gradients are means over 32 elements and the batch
  scenario.training.steps = 2;
  const Spoiling spoiling{.sent =
                              [](const Step& step, Rank rank, const CollectiveCall& call) {
                                if (step.kind != StepKind::ReduceScatter) return;
                                if (step.step != 0 || rank.value != 1) return;
                                auto* const data =
                                    static_cast<float*>(const_cast<void*>(call.input));
                                std::fill_n(data, call.elems_in, 0.0F);
                              },
                          .got = {}};
  const Verdict verdict = ExplainedRun(scenario, spoiling).judge();
  CHECK(explanations(verdict, kGradients, "w", 0) ==
        Texts{"equals the gradient without the contribution of rank 1"});
  CHECK(explanations(verdict, kGradients, "w", 1).at(0).find("what is off is older") !=
        std::string::npos);
}

TEST_CASE("planted: norms under sequence parallelism are not reduced over tp") {
  const Scenario scenario = parse_scenario(R"x({"hpsim": 1,
      "mesh": {"shape": [2, 2], "mesh_dim_names": ["fsdp", "tp"]},
      "model": [{"name": "norm", "type": "rms_norm", "dim": 8},
                {"name": "up", "type": "linear", "in_features": 8, "out_features": 6}],
      "parallelize": {"norm": "sequence_parallel", "up": "colwise"},
      "data": {"sample_shape": [4, 8]}, "training": {"global_batch": 8}})x",
                                           "sp.json");
  CHECK(ExplainedRun(scenario).judge().passed());
  const auto own = [](const SentBuffers& sent, const CollectiveCall& call, Rank rank) {
    return sent.of(call, rank);
  };
  const Told told = told_of(scenario, replaced(StepKind::AllReduce, own));
  CHECK(told.texts ==
        Texts{fmt::format("equals what tp={} alone adds: not reduced over tp", told.rank % 2)});
}

TEST_CASE("terms that are too many are not asked for, and the finding says so") {
  const auto is_3 = [](std::int64_t rank, std::int64_t) { return rank == 3; };
  const ExplainedRun spoiled(layers(), scattered(0, is_3));
  const ReferenceRun reference =
      run_baseline(spoiled.plan->scenario, states_before_steps(*spoiled.plan, spoiled.run));
  CountedSources counted(spoiled.plan->scenario, reference.confidence);
  counted.sources.cost = [](const ContributionRequest&) { return 2 * kMostTermNumbers; };
  const Verdict verdict = compare_runs(spoiled.plan, spoiled.run, reference, counted.sources);
  CHECK(counted.num_contributions == 0);
  CHECK(explanations(verdict, kGradients).empty());
  const auto of_gradients = std::find_if(verdict.findings.begin(), verdict.findings.end(),
                                         [](const auto& f) { return f.check == kGradients; });
  CHECK(of_gradients->message.find("which ranks made it was not sought: 1.34e+08 numbers, above "
                                   "the limit of 6.71e+07") != std::string::npos);
}

TEST_CASE("the baseline is asked at most once per finding that is told") {
  const ExplainedRun spoiled(layers(),
                             scattered(0.9F, [](std::int64_t, std::int64_t m) { return m == 0; }));
  const ReferenceRun reference =
      run_baseline(spoiled.plan->scenario, states_before_steps(*spoiled.plan, spoiled.run));
  const CountedSources counted(spoiled.plan->scenario, reference.confidence);
  const Verdict verdict = compare_runs(spoiled.plan, spoiled.run, reference, counted.sources);
  CHECK(counted.num_contributions == 4);  // one of each of four parameters
}

}  // namespace
}  // namespace hpsim::test
