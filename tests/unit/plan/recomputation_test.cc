// Parts that backward computes again: when their steps come, and faults planted in them.

#include <algorithm>
#include <functional>

#include "plan/build_plan.h"
#include "plan/recomputation.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "unit/plan/activation_scenarios.h"

namespace hpsim {
namespace {

using test::ActivationCase;
using test::function_json;
using test::linear_json;
using test::scenario_of;
using test::told_steps;

using Codes = std::vector<FindingCode>;
using Texts = std::vector<std::string>;

std::string sequential_json(const std::string& name, const std::string& modules) {
  return R"({"name": ")" + name + R"(", "type": "sequential", "modules": [)" + modules + "]}";
}

/// Mesh (fsdp 2, tp 2): in 4 -> 6, blk of up 6 -> 8 colwise, gelu and down 8 -> 6 rowwise, out
/// 6 -> 3; two samples on each data rank.
ActivationCase block_case(const std::string& patterns, const std::string& more = "") {
  return {"2, 2",
          R"("fsdp", "tp")",
          {linear_json("in", 4, 6),
           sequential_json("blk", linear_json("up", 6, 8) + ", " + function_json("act") + ", " +
                                      linear_json("down", 8, 6)),
           linear_json("out", 6, 3)},
          R"("parallelize": {"blk.up": "colwise", "blk.down": "rowwise"},
         "training": {"activation_checkpointing": [)" +
              patterns + "]}" + more};
}

Plan block_plan(const std::string& patterns = R"("blk")", const std::string& more = "") {
  return build_plan(scenario_of(block_case(patterns, more)));
}

Codes codes_of(const Plan& plan) {
  try {
    static_cast<void>(verify_plan(plan));
  } catch (const PlanRejected& rejected) {
    Codes codes;
    for (const Finding& finding : rejected.findings()) {
      UNSCOPED_INFO(finding.message);
      codes.push_back(finding.code);
    }
    return codes;
  }
  return {};
}

int module_of(const Plan& plan, const std::string& name) {
  for (int m = 0; m < static_cast<int>(plan.modules.size()); ++m) {
    if (module_name(plan.scenario.model, m) == name) return m;
  }
  FAIL("no module " << name);
  return 0;
}

ModulePlan& module_at(Plan& plan, const std::string& name) {
  return plan.modules.at(static_cast<std::size_t>(module_of(plan, name)));
}

using At = std::vector<Step>::iterator;

At find(Plan& plan, const std::function<bool(const Step&)>& holds) {
  const At found = std::find_if(plan.steps.begin(), plan.steps.end(), holds);
  REQUIRE(found != plan.steps.end());
  return found;
}

/// The first step of that kind of a module once more.
At again(Plan& plan, StepKind kind, const std::string& name) {
  const int module = module_of(plan, name);
  return find(plan, [&](const Step& step) {
    return step.is_recomputed && step.kind == kind && step.module == module;
  });
}

/// Of the first pass: from its first step to behind its last.
std::pair<At, At> recomputation(Plan& plan) {
  const At first = find(plan, [](const Step& step) { return step.is_recomputed; });
  return {first,
          std::find_if(first, plan.steps.end(), [](const Step& s) { return !s.is_recomputed; })};
}

std::int64_t count(const Plan& plan, const std::function<bool(const Step&)>& holds) {
  return std::count_if(plan.steps.begin(), plan.steps.end(), holds);
}

TEST_CASE("the forward of a part comes once more, behind the unshard, before its backward") {
  const Plan plan = block_plan();
  // Two samples of 6 features are 12 numbers.
  CHECK(told_steps(plan) == Texts{"unshard in",
                                  "forward in",
                                  "reshard in",
                                  "unshard blk",
                                  "forward blk.up",
                                  "forward blk.act",
                                  "forward blk.down",
                                  R"(all_reduce(tp) output of "blk.down" 12->12)",
                                  "reshard blk",
                                  "unshard out",
                                  "forward out",
                                  "reshard out",
                                  "loss",
                                  "unshard out",
                                  "backward out",
                                  "reshard out",
                                  "reduce_scatter out",
                                  "store_gradient out",
                                  "unshard blk",
                                  "forward blk.up",
                                  "forward blk.act",
                                  "forward blk.down",
                                  R"(all_reduce(tp) output of "blk.down" 12->12)",
                                  "backward blk.down",
                                  "backward blk.act",
                                  "backward blk.up",
                                  R"(all_reduce(tp) gradient of the input of "blk.up" 12->12)",
                                  "reshard blk",
                                  "reduce_scatter blk",
                                  "store_gradient blk",
                                  "unshard in",
                                  "backward in",
                                  "reshard in",
                                  "reduce_scatter in",
                                  "store_gradient in",
                                  "optimizer"});
  CHECK(count(plan, [](const Step& step) { return step.is_recomputed; }) == 4);
  CHECK(count(plan, [](const Step& step) {
          return step.is_recomputed && step.phase == Phase::Backward && runs_forward(step);
        }) == 4);
  CHECK_NOTHROW(verify_plan(plan));
}

TEST_CASE("a value of the part lives twice: until the last use of forward, and of backward") {
  Plan plan = block_plan();
  const ModulePlan& up = module_at(plan, "blk.up");
  const ModulePlan& act = module_at(plan, "blk.act");
  const ModulePlan& down = module_at(plan, "blk.down");
  const Redistribution& sum = plan.redistributions.at(static_cast<std::size_t>(down.after.at(0)));
  // Forward drops what is made inside at its last use, and keeps what the block takes.
  CHECK(up.freed_after_forward.empty());
  CHECK(act.freed_after_forward == std::vector<int>{up.output});
  CHECK(down.freed_after_forward == std::vector<int>{act.output});
  CHECK(sum.freed == std::vector<int>{sum.from});
  // Backward reads the inputs of act and down. What down gives nothing reads once more.
  CHECK(up.freed_after_recomputation.empty());
  CHECK(act.freed_after_recomputation.empty());
  CHECK(down.freed_after_recomputation.empty());
  CHECK(sum.freed_when_recomputed == std::vector<int>{sum.to, sum.from});
  const auto frees = [](const std::vector<int>& freed, int value) {
    return std::count(freed.begin(), freed.end(), value) == 1;
  };
  CHECK(frees(down.freed_after_backward, act.output));
  CHECK(frees(act.freed_after_backward, up.output));
  CHECK(frees(up.freed_after_backward, up.inputs.at(0)));
  // What the block gives out reads in backward: it is kept for that, not for the block.
  CHECK(frees(module_at(plan, "out").freed_after_backward, sum.to));
}

TEST_CASE("units that begin in a part are gathered once in backward, and stay until theirs") {
  const Texts steps = told_steps(
      block_plan(R"("blk")", R"(, "fully_shard": {"units": ["in", "blk", "blk.*", "out"]})"));
  const Texts of_backward(std::find(steps.begin(), steps.end(), "loss"), steps.end());
  CHECK(std::count(of_backward.begin(), of_backward.end(), "unshard blk.up") == 1);
  CHECK(std::count(of_backward.begin(), of_backward.end(), "unshard blk.down") == 1);
  const auto at = [&](const char* text) {
    return std::find(of_backward.begin(), of_backward.end(), text) - of_backward.begin();
  };
  // The unit of down is that of the last module; up's begins before its own forward.
  CHECK(at("unshard blk.down") < at("unshard blk.up"));
  CHECK(at("unshard blk.up") < at("forward blk.up"));
  CHECK(at("forward blk.down") < at("backward blk.down"));
  CHECK(at("backward blk.up") < at("reshard blk.up"));
}

TEST_CASE("a unit that was begun ahead is awaited within the recomputation") {
  const char* const more = R"(, "fully_shard": {"units": ["in", "blk", "blk.*", "out"],
                                                "backward_prefetch": 4})";
  const Plan with = block_plan(R"("blk")", more);
  CHECK(codes_of(with).empty());
  const auto waits = [](const Step& step) {
    return step.kind == StepKind::WaitUnshard && step.phase == Phase::Backward;
  };
  CHECK(count(with, waits) > 0);
  CHECK(count(with, waits) == count(block_plan("", more), waits));
  CHECK(count(with, [](const Step& step) { return step.is_recomputed && step.bucket >= 0; }) == 0);
  const Texts steps = told_steps(with);
  const Texts of_backward(std::find(steps.begin(), steps.end(), "loss"), steps.end());
  CHECK(std::find(of_backward.begin(), of_backward.end(), "wait_unshard blk.up") <
        std::find(of_backward.begin(), of_backward.end(), "forward blk.up"));
}

TEST_CASE("all_gathers and reduce_scatters of units are those without recomputation") {
  for (const char* more :
       {"", R"(, "fully_shard": {"reshard_after_forward": false})",
        R"(, "fully_shard": {"units": ["blk.*"]})", R"(, "fully_shard": {"units": []})"}) {
    CAPTURE(more);
    const auto num_of = [](const Plan& plan, StepKind kind) {
      return count(plan, [kind](const Step& step) { return step.kind == kind; });
    };
    const Plan without = block_plan("", more);
    for (const char* patterns : {R"("blk")", R"("blk.*")", R"("in", "blk", "out")", R"("**.up")"}) {
      CAPTURE(patterns);
      const Plan with = block_plan(patterns, more);
      CHECK(num_of(with, StepKind::Unshard) == num_of(without, StepKind::Unshard));
      CHECK(num_of(with, StepKind::Reshard) == num_of(without, StepKind::Reshard));
      CHECK(num_of(with, StepKind::ReduceScatter) == num_of(without, StepKind::ReduceScatter));
      CHECK_NOTHROW(verify_plan(with));
    }
  }
}

TEST_CASE("a part through which no backward runs is not computed again") {
  // Nothing needs the gradient of what "in" and the block give.
  ActivationCase test = block_case(R"("blk", "out")");
  test.more = R"("parallelize": {"blk.up": "colwise", "blk.down": "rowwise"},
         "training": {"activation_checkpointing": ["in", "blk", "out"], "frozen": ["in.*", "blk.**"]})";
  const Plan plan = build_plan(scenario_of(test));
  const int out = 4;
  CHECK(count(plan, [](const Step& step) { return step.is_recomputed; }) == 1);
  CHECK(count(plan, [](const Step& step) { return step.is_recomputed && step.module == out; }) ==
        1);
  CHECK_NOTHROW(verify_plan(plan));
  // Of a block whose first module only is frozen, and has no gradient, all comes again.
  test.more =
      R"("training": {"activation_checkpointing": ["blk"], "frozen": ["in.*", "blk.up.*"]})";
  const Plan part = build_plan(scenario_of(test));
  CHECK(count(part, [](const Step& step) { return step.is_recomputed; }) == 3);
  CHECK_NOTHROW(verify_plan(part));
}

