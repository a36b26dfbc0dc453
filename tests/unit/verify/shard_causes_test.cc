// What a shard holds in place of what it should: each is planted in a run made up by hand (element
// i of parameter p is (i + 1) / 8 + p, twice that for gradients), and something similar beside it.

#include "verify/shard_causes.h"

#include <cmath>

#include "explained_run.h"
#include "planted_run.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim::test {
namespace {

using Texts = std::vector<std::string>;

constexpr auto kGradients = CheckId::GradientParity;
constexpr auto kParameters = CheckId::ParameterParity;

/// (4, 4) on two ranks.
CaseSpec square_case() {
  CaseSpec spec;
  spec.mesh_shape = {2};
  spec.parameters = {{"a", {4, 4}}, {"b", {4, 4}}};
  return spec;
}

/// Gradients that are no multiple of the parameters, and other ones in step 1:
/// i² / 16 + 1 + step (2 + i), all exact.
void use_squares(PlantedRun& planted, const CaseSpec& spec) {
  for (std::int64_t step = 0; step < spec.steps; ++step) {
    for (std::size_t p = 0; p < spec.parameters.size(); ++p) {
      auto& value = planted.reference.steps[static_cast<std::size_t>(step)].gradients[p].value;
      for (std::size_t i = 0; i < value.size(); ++i) {
        const auto x = static_cast<double>(i);
        value[i] = x * x / 16 + 1 + static_cast<double>(step) * (2 + x) + static_cast<double>(p);
      }
      std::int64_t first = 0;
      for (std::int64_t rank = 0; rank < planted.plan->mesh().num_ranks(); ++rank) {
        const std::int64_t elems = planted.elems(rank, static_cast<int>(p));
        for (std::int64_t i = 0; i < elems; ++i) {
          planted.gradient(rank, step, static_cast<int>(p))[i] =
              static_cast<float>(value[static_cast<std::size_t>(first + i)]);
        }
        first += elems;
      }
    }
  }
}

Texts of_gradients(const PlantedRun& planted) {
  return explanations(planted.judge(), kGradients);
}

TEST_CASE("planted: the gradient of another parameter of the same shape") {
  PlantedRun planted(square_case());
  // Those of b are 2 more than those of a.
  for (std::int64_t i = 0; i < 8; ++i)
    planted.gradient(1, 0, 0)[i] += 2;
  CHECK(of_gradients(planted) == Texts{"equals the gradient of \"b\""});
  planted.gradient(1, 0, 0)[3] += 0.125F;
  CHECK(of_gradients(planted).empty());
}

TEST_CASE("planted: the gradient of the step before, alone or added") {
  const CaseSpec spec = square_case();
  PlantedRun stale(spec);
  use_squares(stale, spec);
  for (std::int64_t i = 0; i < 8; ++i)
    stale.gradient(1, 1)[i] = stale.gradient(1, 0)[i];
  CHECK(of_gradients(stale) == Texts{"equals the gradient of step 0, bit by bit: it is stale"});
  stale.gradient(1, 1)[2] += 1;
  CHECK(of_gradients(stale).empty());

  PlantedRun added(spec);
  use_squares(added, spec);
  for (std::int64_t i = 0; i < 8; ++i)
    added.gradient(1, 1)[i] += added.gradient(1, 0)[i];
  CHECK(of_gradients(added) ==
        Texts{"is the gradient of step 0 added to that of step 1: it was not cleared"});
  added.gradient(1, 1)[2] += 1;
  CHECK(of_gradients(added).empty());
}

TEST_CASE("planted: rows exchanged, of another rank, or shifted") {
  PlantedRun exchanged{CaseSpec{}};
  std::swap_ranges(exchanged.gradient(1), exchanged.gradient(1) + 16, exchanged.gradient(2));
  CHECK(of_gradients(exchanged) == Texts{"has the rows of rank 1 and rank 2 exchanged"});

  PlantedRun copied{CaseSpec{}};
  std::copy_n(copied.gradient(2), 16, copied.gradient(1));
  CHECK(of_gradients(copied) == Texts{"equals the rows of rank 2"});
  copied.gradient(1)[15] += 1;
  CHECK(of_gradients(copied).empty());

  // Rows of 8 elements, each 8 * 2 / 8 = 2 more than the row before it.
  PlantedRun shifted{CaseSpec{}};
  for (std::int64_t i = 0; i < 16; ++i)
    shifted.gradient(1)[i] += 2;
  CHECK(of_gradients(shifted) == Texts{"has rows shifted by 1: row 2 holds what belongs to row 3"});
  PlantedRun between{CaseSpec{}};
  for (std::int64_t i = 0; i < 16; ++i)
    between.gradient(1)[i] += 1;
  CHECK(of_gradients(between).empty());
}

TEST_CASE("planted: a transposed tensor") {
  PlantedRun planted(square_case());
  for (std::int64_t row = 2; row < 4; ++row) {
    for (std::int64_t col = 0; col < 4; ++col) {
      planted.gradient(1)[(row - 2) * 4 + col] = 2 * static_cast<float>(col * 4 + row + 1) / 8;
    }
  }
  CHECK(of_gradients(planted) == Texts{"is transposed"});
  std::swap(planted.gradient(1)[0], planted.gradient(1)[1]);
  CHECK(of_gradients(planted).empty());
}

TEST_CASE("planted: elements that were never filled, or never overwritten") {
  const CaseSpec spec = square_case();
  PlantedRun planted(spec);
  use_squares(planted, spec);
  std::fill_n(planted.gradient(1, 1) + 4, 4, 0.0F);
  CHECK(
      of_gradients(planted) ==
      Texts{"has 0 in all elements that are off (4 of 8, the last ones): never filled, as padding "
            "is"});
  std::copy_n(planted.gradient(1, 0) + 4, 4, planted.gradient(1, 1) + 4);
  CHECK(of_gradients(planted) ==
        Texts{"has what there was of step 0 in all elements that are off (4 of 8, the last ones), "
              "bit by bit: never overwritten"});
  planted.gradient(1, 1)[5] += 1;
  CHECK(of_gradients(planted).empty());
}

TEST_CASE("planted: weight decay in the gradient") {
  const CaseSpec spec = square_case();
  PlantedRun planted(spec);
  use_squares(planted, spec);
  for (std::int64_t i = 0; i < 8; ++i)
    planted.gradient(1, 0)[i] += planted.parameter(1, 0)[i] / 4;
  CHECK(of_gradients(planted) == Texts{"is off by 0.25 times the parameter itself"});
  planted.gradient(1, 0)[0] += 1;
  CHECK(of_gradients(planted).empty());
}

TEST_CASE("a parameter that follows from a gradient that is off says so") {
  PlantedRun planted(square_case());
  // sgd of lr 0.1: 0.25 more of a gradient is 0.025 less of a weight; not a constant factor.
  planted.gradient(1)[3] += 0.25F;
  planted.parameter(1, 1)[3] -= 0.025F;
  CHECK(explanations(planted.judge(), kParameters) ==
        Texts{"is what the gradient of this step, as recorded, makes of it"});
  planted.parameter(1, 1)[3] -= 0.025F;
  CHECK(explanations(planted.judge(), kParameters).empty());
}

Scenario trained(double lr) {
  Scenario scenario = fsdp_scenario(elementwise_model({{"w", {7, 3}}}), 2);
  scenario.training.optimizer.lr = lr;
  return scenario;
}

TEST_CASE("planted: an update of another size, or none") {
  CHECK(explanations(ExplainedRun(trained(0.1), trained(0.2)).judge(), kParameters) ==
        Texts{"is updated by 2 times what is due: D=2, S=2, F=2"});
  const Texts other = explanations(ExplainedRun(trained(0.1), trained(0.13)).judge(), kParameters);
  CHECK(other == Texts{"is updated by 1.3 times what is due"});
  CHECK(explanations(ExplainedRun(trained(0.1), trained(0)).judge(), kParameters).at(0) ==
        "equals what it was before the step, bit by bit: it was not updated");
}

TEST_CASE("of two copies that differ, the one that the baseline contradicts is named") {
  CaseSpec spec;
  spec.mesh_shape = {2, 2};
  spec.mesh_names = {"rep", "fsdp"};
  spec.parameters = {{"a", {4, 4}}};
  PlantedRun planted(spec);
  planted.gradient(1)[3] += 1;
  CHECK(explanations(planted.judge(), CheckId::ReplicaAgreement) ==
        Texts{"is the copy on rank 1 that is off: that on rank 3 is what the baseline says"});
  // One bit: both are within their bounds.
  PlantedRun bit(spec);
  bit.gradient(1)[3] = std::nextafter(bit.gradient(1)[3], 100.0F);
  CHECK(explanations(bit.judge(), CheckId::ReplicaAgreement).empty());
}

}  // namespace
}  // namespace hpsim::test
