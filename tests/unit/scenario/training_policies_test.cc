#include <fmt/format.h>

#include <cmath>

#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

std::string training(std::string_view members) {
  return minimal_with(fmt::format("\"training\": {{{}}}", members));
}

/// `pointer: message` of the only mistake.
std::string mistake(const std::string& text) {
  const auto diagnostics = diagnostics_of(text);
  REQUIRE(diagnostics.size() == 1);
  return diagnostics[0].pointer + ": " + diagnostics[0].message;
}

std::string resharding(std::string_view shape, std::string_view name, std::string_view members) {
  return on_mesh(shape, fmt::format("[\"{}\"]", name),
                 fmt::format("\"fully_shard\": {{{}}}", members));
}

TEST_CASE("policies have the defaults of before") {
  const Scenario scenario = parsed(minimal_with(""));
  CHECK(scenario.fully_shard.post_forward_size == 0);
  CHECK(scenario.fully_shard.reshard_after_backward);
  CHECK(scenario.fully_shard.fuses_collectives);
  CHECK(scenario.training.micro_batches == 1);
  CHECK(scenario.training.gradient_syncs.empty());
  CHECK(scenario.training.all_reduces.empty());
  CHECK_FALSE(scenario.training.clip_grad_norm);
  CHECK(scenario.training.trained_from.empty());
  CHECK_FALSE(scenario.training.reduce_unused);
  CHECK(scenario.data.tokens.empty());
  CHECK(scenario.data.inactive.empty());
}

TEST_CASE("reshard_after_forward may be the size to which parameters are cut between passes") {
  const auto spec = [](std::string_view shape, std::string_view name, std::string_view members) {
    return parsed(resharding(shape, name, members)).fully_shard;
  };
  CHECK(spec("[12]", "fsdp", R"("reshard_after_forward": 4)").post_forward_size == 4);
  CHECK(spec("[12]", "fsdp", R"("reshard_after_forward": 4)").reshard_after_forward);
  CHECK(spec("[12]", "fsdp", R"("reshard_after_forward": 12)").post_forward_size == 0);
  CHECK(spec("[12]", "fsdp", R"("reshard_after_forward": 12)").reshard_after_forward);
  CHECK_FALSE(spec("[12]", "fsdp", R"("reshard_after_forward": 1)").reshard_after_forward);
  CHECK_FALSE(spec("[12]", "fsdp", R"("reshard_after_forward": false)").reshard_after_forward);
  // The shard group is what shard_size leaves.
  CHECK(spec("[8]", "dp", R"("shard_size": 4, "reshard_after_forward": 2)").post_forward_size == 2);
  CHECK(spec("[8]", "dp", R"("shard_size": 4, "reshard_after_forward": 4)").post_forward_size == 0);
  CHECK(mistake(resharding("[8]", "dp", R"("shard_size": 4, "reshard_after_forward": 8)")) ==
        "/fully_shard/reshard_after_forward: reshard_after_forward is 8, which does not divide the "
        "shard group of 4 ranks along \"dp.shard\"");
  const auto uneven = diagnostics_of(resharding("[12]", "fsdp", R"("reshard_after_forward": 5)"));
  REQUIRE(uneven.size() == 1);
  CHECK(uneven[0].help == "write a divisor: 1 (false), 2, 3, 4, 6, 12 (true)");
  CHECK(mistake(resharding("[4]", "ddp", R"("reshard_after_forward": 2)")) ==
        "/fully_shard/reshard_after_forward: reshard_after_forward is 2, but parameters are not "
        "sharded: no mesh dim is fsdp_shard_dim");
  CHECK(mistake(resharding("[4]", "fsdp",
                           R"("enable_param_shard": false, "reshard_after_forward": 1)")) ==
        "/fully_shard/reshard_after_forward: reshard_after_forward is 1, but parameters are not "
        "sharded: enable_param_shard is false");
  // What follows from another mistake is not told.
  CHECK(mistake(resharding("[8]", "dp", R"("shard_size": 3, "reshard_after_forward": 5)"))
            .starts_with("/fully_shard/shard_size: "));
}

