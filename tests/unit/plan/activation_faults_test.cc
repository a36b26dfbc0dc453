// Faults planted in what a plan says of activations: each must be found.

#include <algorithm>
#include <functional>

#include "plan/build_plan.h"
#include "plan/passes/passes.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "unit/plan/activation_scenarios.h"

namespace hpsim {
namespace {

using test::ActivationCase;
using test::colwise_chain;
using test::linear_json;
using test::scenario_of;

const char* const kFsdpTp = R"("fsdp", "tp")";

using Codes = std::vector<FindingCode>;

Codes codes_of(Plan plan) {
  try {
    (void)verify_plan(std::move(plan));
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

std::ptrdiff_t find(const Plan& plan, StepKind kind, const std::string& subject) {
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (step.kind != kind) continue;
    const bool is_it =
        step.redistribution >= 0
            ? activation_text(
                  plan, plan.redistributions[static_cast<std::size_t>(step.redistribution)]) ==
                  subject
            : module_name(plan.scenario.model, step.module) == subject;
    if (is_it) return static_cast<std::ptrdiff_t>(i);
  }
  FAIL("no step for " << subject);
  return 0;
}

constexpr StepKind kChange = StepKind::Redistribute;
const char* const kGathered = "input of \"mid\"";
const char* const kSummed = "output of \"down\"";
const char* const kScattered = "gradient of the input of \"mid\"";
const char* const kGradient = "gradient of the input of \"up\"";

struct Chain {
  Plan plan = build_plan(scenario_of(colwise_chain()));

  Step& step(const std::string& subject) {
    return plan.steps[static_cast<std::size_t>(find(plan, kChange, subject))];
  }
  Transition& transition(const std::string& subject) {
    return plan.redistributions[static_cast<std::size_t>(step(subject).redistribution)].transition;
  }
  void remove(const std::string& subject) {
    plan.steps.erase(plan.steps.begin() + find(plan, kChange, subject));
  }
  void repeat(const std::string& subject) {
    const std::ptrdiff_t at = find(plan, kChange, subject);
    const Step copy = plan.steps[static_cast<std::size_t>(at)];
    plan.steps.insert(plan.steps.begin() + at, copy);
  }
  /// Puts it in front of the first `kind` of `module`.
  void move(const std::string& subject, StepKind kind, const std::string& module) {
    const Step moved = step(subject);
    remove(subject);
    plan.steps.insert(plan.steps.begin() + find(plan, kind, module), moved);
  }
};

TEST_CASE("planted: a change of layout is missing") {
  CHECK(codes_of(Chain().plan).empty());
  const auto without = [](const char* subject) {
    Chain chain;
    chain.remove(subject);
    return codes_of(chain.plan);
  };
  CHECK(without(kSummed) == Codes{FindingCode::UnreducedPartial});
  CHECK(without(kGradient) == Codes{FindingCode::UnreducedPartial});
  CHECK(without(kScattered) == Codes{FindingCode::UnreducedPartial});
  CHECK(without(kGathered) == Codes{FindingCode::CommOrder});
}

TEST_CASE("planted: a change of layout comes twice") {
  const auto twice = [](const char* subject) {
    Chain chain;
    chain.repeat(subject);
    return codes_of(chain.plan);
  };
  CHECK(twice(kSummed) == Codes{FindingCode::DoubleReduced});
  CHECK(twice(kGradient) == Codes{FindingCode::DoubleReduced});
  CHECK(twice(kScattered) == Codes{FindingCode::DoubleReduced});
  CHECK(twice(kGathered) == Codes{FindingCode::CommOrder});
}

TEST_CASE("planted: a change of layout comes too early or too late") {
  Chain chain;
  chain.move(kSummed, StepKind::Forward, "down");
  // What it should add is not there yet.
  CHECK(codes_of(chain.plan) == Codes{FindingCode::CommOrder});
  chain = {};
  chain.move(kGradient, StepKind::Backward, "up");
  // Nor is it here, and "up" gets terms.
  CHECK(codes_of(chain.plan) == Codes{FindingCode::CommOrder, FindingCode::UnreducedPartial});
  chain = {};
  chain.move(kGathered, StepKind::Forward, "up");
  CHECK(codes_of(chain.plan) == Codes{FindingCode::CommOrder});
}

TEST_CASE("planted: a change of layout does not do what its layouts ask for") {
  for (const char* subject : {kGathered, kSummed, kScattered, kGradient}) {
    CAPTURE(subject);
    const auto after = [&](const auto& plant) {
      Chain chain;
      plant(chain.step(subject), chain.transition(subject));
      return codes_of(chain.plan);
    };
    const Codes shape = {FindingCode::CommShape};
    const Codes group = {FindingCode::CommGroup};
    const Codes scale = {FindingCode::GradScale};
    CHECK(after([](Step& step, Transition&) { step.collective.reset(); }) ==
          Codes{FindingCode::CommCount});
    CHECK(after([](Step& step, Transition&) { step.collective->op = CollectiveOp::AllToAll; }) ==
          Codes{FindingCode::CommOrder});
    CHECK(after([](Step& step, Transition&) { step.collective->takes_max = true; }) ==
          Codes{FindingCode::CommOrder});
    CHECK(after([](Step& step, Transition&) { step.collective->dims = {0}; }) == group);
    CHECK(after([](Step& step, Transition&) { step.collective->group_size = 4; }) == group);
    CHECK(after([](Step& step, Transition&) { step.collective->consecutive = 2; }) == group);
    CHECK(after([](Step& step, Transition&) { step.collective->elems_in = 7; }) == shape);
    CHECK(after([](Step& step, Transition&) { step.collective->elems_out = 7; }) == shape);
    CHECK(after([](Step& step, Transition&) { step.collective->scale = 0.5; }) == scale);
    CHECK(after([](Step& step, Transition&) { step.collective->prescale = 2; }) == scale);
    CHECK(after([](Step& step, Transition&) { step.collective->dtype = DType::Float64; }) ==
          Codes{FindingCode::CommDtype});
    CHECK(after([](Step&, Transition& transition) { transition.op = RedistributeOp::Keep; }) ==
          shape);
    CHECK(after([](Step&, Transition& transition) { transition.mesh_dims = {0}; }) == shape);
    CHECK(after([](Step&, Transition& transition) { transition.mesh_dims = {0, 1}; }) == shape);
  }
}

/// build_plan with something planted behind one of its first passes.
Plan planted_after(const ActivationCase& test, const std::function<void(Plan&)>& layouts,
                   const std::function<void(Plan&)>& parameters) {
  Plan plan;
  plan.scenario = scenario_of(test);
  plan = lay_out_activations(std::move(plan));
  if (layouts) layouts(plan);
  plan = lay_out_parameters(std::move(plan));
  if (parameters) parameters(plan);
  return insert_reductions(schedule_compute(form_buckets(std::move(plan))));
}

TEST_CASE("planted: the data flow is taken for another one") {
  ActivationCase test = colwise_chain();
  test.more += R"(, "data": {"data_dims": ["fsdp", "tp"]})";
  CHECK(codes_of(planted_after(test, {}, {})).empty());
  const auto with = [&](const MeshDims& dims, const MeshDims& partial_group) {
    // Parameter 0, of "in", sees other samples on every rank.
    return codes_of(planted_after(test, {}, [&](Plan& plan) {
      REQUIRE(plan.parameters[0].partial_dims == MeshDims{0, 1});
      plan.parameters[0].partial_dims = dims;
      plan.parameters[0].partial_group = {partial_group, plan.mesh().size(partial_group)};
    }));
  };
  CHECK(with({0}, {}) == Codes{FindingCode::UnreducedPartial});
  CHECK(with({1}, {1}) == Codes{FindingCode::UnreducedPartial});
  const auto of_up = [&](const MeshDims& dims, const MeshDims& partial_group) {
    // Parameter 1, of "up": tp cuts it, its ranks along tp use the same samples.
    return codes_of(planted_after(test, {}, [&](Plan& plan) {
      REQUIRE(plan.parameters[1].partial_dims == MeshDims{0});
      plan.parameters[1].partial_dims = dims;
      plan.parameters[1].partial_group = {partial_group, plan.mesh().size(partial_group)};
    }));
  };
  // And what is added are different rows of it.
  CHECK(of_up({0, 1}, {1}) == Codes{FindingCode::DoubleReduced, FindingCode::CommGroup});
}

TEST_CASE("planted: a parameter whole along tp, behind a gather of the samples") {
  // "out" follows "up", behind which all ranks of tp have the same samples.
  ActivationCase test{"2, 2",
                      kFsdpTp,
                      {linear_json("up", 4, 8), linear_json("out", 8, 2)},
                      R"("parallelize": {"up": "colwise"},
                         "data": {"data_dims": ["fsdp", "tp"]})"};
  CHECK(codes_of(planted_after(test, {}, {})).empty());
  CHECK(codes_of(planted_after(test, {}, [](Plan& plan) {
          REQUIRE(plan.parameters[1].partial_dims == MeshDims{0});
          plan.parameters[1].partial_dims = {0, 1};
          plan.parameters[1].partial_group = {{1}, 2};
        })) == Codes{FindingCode::DoubleReduced});
}

TEST_CASE("planted: a module reads a value that it cannot compute with, or that is gone") {
  const auto with = [](auto plant) { return codes_of(planted_after(colwise_chain(), plant, {})); };
  const auto has = [](const Codes& codes, FindingCode code) {
    return std::find(codes.begin(), codes.end(), code) != codes.end();
  };
  const auto from_of = [](const Plan& plan, int to) {
    for (const Redistribution& change : plan.redistributions) {
      if (change.to == to) return change.from;
    }
    return -1;
  };
  CHECK(with([](Plan&) {}).empty());
  // mid, colwise, takes its input as up gave it: a part of the features
  CHECK(has(with([&](Plan& plan) {
              int& input = plan.modules.at(2).inputs.at(0);
              REQUIRE(from_of(plan, input) >= 0);
              input = from_of(plan, input);
            }),
            FindingCode::CommOrder));
  // the gradient of mid's input is handed on as it computed it: terms
  CHECK(has(with([&](Plan& plan) {
              int& gradient = plan.modules.at(1).output_gradient;
              REQUIRE(from_of(plan, gradient) >= 0);
              gradient = from_of(plan, gradient);
            }),
            FindingCode::CommOrder));
  // down reads what up gave
  CHECK(has(with([&](Plan& plan) { plan.modules.at(4).inputs = plan.modules.at(2).inputs; }),
            FindingCode::CommOrder));
  // what backward reads is freed after forward
  CHECK(has(with([&](Plan& plan) {
              plan.modules.at(2).freed_after_forward.push_back(plan.modules.at(3).inputs.at(0));
            }),
            FindingCode::CommOrder));
  // a gradient is added to nothing
  CHECK(has(with([&](Plan& plan) { plan.modules.at(2).added_to.at(0) = 1; }),
            FindingCode::CommOrder));
}

/// x + down(up(norm(x))) on (fsdp 2, tp 2), colwise and rowwise, behind an embedding: "res.add" and
/// "res.norm" both read what "tok" gives.
ActivationCase residual_case() {
  return {.shape = "2, 2",
          .names = kFsdpTp,
          .modules = {R"({"name": "tok", "type": "embedding", "num_embeddings": 5,
                          "embedding_dim": 4})",
                      R"({"name": "res", "type": "residual", "modules": [
                          {"name": "norm", "type": "rms_norm", "dim": 4},
                          {"name": "mlp", "type": "mlp", "dim": 4, "hidden": 6}]})"},
          .more = R"("parallelize": {"res.mlp": "colwise"}, "data": {"sample_shape": [3]})"};
}

