#include "scenario/gradients.h"

#include <fmt/format.h>

#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

/// Two parameters over 4 ranks, 3 steps of 2 micro-batches.
std::string two_parameters(std::string_view training, std::string_view data) {
  return fmt::format(R"({{"hpsim": 1, "mesh": {{"shape": [4], "mesh_dim_names": ["fsdp"]}},)"
                     R"("parameters": {{"a": [4], "b": [8]}},)"
                     R"("training": {{"steps": 3, "micro_batches": 2{}}}, "data": {{{}}}}})",
                     training, data);
}

TEST_CASE("all parameters have gradients in every pass unless something says otherwise") {
  const Scenario scenario = parsed(two_parameters("", ""));
  CHECK(is_ever_trained(scenario, 0));
  CHECK(is_trained(scenario, 1, 2));
  CHECK(is_active(scenario, 0, 2, 1, 3));
  CHECK(has_gradient(scenario, 0, 0, 0));
  CHECK(has_gradient(scenario, 0, 2));
}

TEST_CASE("a frozen parameter has a gradient from the step on that unfreezes it") {
  const Scenario scenario =
      parsed(two_parameters(R"(, "frozen": ["*"], "unfreeze_at": {"a": 0, "b": 1})", ""));
  CHECK(has_gradient(scenario, 0, 0));
  CHECK_FALSE(is_trained(scenario, 1, 0));
  CHECK_FALSE(has_gradient(scenario, 1, 0));
  CHECK(has_gradient(scenario, 1, 1));
  CHECK(has_gradient(scenario, 1, 2, 0));
  CHECK(is_ever_trained(scenario, 1));
  const Scenario never = parsed(two_parameters(R"(, "frozen": ["b"])", ""));
  CHECK_FALSE(is_ever_trained(never, 1));
  CHECK_FALSE(has_gradient(never, 1, 2));
}

TEST_CASE("a parameter that all ranks leave out has no gradient, or zeros where these are asked") {
  const char* const out = R"("inactive": [{"params": ["a"], "steps": [1], "micro_batches": [0]},)"
                          R"({"params": ["a"], "steps": [2]}])";
  const Scenario scenario = parsed(two_parameters("", out));
  CHECK(has_gradient(scenario, 0, 0, 0));
  CHECK_FALSE(is_active(scenario, 0, 1, 0, 2));
  CHECK(is_active(scenario, 1, 1, 0, 2));
  CHECK_FALSE(has_gradient(scenario, 0, 1, 0));
  CHECK(has_gradient(scenario, 0, 1, 1));
  CHECK(has_gradient(scenario, 0, 1));
  CHECK_FALSE(has_gradient(scenario, 0, 2));
  CHECK(has_gradient(scenario, 1, 2));
  const Scenario zeros = parsed(two_parameters(R"(, "reduce_unused": true)", out));
  CHECK(zeros.training.reduce_unused);
  CHECK_FALSE(is_active(zeros, 0, 2, 0, 2));
  CHECK(has_gradient(zeros, 0, 1, 0));
  CHECK(has_gradient(zeros, 0, 2));
}

TEST_CASE("one rank that uses a parameter gives it a gradient") {
  const Scenario scenario =
      parsed(two_parameters(R"(, "reduce_unused": true, "frozen": ["b"])",
                            R"("inactive": [{"params": ["*"], "ranks": [0, 1, 2]}])"));
  CHECK_FALSE(is_active(scenario, 0, 0, 0, 2));
  CHECK(is_active(scenario, 0, 0, 0, 3));
  CHECK(has_gradient(scenario, 0, 0, 0));
  CHECK_FALSE(has_gradient(scenario, 1, 0, 0));
}

TEST_CASE("a tied weight is used where any of its modules is") {
  const Scenario scenario = parsed(
      R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]}, "model": [)"
      R"({"name": "l0", "type": "linear", "in_features": 8, "out_features": 8},)"
      R"({"name": "l1", "type": "linear", "in_features": 8, "out_features": 8, "tied_to": "l0"},)"
      R"({"name": "l2", "type": "linear", "in_features": 8, "out_features": 8}],)"
      R"("fully_shard": {"units": []}, "training": {"steps": 2}, "data": {"inactive": [)"
      R"({"modules": ["l0"]}, {"modules": ["l1"], "steps": [1]}]}})");
  CHECK(has_gradient(scenario, 0, 0));
  CHECK(has_gradient(scenario, 1, 0));
  CHECK_FALSE(has_gradient(scenario, 0, 1));
}

TEST_CASE("loss terms are divided by their number, on a rank or on all, or not at all") {
  const auto chain = [](std::string_view normalization, std::string_view tokens,
                        std::string_view numerics = "") {
    return parsed(
        chain_with(fmt::format(R"("training": {{"micro_batches": 2, "loss_normalization": "{}"}},)"
                               R"("data": {{"sample_shape": [5, 8]{}}}{})",
                               normalization, tokens, numerics)));
  };
  const char* const tokens = R"(, "tokens": [10, [7, 2], 3, 1])";
  const Scenario all = chain("local_mean", "");
  CHECK(num_valid_positions(all, 3, 1) == 10);
  CHECK(loss_divisor(all, 3, 1, 3) == 10 * 3 * 2);
  const Scenario some = chain("local_mean", tokens);
  CHECK(num_valid_positions(some, 1, 0) == 7);
  CHECK(num_valid_positions(some, 1, 1) == 2);
  CHECK(loss_divisor(some, 1, 1, 3) == 2 * 3 * 2);
  CHECK(loss_divisor(some, 1, 1, 1) == 2 * 2);
  CHECK(loss_divisor(chain("global_tokens", ""), 0, 0, 3) == 4 * 2 * 10 * 3);
  CHECK(loss_divisor(chain("global_tokens", tokens), 0, 0, 3) == (20 + 9 + 6 + 2) * 3);
  CHECK(loss_divisor(chain("sum", tokens), 0, 0, 3) == 1);
}

TEST_CASE("in exact mode counts of loss terms are rounded up to powers of two, one by one") {
  const Scenario scenario =
      parsed(minimal_with(R"("training": {"micro_batches": 3}, "numerics": {"mode": "exact"})"));
  CHECK(loss_divisor(scenario, 0, 0, 56) == 128 * 4);
}

}  // namespace
}  // namespace hpsim
