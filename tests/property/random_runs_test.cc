#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "baseline/eigen_baseline.h"
#include "exec/local.h"
#include "exec/symbolic.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "random_scenario.h"
#include "support/catch.h"
#include "verify/compare_runs.h"

namespace hpsim::test {
namespace {

constexpr std::uint64_t kDefaultSeed = 20240607;
constexpr int kDefaultCount = 150;

std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::string all_messages(const Verdict& verdict) {
  std::string text;
  for (const Finding& finding : verdict.findings) {
    text += std::string(name_of(finding.code)) + " " + finding.message + "\n";
  }
  for (const CheckResult& check : verdict.checks) {
    if (!check.passed) text += "failed: " + std::string(name_of(check.id)) + "\n";
  }
  return text;
}

std::vector<TrainingState> states_held(const VerifiedPlan& plan, const RunResult& run) {
  std::vector<TrainingState> held;
  for (std::int64_t t = 0; t < plan->scenario.training.steps; ++t) {
    held.push_back(assemble_state(*plan, run, t));
  }
  return held;
}

/// Nothing if exact mode refuses the scenario because a number grows out of the dtype.
std::optional<ReferenceRun> reference_of(const VerifiedPlan& plan, const RunResult& run) {
  try {
    return run_baseline(plan->scenario, states_held(plan, run));
  } catch (const Error&) {
    if (!plan->scenario.is_exact()) throw;
    return std::nullopt;
  }
}

/// Moves one gradient element of a random shard by more than any bound; the rank, or -1 if all
/// shards that were tried are empty.
std::int64_t spoil_one_gradient(Dice& dice, RunResult& run, int p) {
  const ResultLayout& layout = run.layout();
  const Rank rank{dice.below(static_cast<std::int64_t>(layout.recording().size()))};
  const std::int64_t elems = layout.shard_elems(rank, p);
  if (elems == 0) return -1;
  const std::int64_t step = dice.below(layout.num_steps());
  const std::int64_t i = dice.below(elems);
  const TensorView view = run.gradient(rank, step, p);
  const double spoiled = view.at(i) + std::abs(view.at(i)) + 1;
  std::byte* data = run.bytes(layout.gradient(rank, step, p));
  if (layout.dtype() == DType::Float64) {
    reinterpret_cast<double*>(data)[i] = spoiled;
  } else {
    reinterpret_cast<float*>(data)[i] = static_cast<float>(spoiled);
  }
  return rank.value;
}

template <class T>
bool scale(T* data, std::int64_t elems, double factor) {
  bool is_changed = false;
  for (std::int64_t i = 0; i < elems; ++i) {
    is_changed = is_changed || data[i] != 0;
    data[i] *= static_cast<T>(factor);
  }
  return is_changed;
}

/// Multiplies all gradients of all ranks and steps; false if all of them are 0.
bool scale_all_gradients(RunResult& run, int num_parameters, double factor) {
  const ResultLayout& layout = run.layout();
  bool is_changed = false;
  for (const Rank rank : layout.recording()) {
    for (std::int64_t step = 0; step < layout.num_steps(); ++step) {
      for (int p = 0; p < num_parameters; ++p) {
        std::byte* data = run.bytes(layout.gradient(rank, step, p));
        const std::int64_t elems = layout.shard_elems(rank, p);
        const bool is_wide = layout.dtype() == DType::Float64;
        is_changed = (is_wide ? scale(reinterpret_cast<double*>(data), elems, factor)
                              : scale(reinterpret_cast<float*>(data), elems, factor)) ||
                     is_changed;
      }
    }
  }
  return is_changed;
}

/// Gradients that were never divided by the number of data ranks: one finding that says so.
void check_that_a_missing_factor_is_named(const VerifiedPlan& plan, RunResult& run,
                                          const ReferenceRun& reference) {
  const std::int64_t factor = plan->scenario.num_data_ranks();
  if (factor == 1) return;
  if (!scale_all_gradients(run, static_cast<int>(plan->parameters.size()),
                           static_cast<double>(factor))) {
    return;
  }
  const Verdict verdict = compare_runs(plan, run, reference);
  INFO("not divided by D:\n" << all_messages(verdict));
  std::vector<Finding> findings;
  for (const Finding& finding : verdict.findings) {
    if (finding.check == CheckId::GradientParity) findings.push_back(finding);
  }
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].code == FindingCode::GradScale);
  CHECK(findings[0].ratio == static_cast<double>(factor));
  const auto& explains = findings[0].explains;
  CHECK(std::find(explains.begin(), explains.end(), "D=" + std::to_string(factor)) !=
        explains.end());
}

TEST_CASE("random scenarios pass on symbolic and local, and fail once a gradient is spoiled") {
  const std::uint64_t seed = number_from_environment("HPSIM_PROPERTY_SEED", kDefaultSeed);
  const auto count =
      static_cast<int>(number_from_environment("HPSIM_PROPERTY_COUNT", kDefaultCount));
  std::cout << "HPSIM_PROPERTY_SEED=" << seed << " HPSIM_PROPERTY_COUNT=" << count << "\n";
  Dice dice(seed);
  int num_exact = 0;
  int num_refused = 0;
  int num_spoiled = 0;
  for (int i = 0; i < count; ++i) {
    const Scenario scenario = random_scenario(dice);
    INFO("scenario " << i << " of seed " << seed << ": " << describe(scenario));
    const VerifiedPlan plan = verify_plan(build_plan(scenario));

    const RunResult symbolic = SymbolicExecutor().run(plan, {});
    const Verdict of_symbolic = compare_runs(plan, symbolic, {});
    INFO(all_messages(of_symbolic));
    CHECK(of_symbolic.passed());

    RunResult run = LocalExecutor().run(plan, {});
    const std::optional<ReferenceRun> reference = reference_of(plan, run);
    num_exact += scenario.is_exact() ? 1 : 0;
    num_refused += reference ? 0 : 1;
    if (!reference) continue;
    const Verdict verdict = compare_runs(plan, run, *reference);
    INFO(all_messages(verdict));
    CHECK(verdict.passed());

    RunResult unscaled = LocalExecutor().run(plan, {});
    check_that_a_missing_factor_is_named(plan, unscaled, *reference);

    const auto p = static_cast<int>(dice.below(static_cast<std::int64_t>(plan->parameters.size())));
    const std::int64_t rank = spoil_one_gradient(dice, run, p);
    if (rank < 0) continue;
    ++num_spoiled;
    const Verdict spoiled = compare_runs(plan, run, *reference);
    CHECK_FALSE(spoiled.passed());
    bool is_named = false;
    for (const Finding& finding : spoiled.findings) {
      is_named = is_named || (finding.check == CheckId::GradientParity && finding.rank == rank &&
                              finding.param == plan->parameters[static_cast<std::size_t>(p)].name);
    }
    CHECK(is_named);
  }
  std::cout << num_exact << " exact, of which " << num_refused << " refused; " << num_spoiled
            << " spoiled\n";
  CHECK(num_refused * 2 <= num_exact);
  CHECK(num_spoiled * 2 >= count - num_refused);
}

}  // namespace
}  // namespace hpsim::test