TEST_CASE("units may be gathered ahead, and the root may stay whole as PyTorch decides") {
  const auto spec = [](std::string_view members) {
    return parsed(resharding("[12]", "fsdp", members)).fully_shard;
  };
  CHECK(spec("").forward_prefetch == 0);
  CHECK(spec("").backward_prefetch == 0);
  CHECK_FALSE(spec("").keeps_root_after_forward);
  const FullyShardSpec ahead = spec(R"("forward_prefetch": 2, "backward_prefetch": 1)");
  CHECK(ahead.forward_prefetch == 2);
  CHECK(ahead.backward_prefetch == 1);
  const FullyShardSpec by_torch = spec(R"("reshard_after_forward": null)");
  CHECK(by_torch.keeps_root_after_forward);
  CHECK(by_torch.reshard_after_forward);
  CHECK(by_torch.post_forward_size == 0);
  CHECK_FALSE(spec(R"("reshard_after_forward": true)").keeps_root_after_forward);
  CHECK(mistake(resharding("[12]", "fsdp", R"("backward_prefetch": -1)")) ==
        "/fully_shard/backward_prefetch: expected an integer of at least 0, found -1");
}

TEST_CASE("parameters may stay whole after backward, and collectives may carry one each") {
  const Scenario scenario = parsed(
      minimal_with(R"("fully_shard": {"reshard_after_backward": false, "comm_fusion": "none"})"));
  CHECK_FALSE(scenario.fully_shard.reshard_after_backward);
  CHECK_FALSE(scenario.fully_shard.fuses_collectives);
}

TEST_CASE("a step may have several micro-batches") {
  const Scenario scenario = parsed(training(R"("micro_batches": 3)"));
  CHECK(scenario.training.micro_batches == 3);
  CHECK(scenario.training.global_batch == 24);
  CHECK(scenario.local_batch() == 6);
  CHECK(scenario.micro_batch_size() == 2);
  CHECK(parsed(training(R"("micro_batches": 3, "global_batch": 12)")).micro_batch_size() == 1);
  CHECK(mistake(training(R"("micro_batches": 3, "global_batch": 16)")) ==
        "/training/global_batch: 16 samples do not divide evenly over 4 data ranks times 3 "
        "micro-batches: 4 remain");
  CHECK(diagnostics_of(training(R"("micro_batches": 3, "global_batch": 16)"))[0].help ==
        "write 12 or 24");
  CHECK(mistake(training(R"("micro_batches": 10000001, "global_batch": 7)")) ==
        "/training/micro_batches: 10000001 micro-batches; the limit is 10000000");
  CHECK(
      mistake(training(R"("micro_batches": 4000, "steps": 3000)")) ==
      "/training/micro_batches: 3000 steps of 4000 micro-batches of a model with 1 parameters and "
      "modules; the limit of their product is 10000000");
  CHECK(mistake(
            on_mesh("[9223372036854775807]", R"(["fsdp"])", R"("training": {"micro_batches": 2})"))
            .starts_with("/training/micro_batches: 9223372036854775807 data ranks times 2"));
}

TEST_CASE("gradients are reduced after every micro-batch, the last, or those that are listed") {
  const auto syncs = [](std::string_view members) { return parsed(training(members)).training; };
  CHECK(syncs(R"("micro_batches": 2, "requires_gradient_sync": "every")").gradient_syncs.empty());
  CHECK(syncs(R"("micro_batches": 2, "requires_gradient_sync": [true, true])")
            .gradient_syncs.empty());
  CHECK(syncs(R"("requires_gradient_sync": "last")").gradient_syncs.empty());
  const TrainingSpec last = syncs(R"("micro_batches": 3, "requires_gradient_sync": "last")");
  CHECK(last.gradient_syncs == std::vector<bool>{false, false, true});
  CHECK_FALSE(last.syncs_gradients(1));
  CHECK(last.syncs_gradients(2));
  CHECK(last.does_all_reduce(0));
  const TrainingSpec listed =
      syncs(R"("micro_batches": 3, "requires_all_reduce": [true, false, true])");
  CHECK(listed.all_reduces == std::vector<bool>{true, false, true});
  CHECK(listed.gradient_syncs.empty());
  for (const char* key : {"requires_gradient_sync", "requires_all_reduce"}) {
    CHECK(mistake(training(fmt::format(R"("micro_batches": 2, "{}": [true])", key))) ==
          fmt::format("/training/{}: 1 entry, but 2 micro-batches", key));
    CHECK(mistake(training(fmt::format(R"("{}": [false, true])", key))) ==
          fmt::format("/training/{}: 2 entries, but 1 micro-batch", key));
    CHECK(mistake(training(fmt::format(R"("micro_batches": 2, "{}": [true, false])", key))) ==
          fmt::format("/training/{0}/1: {0} is false for the last micro-batch, 1: its gradients "
                      "would never be reduced before the optimizer",
                      key));
    CHECK(mistake(training(fmt::format(R"("{}": [])", key))) ==
          fmt::format("/training/{}: 0 entries, but 1 micro-batch", key));
  }
}