TEST_CASE("every micro-batch computes its parts again") {
  ActivationCase test = block_case("");
  test.more =
      R"("training": {"activation_checkpointing": ["blk"], "micro_batches": 3, "steps": 2})";
  const Plan plan = build_plan(scenario_of(test));
  CHECK(count(plan, [](const Step& step) { return step.is_recomputed; }) == 2 * 3 * 3);
  CHECK_NOTHROW(verify_plan(plan));
}

TEST_CASE("the part of a module") {
  const Plan plan = block_plan(R"("blk", "out")");
  const auto part_of = [&](int module) { return recomputed_part_of(plan.scenario, module); };
  CHECK(part_of(-1) == -1);
  CHECK(part_of(0) == -1);
  CHECK(part_of(1) == 0);
  CHECK(part_of(3) == 0);
  CHECK(part_of(4) == 1);
  CHECK(part_of(5) == -1);
}

constexpr FindingCode kOrder = FindingCode::CommOrder;
constexpr FindingCode kCount = FindingCode::CommCount;

TEST_CASE("planted: the recomputation is left out") {
  Plan plan = block_plan();
  const auto [first, end] = recomputation(plan);
  plan.steps.erase(first, end);
  // What down and act took is gone; and the part is not computed again.
  CHECK(codes_of(plan) == Codes{kOrder, kOrder, kOrder});
}

