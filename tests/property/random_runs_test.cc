#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "baseline/eigen_baseline.h"
#include "exec/local.h"
#include "exec/symbolic.h"
#include "mesh/group.h"
#include "narrow_runs.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "policy_variety.h"
#include "random_experts.h"
#include "random_scenario.h"
#include "random_transformer.h"
#include "report/explain_report.h"
#include "saved_if_failing.h"
#include "scenario/gradients.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "verify/compare_runs.h"

namespace hpsim::test {
namespace {

constexpr int kDefaultCount = 200;
/// Of scenarios, so that rare layouts come too.
constexpr int kScenarioCount = 400;
/// How often each policy comes among them.
constexpr int kLeast = 4;

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

/// Nothing if exact mode refuses the scenario because a number grows out of the dtype.
std::optional<ReferenceRun> reference_of(const VerifiedPlan& plan, const RunResult& run) {
  try {
    return run_baseline(plan->scenario, states_before_steps(*plan, run));
  } catch (const Error&) {
    if (!plan->scenario.is_exact()) throw;
    return std::nullopt;
  }
}

/// Moves one gradient element of a random shard by more than any bound that says something, also of
/// the mean over ranks that have gradients of their own; the rank, or -1 if the shard is empty, or
/// there is no gradient.
std::int64_t spoil_one_gradient(Dice& dice, const Scenario& scenario, RunResult& run, int p) {
  const ResultLayout& layout = run.layout();
  const Rank rank{dice.below(static_cast<std::int64_t>(layout.recording().size()))};
  const std::int64_t elems = layout.shard_elems(rank, p);
  const std::int64_t step = dice.below(layout.num_steps());
  if (elems == 0 || !has_gradient(scenario, p, step)) return -1;
  const std::int64_t i = dice.below(elems);
  const TensorView view = run.gradient(rank, step, p);
  double largest = 0;
  for (std::int64_t j = 0; j < elems; ++j)
    largest = std::max(largest, std::abs(view.at(j)));
  const double spoiled = view.at(i) + 2 * largest + 1;
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

/// Whether everything that can be explained of a plan can be told, in text and in JSON.
bool is_explained(const VerifiedPlan& plan) {
  ExplainView view;
  for (int p = 0; p < static_cast<int>(plan->parameters.size()); ++p)
    view.parameters.push_back(p);
  view.in_detail = true;
  return !explain_text(*plan, view, false).empty() && !explain_json(*plan, view).empty();
}

/// Whether the ranks that symbolic tells of used its memory, and sent what the plan says.
bool is_as_told(const VerifiedPlan& plan, const RunResult& symbolic, const RunResult& run) {
  for (const Rank rank : symbolic.layout().recording()) {
    const RankRecord& told = symbolic.rank_record(rank);
    const RankRecord& used = run.rank_record(rank);
    if (told.ledger.peak() != used.ledger.peak()) return false;
    if (told.ledger.peak_total() != used.ledger.peak_total()) return false;
    if (told.init.peak() != used.init.peak()) return false;
    const auto events_told = symbolic.memory_events(rank);
    const auto events = run.memory_events(rank);
    if (!std::equal(events_told.begin(), events_told.end(), events.begin(), events.end()))
      return false;
    for (std::int64_t step = 0; step < run.layout().num_steps(); ++step) {
      if (symbolic.step_record(rank, step).live_after != run.step_record(rank, step).live_after)
        return false;
    }
    std::int64_t num_sent = 0;
    const Coordinate coordinate = plan->mesh().coordinate_of(rank);
    for (std::size_t i = 0; i < plan->steps.size(); ++i) {
      const auto& spec = plan->steps[i].collective;
      if (!spec) continue;
      if (num_sent == used.num_collectives) return false;
      const ExecutedCollective& sent = run.executed(rank)[num_sent++];
      if (sent.plan_step != static_cast<std::int64_t>(i)) return false;
      if (sent.elems_in != spec->elems_in.at(plan->mesh(), coordinate)) return false;
      if (sent.elems_out != spec->elems_out.at(plan->mesh(), coordinate)) return false;
    }
    if (num_sent != used.num_collectives) return false;
  }
  return !symbolic.layout().recording().empty();
}

/// How often a plan had what only some scenarios have: a generator that never draws it tests
/// nothing.
class Variety {
 public:
  void add(const VerifiedPlan& plan) {
    const Scenario& scenario = plan->scenario;
    for (const Bucket& bucket : plan->buckets) {
      note("ranks with rows of different sizes", !bucket.row_elems.is_uniform());
      note("ignored parameters", bucket.is_ignored);
      note("averaged weights", !bucket.average_dims.empty());
    }
    for (const GradientRow& row : plan->gradient_rows)
      note("partial dims", !row.partials.empty());
    for (int p = 0; p < static_cast<int>(plan->parameters.size()); ++p) {
      const PlannedParameter& parameter = plan->parameter(p);
      const bool is_cut = parameter.shard_size() > 1;
      note("columns", is_cut && parameter.cut.dims[0] > 0);
      note("ragged rows", is_cut && parameter.cut.is_ragged() && parameter.cut.is_by_rows());
      note("ragged cells", is_cut && parameter.cut.dims.size() > 1);
      note("balanced", is_cut && parameter.cut.chunking == Chunking::Balanced);
      note("tensor parallelism", !cutting_dims(parameter.unsharded).empty());
      note("three cuts", parameter.cut_dims().size() == 3);
      const std::int64_t num_copies =
          plan->mesh().num_ranks() / plan->mesh().size(parameter.cut_dims());
      const std::int64_t num_averaged = plan->mesh().size(plan->averaged_dims(p));
      note("averaged weights with copies", num_averaged > 1 && num_averaged < num_copies);
      note("averaged weights of a part", num_averaged > 1 && !parameter.cut_dims().empty());
      note("data dims that cut", !shared_data_dims(scenario, p).empty());
      for (const Placement& placement : parameter.sharded) {
        note("strided", std::holds_alternative<StridedShard>(placement));
        note("ragged strided", std::holds_alternative<RaggedStridedShard>(placement));
      }
    }
    for (const Redistribution& change : plan->redistributions) {
      const std::string way = change.is_gradient ? " of a gradient" : " of an activation";
      for (const RedistributeOp op :
           {RedistributeOp::Slice, RedistributeOp::AllGather, RedistributeOp::AllToAll,
            RedistributeOp::AllReduce, RedistributeOp::ReduceScatter}) {
        note(std::string(name_of(op)) + way, change.transition.op == op);
      }
      note("a change along several mesh dims", change.transition.mesh_dims.size() > 1);
      note("a change for the loss", change.asked_by < 0);
      note("a change of samples" + way,
           cutting_order(change.transition.before, 0) != cutting_order(change.transition.after, 0));
    }
    note("four mesh dims", plan->mesh().num_dims() == 4);
    note("shard_size", scenario.roles.shard_replicate_dim.has_value());
    note("modules", !scenario.model.is_elementwise());
    note("no sharding", !scenario.fully_shard.shards_parameters);
    for (const Finding& warning : plan.checks().warnings)
      note("a vocabulary that falls short", warning.code == FindingCode::SpecDisagrees);
  }

  void check() const {
    for (const auto& [what, count] : counts_) {
      CAPTURE(what);
      CHECK(count > 0);
    }
    CHECK(counts_.size() == 34);
  }

 private:
  void note(const std::string& what, bool holds) { counts_[what] += holds ? 1 : 0; }

  std::map<std::string, int> counts_;
};

/// Whether a norm was larger than it may be.
bool has_clipped(const VerifiedPlan& plan, const RunResult& run) {
  const auto& clip = plan->scenario.training.clip_grad_norm;
  for (std::int64_t step = 0; clip && step < run.layout().num_steps(); ++step) {
    if (run.step_record(Rank{0}, step).clip_norm > clip->max_norm) return true;
  }
  return false;
}

TEST_CASE("random scenarios pass on symbolic and local, and fail once a gradient is spoiled") {
  const std::uint64_t seed = property_seed();
  const int count = property_count(kScenarioCount);
  std::cout << "HPSIM_PROPERTY_SEED=" << seed << " HPSIM_PROPERTY_COUNT=" << count << "\n";
  Dice dice(seed);
  int num_exact = 0;
  int num_refused = 0;
  int num_exact_narrow = 0;
  int num_exact_in_passes = 0;
  int num_clipped = 0;
  int num_spoiled = 0;
  Variety variety;
  PolicyVariety policies;
  NarrowRuns narrow;
  for (int i = 0; i < count; ++i) {
    SavedIfFailing text(random_scenario(dice), i, seed);
    INFO("scenario " << i << " of seed " << seed << ", saved as " << text.file());
    const Scenario scenario = parse_scenario(text.json(), text.file());
    const VerifiedPlan plan = verify_plan(build_plan(scenario));

    variety.add(plan);
    policies.add(*plan);
    const RunResult symbolic = SymbolicExecutor().run(plan, {});
    const Verdict of_symbolic = compare_runs(plan, symbolic, {});
    INFO(all_messages(of_symbolic));
    text.expect(of_symbolic.passed());

    RunResult run = LocalExecutor().run(plan, {});
    text.expect(is_as_told(plan, symbolic, run));
    text.expect(is_explained(plan));
    const std::optional<ReferenceRun> reference = reference_of(plan, run);
    num_exact += scenario.is_exact() ? 1 : 0;
    num_refused += reference ? 0 : 1;
    if (!reference) continue;
    num_exact_narrow += scenario.is_exact() && is_narrow(scenario) ? 1 : 0;
    num_exact_in_passes += scenario.is_exact() && scenario.training.micro_batches > 1 ? 1 : 0;
    num_clipped += has_clipped(plan, run) ? 1 : 0;
    const Verdict verdict = compare_runs(plan, run, *reference);
    INFO(all_messages(verdict));
    text.expect(narrow.accepts(plan, verdict));
    if (!verdict.passed()) continue;

    if (!is_narrow(scenario) || scenario.is_exact()) {
      RunResult unscaled = LocalExecutor().run(plan, {});
      check_that_a_missing_factor_is_named(plan, unscaled, *reference);
    }

    const auto p = static_cast<int>(dice.below(static_cast<std::int64_t>(plan->parameters.size())));
    const std::int64_t rank = spoil_one_gradient(dice, plan->scenario, run, p);
    if (rank < 0) continue;
    ++num_spoiled;
    const Verdict spoiled = compare_runs(plan, run, *reference);
    text.expect(!spoiled.passed());
    // A mean that is off is told of the first rank that it is over.
    std::int64_t named = rank;
    for (const Rank member : group_of(plan->mesh(), plan->averaged_dims(p), Rank{rank}))
      named = std::min(named, member.value);
    bool is_named = false;
    for (const Finding& finding : spoiled.findings) {
      is_named = is_named || (finding.check == CheckId::GradientParity && finding.rank == named &&
                              finding.param == plan->parameters[static_cast<std::size_t>(p)].name);
    }
    text.expect(is_named);
  }
  std::cout << num_exact << " exact, of which " << num_refused << " refused, " << num_exact_narrow
            << " in 16 bits, and " << num_exact_in_passes << " in micro-batches; " << num_clipped
            << " clipped; " << num_spoiled << " spoiled\n";
  CHECK(num_refused * 2 <= num_exact);
  if (count >= kDefaultCount) {
    variety.check();
    policies.check(kLeast);
    narrow.check(kLeast);
    CHECK(num_exact_narrow >= kLeast);
    CHECK(num_exact_in_passes >= kLeast);
    CHECK(num_clipped >= kLeast);
  }
  CHECK(num_spoiled * 2 >= count - num_refused);
}

TEST_CASE("random transformers pass on symbolic and local, and fail once a gradient is spoiled") {
  const std::uint64_t seed = property_seed() + 1;
  const int count = property_count(kDefaultCount);
  Dice dice(seed);
  int num_spoiled = 0;
  PolicyVariety policies;
  NarrowRuns narrow;
  for (int i = 0; i < count; ++i) {
    SavedIfFailing text(random_transformer(dice), i, seed);
    INFO("transformer " << i << " of seed " << seed << ", saved as " << text.file());
    const VerifiedPlan plan = verify_plan(build_plan(parse_scenario(text.json(), text.file())));
    policies.add(*plan);
    const RunResult symbolic = SymbolicExecutor().run(plan, {});
    text.expect(compare_runs(plan, symbolic, {}).passed());
    RunResult run = LocalExecutor().run(plan, {});
    text.expect(is_as_told(plan, symbolic, run));
    text.expect(is_explained(plan));
    const std::optional<ReferenceRun> reference = reference_of(plan, run);
    REQUIRE(reference.has_value());
    const Verdict verdict = compare_runs(plan, run, *reference);
    INFO(all_messages(verdict));
    text.expect(narrow.accepts(plan, verdict));
    if (!verdict.passed()) continue;
    const auto p = static_cast<int>(dice.below(static_cast<std::int64_t>(plan->parameters.size())));
    if (spoil_one_gradient(dice, plan->scenario, run, p) < 0) continue;
    ++num_spoiled;
    text.expect(!compare_runs(plan, run, *reference).passed());
  }
  CHECK(num_spoiled * 2 >= count);
  if (count < kDefaultCount) return;
  policies.check(kLeast);
  narrow.check(kLeast);
}

/// Multiplies the gradients of all experts, on all ranks and in all steps.
bool scale_experts(const Plan& plan, RunResult& run, double factor) {
  const ResultLayout& layout = run.layout();
  bool is_changed = false;
  for (std::size_t p = 0; p < plan.parameters.size(); ++p) {
    if (plan.scenario.parameters[p].kind != ParameterSpec::Kind::ExpertWeight) continue;
    for (const Rank rank : layout.recording()) {
      for (std::int64_t step = 0; step < layout.num_steps(); ++step) {
        std::byte* const data = run.bytes(layout.gradient(rank, step, static_cast<int>(p)));
        const std::int64_t elems = layout.shard_elems(rank, static_cast<int>(p));
        is_changed = (layout.dtype() == DType::Float64
                          ? scale(reinterpret_cast<double*>(data), elems, factor)
                          : scale(reinterpret_cast<float*>(data), elems, factor)) ||
                     is_changed;
      }
    }
  }
  return is_changed;
}

/// The faults of reports B02 to B05: gradients of experts that are not divided by the size of ep,
/// since the token exchange has added them up already, or are divided by it once more.
void check_that_divisors_of_experts_are_named(const VerifiedPlan& plan, RunResult& run,
                                              const ReferenceRun& reference) {
  const auto ep = static_cast<double>(plan->mesh().size(*plan->scenario.roles.ep_dim));
  if (ep == 1) return;
  const std::string number = std::to_string(static_cast<int>(ep));
  double now = 1;
  for (const double factor : {ep, 1 / ep}) {
    if (!scale_experts(*plan, run, factor / now)) return;
    now = factor;
    const Verdict verdict = compare_runs(plan, run, reference);
    INFO("gradients of experts times " << factor << ":\n" << all_messages(verdict));
    bool is_named = false;
    for (const Finding& finding : verdict.findings) {
      if (finding.check != CheckId::GradientParity) continue;
      CHECK(finding.param.find(".experts.w") != std::string::npos);
      if (finding.code != FindingCode::GradScale) continue;
      CHECK(*finding.ratio == Approx(factor));
      const std::string wanted = factor > 1 ? "ep=" + number : "1/ep=1/" + number;
      is_named = is_named || std::find(finding.explains.begin(), finding.explains.end(), wanted) !=
                                 finding.explains.end();
    }
    CHECK(is_named);
  }
}

TEST_CASE("random mixtures of experts pass, and wrong counts and divisors are seen") {
  const std::uint64_t seed = property_seed() + 2;
  const int count = property_count(kDefaultCount);
  Dice dice(seed);
  int num_near_ties = 0;
  int num_exchanging = 0;
  PolicyVariety policies;
  NarrowRuns narrow;
  for (int i = 0; i < count; ++i) {
    SavedIfFailing text(random_experts(dice), i, seed);
    INFO("mixture " << i << " of seed " << seed << ", saved as " << text.file());
    const VerifiedPlan plan = verify_plan(build_plan(parse_scenario(text.json(), text.file())));
    policies.add(*plan);
    text.expect(compare_runs(plan, SymbolicExecutor().run(plan, {}), {}).passed());
    RunResult run = LocalExecutor().run(plan, {});
    ReferenceRun reference;
    try {
      reference = run_baseline(plan->scenario, states_before_steps(*plan, run));
    } catch (const Error& error) {
      INFO(error.what());
      text.expect(std::string(error.what()).find("NEAR_TIE") != std::string::npos);
      ++num_near_ties;
      continue;
    }
    const Verdict verdict = compare_runs(plan, run, reference);
    INFO(all_messages(verdict));
    text.expect(narrow.accepts(plan, verdict));
    if (!verdict.passed()) continue;
    const int module = experts_modules(plan->scenario.model).at(0);
    num_exchanging += exchange_dims(*plan, module).empty() ? 0 : 1;
    // One position more to an expert than the baseline sends there.
    const Rank rank{dice.below(plan->mesh().num_ranks())};
    ++run.routed(rank, 0, 0)[0];
    const Verdict miscounted = compare_runs(plan, run, reference);
    text.expect(std::any_of(
        miscounted.findings.begin(), miscounted.findings.end(),
        [](const Finding& finding) { return finding.code == FindingCode::RouteWrong; }));
    --run.routed(rank, 0, 0)[0];
    if (!is_narrow(plan->scenario)) check_that_divisors_of_experts_are_named(plan, run, reference);
  }
  CHECK(num_near_ties * 10 <= count);
  CHECK(num_exchanging * 3 >= count);
  if (count < kDefaultCount) return;
  policies.check(1);
  narrow.check(kLeast);
}

}  // namespace
}  // namespace hpsim::test