int module_of(const Plan& plan, const std::string& name) {
  for (int m = 0; m < static_cast<int>(plan.modules.size()); ++m) {
    if (module_name(plan.scenario.model, m) == name) return m;
  }
  FAIL("no module " << name);
  return 0;
}

TEST_CASE("planted: a gradient lacks the part of a reader, or has it twice") {
  const auto with = [](auto plant) { return codes_of(planted_after(residual_case(), plant, {})); };
  const auto at = [](Plan& plan, const char* name) -> ModulePlan& {
    return plan.modules.at(static_cast<std::size_t>(module_of(plan, name)));
  };
  CHECK(with([](Plan&) {}).empty());
  // What the norm sends back to "tok" goes nowhere: the gradient is that of the branch around it.
  CHECK(with([&](Plan& plan) {
          ModulePlan& norm = at(plan, "res.norm");
          REQUIRE(norm.added_to.at(0) == 1);
          plan.values.push_back(plan.values.at(static_cast<std::size_t>(norm.input_gradients[0])));
          norm.input_gradients[0] = static_cast<int>(plan.values.size()) - 1;
          norm.added_to[0] = 0;
        }) == Codes{FindingCode::UnreducedPartial});
  // The sum of the terms of w1 and w3 lacks those of w3.
  CHECK(with([&](Plan& plan) {
          ModulePlan& w1 = at(plan, "res.mlp.w1");
          REQUIRE(w1.added_to.at(0) == 1);
          w1.input_gradients[0] = -1;
        }) == Codes{FindingCode::UnreducedPartial});
  // A backward that runs twice is in the gradient twice; before that its unit, which counts the
  // backwards of its modules, has one too many when it reduces and when it stores.
  Plan plan = build_plan(scenario_of(residual_case()));
  const std::ptrdiff_t norm = find(plan, StepKind::Backward, "res.norm");
  const Step twice = plan.steps[static_cast<std::size_t>(norm)];
  std::vector<int>& freed = at(plan, "res.norm").freed_after_backward;
  freed.clear();
  plan.steps.insert(plan.steps.begin() + norm, twice);
  CHECK(codes_of(plan) ==
        Codes{FindingCode::CommOrder, FindingCode::CommOrder, FindingCode::DoubleReduced});
}