TEST_CASE("dividing by all tokens makes the sum the default of reduce_op") {
  const auto op = [](std::string_view members) {
    return parsed(minimal_with(members)).fully_shard.reduce_op;
  };
  const char* const global = R"("training": {"loss_normalization": "global_tokens"})";
  CHECK(parsed(minimal_with(global)).training.loss_normalization ==
        LossNormalization::GlobalTokens);
  CHECK(op(global) == ReduceOp::Sum);
  CHECK(op(std::string(global) + R"(, "fully_shard": {"reduce_op": "avg"})") == ReduceOp::Avg);
  CHECK(op(R"("training": {"loss_normalization": "sum"})") == ReduceOp::Avg);
}

TEST_CASE("gradients may be clipped") {
  const auto clip = [](std::string_view members) {
    return parsed(training(fmt::format("\"clip_grad_norm\": {{{}}}", members)))
        .training.clip_grad_norm.value();
  };
  CHECK(clip(R"("max_norm": 0.25)").max_norm == 0.25);
  CHECK(clip(R"("max_norm": 0.25)").norm_type == 2);
  CHECK(clip(R"("max_norm": 1, "norm_type": 1.5)").norm_type == 1.5);
  CHECK(std::isinf(clip(R"("max_norm": 1, "norm_type": "inf")").norm_type));
  CHECK(mistake(training(R"("clip_grad_norm": {"max_norm": 0})")) ==
        "/training/clip_grad_norm/max_norm: expected a number greater than 0, found 0");
  CHECK(mistake(training(R"("clip_grad_norm": {"max_norm": 1, "norm_type": 0.5})")) ==
        "/training/clip_grad_norm/norm_type: expected a number of at least 1 or \"inf\", found "
        "0.5");
  CHECK(mistake(minimal_with(R"("training": {"clip_grad_norm": {"max_norm": 1}},)"
                             R"("numerics": {"mode": "exact"})"))
            .starts_with("/training/clip_grad_norm: exact mode cannot clip"));
}

std::string freezing(std::string_view members) {
  return chain_with(fmt::format("\"training\": {{\"steps\": 3, {}}}", members));
}

TEST_CASE("frozen parameters are trained from the step that unfreezes them") {
  const auto from = [](const std::string& text) { return parsed(text).training.trained_from; };
  using Steps = std::vector<std::int64_t>;
  CHECK(from(freezing(R"("frozen": ["l0.*"])")) == Steps{3, 3, 0, 0});
  CHECK(from(freezing(R"("frozen": ["*.bias"], "unfreeze_at": {"l1.bias": 2})")) ==
        Steps{0, 3, 0, 2});
  CHECK(from(freezing(R"("frozen": ["l0.*"], "unfreeze_at": {"l0.*": 1, "l0.bias": 1})")) ==
        Steps{1, 1, 0, 0});
  CHECK(from(freezing(R"("frozen": ["l0.*"], "unfreeze_at": {"l0.*": 0})")).empty());
  CHECK(from(freezing(R"("frozen": [], "unfreeze_at": {})")).empty());
  const auto own = [](std::string_view a, std::string_view members) {
    return fmt::format(R"({{"hpsim": 1, "mesh": {{"shape": [4], "mesh_dim_names": ["fsdp"]}},)"
                       R"("parameters": {{"a": {{"shape": [4], "frozen": {}}}, "b": [8]}},)"
                       R"("training": {{"steps": 2{}}}}})",
                       a, members);
  };
  CHECK(from(own("true", "")) == Steps{2, 0});
  CHECK(from(own("false", "")).empty());
  CHECK(from(own("true", R"(, "unfreeze_at": {"a": 1})")) == Steps{1, 0});
  // A default that is written out says no more than one that is not.
  CHECK(from(own("false", R"(, "frozen": ["a"])")) == Steps{2, 0});
  CHECK(mistake(own("true", R"(, "frozen": ["b"])")) ==
        "/training/frozen: no parameter is trained in optimizer step 0, all are frozen: backward "
        "has nothing to do; PyTorch refuses it too");
}