TEST_CASE("planted: a step of the recomputation is missing") {
  Plan plan = block_plan();
  // Its redistribution, the last step, of which nothing that backward reads tells.
  plan.steps.erase(
      find(plan, [](const Step& step) { return step.is_recomputed && step.redistribution >= 0; }));
  CHECK(codes_of(plan) == Codes{kOrder});
  plan = block_plan();
  // down does not find what act should give, is not act, and has no input in backward.
  plan.steps.erase(again(plan, StepKind::Forward, "blk.act"));
  CHECK(codes_of(plan) == Codes{kOrder, kOrder, kOrder});
  // The sum before the next block: what follows reads terms of it.
  ActivationCase two = block_case("");
  two.modules[1] =
      sequential_json("blk", linear_json("up", 6, 8) + ", " + linear_json("down", 8, 6) + ", " +
                                 function_json("act"));
  two.more = R"("parallelize": {"blk.up": "colwise", "blk.down": "rowwise"},
                "training": {"activation_checkpointing": ["blk"]})";
  plan = build_plan(scenario_of(two));
  REQUIRE(codes_of(plan).empty());
  plan.steps.erase(
      find(plan, [](const Step& step) { return step.is_recomputed && step.redistribution >= 0; }));
  const Codes codes = codes_of(plan);
  CHECK(std::count(codes.begin(), codes.end(), FindingCode::UnreducedPartial) == 1);
}

