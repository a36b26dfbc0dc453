// Losses and gradients of trainings that are easily run in place of the one that is asked for.

#include "verify/variant_causes.h"

#include "baseline/sample_data.h"
#include "explained_run.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim::test {
namespace {

Scenario mlp() {
  return parse_scenario(R"x({"hpsim": 1,
      "mesh": {"shape": [2, 2], "mesh_dim_names": ["fsdp", "tp"]},
      "model": [{"name": "up", "type": "linear", "in_features": 6, "out_features": 10},
                {"name": "act", "type": "gelu"},
                {"name": "down", "type": "linear", "in_features": 10, "out_features": 4}],
      "parallelize": {"up": "colwise", "down": "rowwise"}})x",
                        "mlp.json");
}

/// Adds `times` the bias of "down" to its output, once it is reduced over tp.
Spoiling more_bias(const Scenario& scenario, float times) {
  const std::vector<double> bias = draw_parameters(scenario).at(3);
  return {.sent = {}, .got = [=](const Step& step, Rank, const CollectiveCall& call) {
            if (step.kind != StepKind::Redistribute || step.phase != Phase::Forward) return;
            auto* const output = static_cast<float*>(call.output);
            for (std::int64_t i = 0; i < call.elems_out; ++i)
              output[i] += times * static_cast<float>(bias[static_cast<std::size_t>(i) % 4]);
          }};
}

TEST_CASE("planted: every rank of tp adds the bias of a row-wise layer") {
  const Scenario scenario = mlp();
  REQUIRE(scenario.parameters.at(3).name == "down.bias");
  CHECK(ExplainedRun(scenario).judge().passed());
  // tp 2: once too often.
  const Verdict verdict = ExplainedRun(scenario, more_bias(scenario, 1)).judge();
  const std::string wanted =
      "is what a bias gives, \"down.bias\", that every rank of tp adds: the difference is "
      "(tp-1)*bias, tp-1=1";
  const auto of_loss = explanations(verdict, CheckId::LossParity);
  REQUIRE(of_loss.size() == 1);
  CHECK(of_loss[0].rfind(wanted + " (", 0) == 0);
  CHECK(explanations(verdict, CheckId::GradientParity) == std::vector<std::string>{wanted});
  // Half of it too much is not that.
  const Verdict half = ExplainedRun(scenario, more_bias(scenario, 0.5F)).judge();
  CHECK(explanations(half, CheckId::LossParity).empty());
  CHECK(explanations(half, CheckId::GradientParity).empty());
}

/// Linear on two ranks with 1 and 3 valid positions of 4.
Scenario unequal() {
  Scenario scenario = fsdp_scenario(modules_model({linear("l", 5, 3)}), 2);
  scenario.training.global_batch = 8;
  scenario.data.tokens = {{1}, {3}};
  scenario.training.loss_normalization = LossNormalization::GlobalTokens;
  return scenario;
}

TEST_CASE("planted: the mean of means in place of the mean over all, and the other way round") {
  Scenario local = unequal();
  local.training.loss_normalization = LossNormalization::LocalMean;
  const Verdict verdict = ExplainedRun(unequal(), local).judge();
  const auto of_loss = explanations(verdict, CheckId::LossParity);
  REQUIRE_FALSE(of_loss.empty());
  CHECK(of_loss[0].rfind("is the mean of the means of micro-batches, as \"local_mean\" gives it (",
                         0) == 0);
  CHECK(explanations(verdict, CheckId::GradientParity) ==
        std::vector<std::string>{
            "is the mean of the means of micro-batches, as \"local_mean\" gives it"});
  const Verdict other = ExplainedRun(local, unequal()).judge();
  CHECK(explanations(other, CheckId::LossParity).at(0).find("\"global_tokens\"") !=
        std::string::npos);
  // Counts of other tokens are neither.
  Scenario others = unequal();
  others.data.tokens = {{2}, {3}};
  CHECK(explanations(ExplainedRun(unequal(), others).judge(), CheckId::LossParity).empty());
}

TEST_CASE("planted: positions that are not valid count") {
  Scenario all = unequal();
  all.data.tokens.clear();
  CHECK(explanations(ExplainedRun(unequal(), all).judge(), CheckId::LossParity)
            .at(0)
            .rfind("counts positions that are not valid (", 0) == 0);
}

}  // namespace
}  // namespace hpsim::test