TEST_CASE("what freezing cannot mean is refused") {
  CHECK(mistake(freezing(R"("frozen": ["l0.weight"], "unfreeze_at": {"l0.*": 1})")) ==
        "/training/unfreeze_at/l0.*: \"l0.bias\" is not frozen, and has a gradient already");
  CHECK(mistake(freezing(R"("frozen": ["l0.*"], "unfreeze_at": {"l0.*": 1, "*.bias": 2})"))
            .starts_with("/training/unfreeze_at/*.bias: \"l0.bias\" is unfrozen at step 2 here, "
                         "but at step 1 by /training/unfreeze_at/l0.*"));
  CHECK(mistake(freezing(R"("frozen": ["l0.*"], "unfreeze_at": {"l0.*": 3})")) ==
        "/training/unfreeze_at/l0.*: optimizer step 3 is outside 0..2");
  // What follows from another mistake is not told.
  CHECK(mistake(freezing(R"("frozen": ["l9.*"], "unfreeze_at": {"l0.*": 1})")) ==
        "/training/frozen/0: \"l9.*\" matches no parameter");
  CHECK(mistake(freezing(R"("frozen": ["l9.*"])")) ==
        "/training/frozen/0: \"l9.*\" matches no parameter");
  CHECK(mistake(freezing(R"("frozen": ["l0.*"], "unfreeze_at": {"l9.*": 1})")) ==
        "/training/unfreeze_at/l9.*: \"l9.*\" matches no parameter");
  CHECK(mistake(freezing(R"("frozen": ["**"], "unfreeze_at": {"l1.*": 1})")) ==
        "/training/frozen: no parameter is trained in optimizer step 0, the first is unfrozen at "
        "step 1: backward has nothing to do; PyTorch refuses it too");
}

/// A chain of sequences of 5 with these tokens: 2 samples in each micro-batch.
std::string valid(std::string_view tokens, std::string_view training = "") {
  return chain_with(fmt::format(
      R"("data": {{"sample_shape": [5, 8], "tokens": {}}}, "training": {{{}}})", tokens, training));
}

TEST_CASE("ranks may have fewer valid positions than others") {
  using Tokens = std::vector<std::vector<std::int64_t>>;
  CHECK(parsed(valid("[10, 7, 3, 1]")).data.tokens == Tokens{{10}, {7}, {3}, {1}});
  CHECK(parsed(valid("[10, [7, 2], 3, [1, 1]]", R"("micro_batches": 2)")).data.tokens ==
        Tokens{{10, 10}, {7, 2}, {3, 3}, {1, 1}});
  for (const char* normalization : {"sum", "global_tokens"}) {
    const std::string other = fmt::format(R"("loss_normalization": "{}")", normalization);
    CHECK(parsed(valid("[10, 0, 3, 1]", other)).data.tokens == Tokens{{10}, {0}, {3}, {1}});
  }
  CHECK(parsed(valid("[0, 0, 0, 0]", R"("loss_normalization": "sum")")).data.tokens.size() == 4);
}

TEST_CASE("what tokens cannot be is refused, all of it at once") {
  CHECK(mistake(minimal_with(R"("data": {"tokens": [1, 1, 1, 1]})")) ==
        "/data/tokens: \"tokens\" counts positions of the samples of a model, but the scenario has "
        "\"parameters\"");
  CHECK(mistake(valid("[1, 2, 3]")) == "/data/tokens: 3 entries, but 4 data ranks");
  CHECK(
      messages_of(valid("[11, 0, [1, 1, 1], [3, 12]]", R"("micro_batches": 2)")) ==
      "11 valid positions on data rank 0, but a micro-batch has 10: 2 samples of 5\n"
      "data rank 1 has no valid position, but \"local_mean\" divides by their number: the mean of "
      "no terms\n"
      "3 numbers for data rank 2, but 2 micro-batches\n"
      "12 valid positions on data rank 3, but a micro-batch has 10: 2 samples of 5\n");
  CHECK(mistake(valid("[0, 0, 0, 0]", R"("loss_normalization": "global_tokens")")) ==
        "/data/tokens: no data rank has a valid position, but \"global_tokens\" divides by their "
        "number");
  // Not looked at where the batch is wrong.
  CHECK(mistake(valid("[11, 0, 1, 1]", R"("global_batch": 5)")).starts_with("/training/global_b"));
}

}  // namespace
}  // namespace hpsim