TEST_CASE("planted: the recomputation comes twice") {
  Plan plan = block_plan();
  const auto [first, end] = recomputation(plan);
  const std::vector<Step> copy(first, end);
  plan.steps.insert(end, copy.begin(), copy.end());
  // What up and act give is there still, and all is computed again already.
  CHECK(codes_of(plan) == Codes{kCount, kCount, kCount});
}

TEST_CASE("planted: the recomputation comes before the unshard, or behind its backward") {
  Plan plan = block_plan();
  auto [first, end] = recomputation(plan);
  std::vector<Step> moved(first, end);
  plan.steps.erase(first, end);
  const At backward_of_out = find(plan, [&](const Step& step) {
    return step.kind == StepKind::Backward && step.module == module_of(plan, "out");
  });
  plan.steps.insert(backward_of_out + 1, moved.begin(), moved.end());
  const Codes early = codes_of(plan);
  // up and down are not whole, says the order of steps, and so do their placements.
  CHECK(std::count(early.begin(), early.end(), kOrder) == 2);
  CHECK(std::count(early.begin(), early.end(), FindingCode::OffsetWrong) == 2);
  plan = block_plan();
  std::tie(first, end) = recomputation(plan);
  moved.assign(first, end);
  const At backward_of_down = plan.steps.erase(first, end);
  plan.steps.insert(backward_of_down + 1, moved.begin(), moved.end());
  // down lacks its input, and its part.
  CHECK(codes_of(plan) == Codes{kOrder, kOrder});
}

TEST_CASE("planted: steps of the recomputation in another order, or of another part") {
  Plan plan = block_plan();
  std::iter_swap(again(plan, StepKind::Forward, "blk.up"),
                 again(plan, StepKind::Forward, "blk.act"));
  const Codes codes = codes_of(plan);
  CHECK(std::count(codes.begin(), codes.end(), kOrder) == 2);
  // Nothing asks for it.
  plan = block_plan();
  Step step = *again(plan, StepKind::Forward, "blk.act");
  step.module = module_of(plan, "out");
  plan = block_plan("");
  plan.steps.insert(find(plan, [&](const Step& each) { return each.kind == StepKind::Backward; }),
                    step);
  const Codes unasked = codes_of(plan);
  CHECK(std::count(unasked.begin(), unasked.end(), kCount) == 1);
}