/// The same, its sequence cut over tp.
ActivationCase sequence_case() {
  ActivationCase test = residual_case();
  test.more = R"("parallelize": {"tok": "rowwise_sp", "res.norm": "sequence_parallel",
                                 "res.mlp": "rowwise_sp"}, "data": {"sample_shape": [3]})";
  return test;
}

TEST_CASE("planted: norms on cut sequences are not reduced, or are where sequences are whole") {
  const auto norm_of = [](Plan& plan) -> PlannedParameter& {
    for (PlannedParameter& parameter : plan.parameters) {
      if (parameter.name == "res.norm.weight") return parameter;
    }
    FAIL("no norm");
    return plan.parameters.front();
  };
  // Partial over tp, positions being cut there; told to be complete, it is not reduced.
  CHECK(codes_of(planted_after(sequence_case(), {}, [&](Plan& plan) {
          REQUIRE(norm_of(plan).partial_dims == MeshDims{0, 1});
          norm_of(plan).partial_dims = {0};
          norm_of(plan).partial_group = {{}, 1};
        })) == Codes{FindingCode::UnreducedPartial});
  // Complete over tp, which computes the same on all ranks; told to be Partial, it is reduced.
  CHECK(codes_of(planted_after(residual_case(), {}, [&](Plan& plan) {
          REQUIRE(norm_of(plan).partial_dims == MeshDims{0});
          norm_of(plan).partial_dims = {0, 1};
          norm_of(plan).partial_group = {{1}, 2};
        })) == Codes{FindingCode::DoubleReduced});
}

TEST_CASE("planted: modules tied to one weight see different samples") {
  // The reader refuses it: attn, cut over tp, takes the samples of all ranks there, and hands them
  // on; tok takes those of its own rank.
  ActivationCase test{
      "2, 2",
      kFsdpTp,
      {R"({"name": "tok", "type": "embedding", "num_embeddings": 10, "embedding_dim": 8})",
       R"({"name": "attn", "type": "attention", "dim": 8, "heads": 2})", linear_json("out", 8, 10)},
      R"("data": {"sample_shape": [4], "data_dims": ["fsdp", "tp"]}, "fully_shard": {"units": []},
         "parallelize": {"attn": "colwise"})"};
  Scenario scenario = scenario_of(test);
  CHECK(codes_of(build_plan(scenario)).empty());
  scenario.model.modules.back().tied_to = 0;
  scenario.parameters = list_parameters(scenario.model);
  scenario.placements.pop_back();
  scenario.units = assign_units(scenario.model, scenario.parameters, {}, true);
  // Of the embedding's weight, whose gradient is reduced over tp.
  CHECK(codes_of(build_plan(scenario)) == Codes{FindingCode::UnreducedPartial});
}

}  // namespace
}  // namespace hpsim