TEST_CASE("planted: a unit is freed between recomputation and backward, and gathered again") {
  Plan plan = block_plan();
  const Step unshard = *(recomputation(plan).first - 1);
  REQUIRE(unshard.kind == StepKind::Unshard);
  Step reshard = *find(plan, [&](const Step& step) {
    return step.kind == StepKind::Reshard && step.bucket == unshard.bucket;
  });
  reshard.phase = Phase::Backward;
  plan.steps.insert(recomputation(plan).second, {reshard, unshard});
  CHECK(codes_of(plan) == Codes{kOrder});
}

TEST_CASE("planted: a value is freed too early, or not dropped at all") {
  Plan plan = block_plan();
  const int of_act = module_at(plan, "blk.act").output;
  module_at(plan, "blk.down").freed_after_recomputation.push_back(of_act);
  CHECK(codes_of(plan) == Codes{kOrder});  // down's backward reads it
  plan = block_plan();
  module_at(plan, "blk.act").freed_after_recomputation.push_back(of_act);
  // down does not find it, forward or backward.
  CHECK(codes_of(plan) == Codes{kOrder, kOrder});
  plan = block_plan();
  ModulePlan& up = module_at(plan, "blk.up");
  up.freed_after_forward.push_back(up.inputs.at(0));  // what the block takes
  CHECK(codes_of(plan) == Codes{kOrder, kOrder});
  plan = block_plan();
  module_at(plan, "blk.down").freed_after_forward.clear();
  CHECK(codes_of(plan) == Codes{kCount});
}

TEST_CASE("planted: backward finds what its forward took free, without recomputation") {
  Plan plan = block_plan("");
  REQUIRE(codes_of(plan).empty());
  module_at(plan, "blk.act").freed_after_forward.push_back(module_at(plan, "blk.up").output);
  CHECK(codes_of(plan) == Codes{kOrder});
}

/// A norm, and experts cut over ep, which splits the batch.
Plan experts_plan() {
  return build_plan(scenario_of(
      {"2, 2",
       R"("fsdp", "ep")",
       {R"({"name": "norm", "type": "rms_norm", "dim": 8})",
        R"({"name": "moe", "type": "moe", "dim": 8, "hidden": 6, "experts": 4, "top_k": 2})"},
       R"("data": {"sample_shape": [3, 8]}, "parallelize": {"moe": "expert"},
          "training": {"activation_checkpointing": ["moe"]})"}));
}

TEST_CASE("experts choose, send and get once more") {
  Plan plan = experts_plan();
  CHECK_NOTHROW(verify_plan(plan));
  const auto [first, end] = recomputation(plan);
  Texts steps;
  for (At step = first; step != end; ++step)
    steps.push_back(std::string(name_of(step->kind)) + " " +
                    module_name(plan.scenario.model, step->module));
  CHECK(steps == Texts{"forward moe.router", "route moe.experts", "dispatch moe.experts",
                       "forward moe.experts", "combine moe.experts"});
  const Step route = *again(plan, StepKind::Route, "moe.experts");
  CHECK(tokens_text(plan, route) == R"(counts of tokens of "moe.experts")");
  CHECK(tokens_text(plan, *again(plan, StepKind::Dispatch, "moe.experts")) ==
        R"(tokens to "moe.experts")");
  CHECK(phase_text(route) == "recomputation");
}

TEST_CASE("planted: a step of the exchange that comes again is missing, or comes twice") {
  for (const StepKind kind : {StepKind::Route, StepKind::Dispatch, StepKind::Combine}) {
    CAPTURE(name_of(kind));
    Plan without = experts_plan();
    without.steps.erase(again(without, kind, "moe.experts"));
    CHECK_FALSE(codes_of(without).empty());
    Plan twice = experts_plan();
    const At at = again(twice, kind, "moe.experts");
    const Step copy = *at;
    twice.steps.insert(at, copy);
    CHECK_FALSE(codes_of(twice).empty());
  }
}

}  // namespace
}  // namespace hpsim
