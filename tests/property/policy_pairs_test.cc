// Pairs of runs of one random scenario that differ in a policy which must not change results.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "baseline/eigen_baseline.h"
#include "exec/local.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "random_experts.h"
#include "random_scenario.h"
#include "random_transformer.h"
#include "saved_if_failing.h"
#include "scenario/gradients.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "trace/plan_ledger.h"

namespace hpsim::test {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kCount = 60;

VerifiedPlan plan_of(const Json& json) {
  return verify_plan(build_plan(parse_scenario(json.dump(), "pair.json")));
}

/// To the last bit; what has overflowed is no number, and the same if it has on both sides.
bool is_same(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

bool have_equal_numbers(const TensorView& a, const TensorView& b) {
  if (a.elems != b.elems) return false;
  for (std::int64_t i = 0; i < a.elems; ++i) {
    if (!is_same(a.at(i), b.at(i))) return false;
  }
  return true;
}

/// Whether gradients of all steps, and parameters after all of them, are equal on every rank.
bool have_equal_tensors(const Plan& plan, const RunResult& a, const RunResult& b) {
  for (const Rank rank : a.layout().recording()) {
    for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
      for (std::int64_t t = 0; t < plan.scenario.training.steps; ++t) {
        const bool are_equal =
            have_equal_numbers(a.gradient(rank, t, p), b.gradient(rank, t, p)) &&
            have_equal_numbers(a.parameter(rank, t + 1, p), b.parameter(rank, t + 1, p));
        if (!are_equal) return false;
      }
    }
  }
  return true;
}

bool have_equal_losses(const RunResult& a, const RunResult& b) {
  for (const Rank rank : a.layout().recording()) {
    for (std::int64_t t = 0; t < a.layout().num_steps(); ++t) {
      for (std::int64_t i = 0; i < a.layout().num_loss_terms(); ++i) {
        if (!is_same(a.losses(rank, t)[i], b.losses(rank, t)[i])) return false;
      }
    }
  }
  return true;
}

bool is_of_parameters(const Step& step) {
  return step.collective &&
         (step.kind == StepKind::Unshard || step.kind == StepKind::ReduceScatter ||
          step.kind == StepKind::AllReduce || step.kind == StepKind::AverageWeights);
}

/// Bytes that a rank gives to collectives of parameters and gradients, and their number.
struct Traffic {
  std::int64_t bytes = 0;
  std::int64_t count = 0;
};

Traffic traffic_of(const Plan& plan, Rank rank) {
  const Coordinate coordinate = plan.mesh().coordinate_of(rank);
  Traffic traffic;
  for (const Step& step : plan.steps) {
    if (!is_of_parameters(step)) continue;
    traffic.bytes +=
        step.collective->elems_in.at(plan.mesh(), coordinate) * size_bytes(step.collective->dtype);
    ++traffic.count;
  }
  return traffic;
}

/// How many collectives there are where each sends one parameter: as many as these send.
std::int64_t num_sent(const Plan& plan) {
  std::int64_t count = 0;
  for (const Step& step : plan.steps) {
    if (!is_of_parameters(step)) continue;
    if (step.partial >= 0) {
      count += plan.gradient_row(step.row)
                   .partials.at(static_cast<std::size_t>(step.partial))
                   .members.length();
    } else if (step.row >= 0) {
      count += static_cast<std::int64_t>(plan.gradient_row(step.row).parameters.size());
    } else {
      count += static_cast<std::int64_t>(plan.bucket(step.bucket).parameters.size());
    }
  }
  return count;
}

/// Whether gradients that need no all-reduce wait for neighbours in their row that do, and so add
/// up before they are scaled and stored, in another dtype perhaps; alone they wait all the same.
bool some_wait_for_neighbours(const Plan& plan) {
  if (plan.scenario.training.all_reduces.empty()) return false;
  return std::any_of(plan.gradient_rows.begin(), plan.gradient_rows.end(),
                     [&](const GradientRow& row) {
                       if (row.partials.empty()) return false;
                       return !plan.bucket(row.bucket).is_ignored &&
                              plan.bucket(row.bucket).all_reduce_dims.empty() &&
                              row.partials.front().members.begin > 0;
                     });
}

/// Scenarios of both kinds, in turn.
std::string drawn(Dice& dice, int i) {
  return i % 3 == 2 ? random_transformer(dice) : random_scenario(dice);
}

TEST_CASE("collectives of single parameters send the same and change no result") {
  const std::uint64_t seed = property_seed() + 10;
  Dice dice(seed);
  int num_split = 0;
  int num_waiting = 0;
  for (int i = 0; i < property_count(kCount); ++i) {
    const SavedIfFailing text(drawn(dice, i), i, seed);
    INFO("scenario " << i << " of seed " << seed << ", saved as " << text.file());
    Json json = Json::parse(text.json());
    json["fully_shard"]["comm_fusion"] = "group";
    const VerifiedPlan fused = plan_of(json);
    json["fully_shard"]["comm_fusion"] = "none";
    const VerifiedPlan single = plan_of(json);
    for (std::int64_t rank = 0; rank < fused->mesh().num_ranks(); ++rank) {
      const Traffic of_fused = traffic_of(*fused, Rank{rank});
      const Traffic of_single = traffic_of(*single, Rank{rank});
      REQUIRE(of_single.bytes == of_fused.bytes);
      REQUIRE(of_single.count == num_sent(*fused));
      if (rank == 0) num_split += of_single.count > of_fused.count ? 1 : 0;
    }
    num_waiting += some_wait_for_neighbours(*fused) ? 1 : 0;
    const RunResult a = LocalExecutor().run(fused, {});
    const RunResult b = LocalExecutor().run(single, {});
    REQUIRE(have_equal_losses(a, b));
    REQUIRE(have_equal_tensors(*fused, a, b));
  }
  CHECK(num_split * 4 > property_count(kCount));
  CHECK(num_waiting > 0);
}

/// All-gathers of each bucket in each optimizer step.
std::map<std::pair<int, std::int64_t>, std::int64_t> gathers(const Plan& plan) {
  std::map<std::pair<int, std::int64_t>, std::int64_t> counts;
  for (int b = 0; b < static_cast<int>(plan.buckets.size()); ++b) {
    const Bucket& bucket = plan.bucket(b);
    if (bucket.is_ignored || bucket.sharded_group.size == 1) continue;
    for (std::int64_t t = 0; t < plan.scenario.training.steps; ++t)
      counts[{b, t}] = 0;
  }
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::Unshard && step.collective) ++counts[{step.bucket, step.step}];
  }
  return counts;
}

/// Where every parameter is trained: backward then comes by every unit.
std::int64_t expected_gathers(bool after_forward, bool after_backward, std::int64_t passes) {
  if (after_forward) return after_backward ? 2 * passes : passes + 1;
  return after_backward ? passes : 1;
}

TEST_CASE("what ranks keep between passes changes no result, and saves all-gathers") {
  const std::uint64_t seed = property_seed() + 11;
  Dice dice(seed);
  int num_kept_parts = 0;
  int num_in_passes = 0;
  for (int i = 0; i < property_count(kCount); ++i) {
    const SavedIfFailing text(drawn(dice, i), i, seed);
    INFO("scenario " << i << " of seed " << seed << ", saved as " << text.file());
    Json json = Json::parse(text.json());
    const Scenario base = parse_scenario(text.json(), text.file());
    std::vector<Json> after_forward = {true, false};
    if (base.fully_shard.shards_parameters && base.roles.fsdp_shard_dim) {
      const std::int64_t size = base.mesh.size(*base.roles.fsdp_shard_dim);
      for (std::int64_t k = 2; k < size; ++k) {
        if (size % k == 0) after_forward.emplace_back(k);
      }
    }
    std::optional<VerifiedPlan> first_plan;
    std::optional<RunResult> first;
    for (const Json& forward : after_forward) {
      for (const bool backward : {true, false}) {
        CAPTURE(forward.dump(), backward);
        json["fully_shard"]["reshard_after_forward"] = forward;
        json["fully_shard"]["reshard_after_backward"] = backward;
        const VerifiedPlan plan = plan_of(json);
        const std::int64_t passes = plan->scenario.training.micro_batches;
        const std::int64_t expected = expected_gathers(forward != false, backward, passes);
        for (const auto& [at, count] : gathers(*plan)) {
          CAPTURE(at.first, at.second);
          if (base.training.trained_from.empty()) {
            CHECK(count == expected);
          } else {
            CHECK(count <= expected);
          }
          num_kept_parts += plan->bucket(at.first).post_forward_size > 0 ? 1 : 0;
          num_in_passes += passes > 1 ? 1 : 0;
        }
        RunResult run = LocalExecutor().run(plan, {});
        if (first) {
          REQUIRE(have_equal_losses(*first, run));
          REQUIRE(have_equal_tensors(**first_plan, *first, run));
        } else {
          first = std::move(run);
          first_plan = plan;
        }
      }
    }
  }
  CHECK(num_kept_parts > 4);
  CHECK(num_in_passes > 8);
}

/// Unshards of a plan that are only begun.
struct Begun {
  std::int64_t num_async = 0;
  std::int64_t num_uneven = 0;  ///< of buckets with padding
};

Begun begun_in(const Plan& plan) {
  Begun begun;
  for (const Step& step : plan.steps) {
    if (!step.is_async) continue;
    ++begun.num_async;
    const std::vector<int>& all = plan.bucket(step.bucket).parameters;
    const bool is_uneven = std::any_of(all.begin(), all.end(), [&](int p) {
      const PlannedParameter& parameter = plan.parameter(p);
      const Coordinate first(static_cast<std::size_t>(plan.mesh().num_dims()), 0);
      return parameter.padded_elems.at(plan.mesh(), first) * parameter.shard_size() >
             num_elems(local_box({parameter.shape, parameter.unsharded}, plan.mesh(), first).shape);
    });
    begun.num_uneven += is_uneven ? 1 : 0;
  }
  return begun;
}

TEST_CASE("gathering units ahead changes no result, and gathers none more often") {
  const std::uint64_t seed = property_seed() + 14;
  Dice dice(seed);
  Begun all;
  for (int i = 0; i < property_count(kCount); ++i) {
    const SavedIfFailing text(drawn(dice, i), i, seed);
    INFO("scenario " << i << " of seed " << seed << ", saved as " << text.file());
    Json json = Json::parse(text.json());
    for (const char* key : {"forward_prefetch", "backward_prefetch"})
      json["fully_shard"][key] = 0;
    const VerifiedPlan without = plan_of(json);
    const RunResult expected = LocalExecutor().run(without, {});
    for (const auto& [forward, backward] : {std::pair(1, 0), std::pair(0, 1), std::pair(3, 2)}) {
      CAPTURE(forward, backward);
      json["fully_shard"]["forward_prefetch"] = forward;
      json["fully_shard"]["backward_prefetch"] = backward;
      const VerifiedPlan plan = plan_of(json);
      const Begun begun = begun_in(*plan);
      all.num_async += begun.num_async;
      all.num_uneven += begun.num_uneven;
      CHECK(gathers(*plan) == gathers(*without));
      const RunResult run = LocalExecutor().run(plan, {});
      REQUIRE(have_equal_losses(expected, run));
      REQUIRE(have_equal_tensors(*without, expected, run));
    }
  }
  CHECK(all.num_async > 5 * property_count(kCount));
  CHECK(all.num_uneven > property_count(kCount));
}

/// What is alive while parameters are made, beside the shards.
std::int64_t beside_shards(const RankRecord& record) {
  return record.init.peak_total() - total_of(record.init.live());
}

TEST_CASE("parameters are the same on meta as on cpu, where whole tensors were alive") {
  const std::uint64_t seed = property_seed() + 15;
  Dice dice(seed);
  int num_less = 0;
  for (int i = 0; i < property_count(kCount) / 2; ++i) {
    const SavedIfFailing text(drawn(dice, i), i, seed);
    INFO("scenario " << i << " of seed " << seed << ", saved as " << text.file());
    Json json = Json::parse(text.json());
    json["training"]["init_device"] = "cpu";
    const VerifiedPlan cpu = plan_of(json);
    json["training"]["init_device"] = "meta";
    const VerifiedPlan meta = plan_of(json);
    const RunResult a = LocalExecutor().run(cpu, {});
    const RunResult b = LocalExecutor().run(meta, {});
    REQUIRE(have_equal_losses(a, b));
    REQUIRE(have_equal_tensors(*cpu, a, b));
    for (const Rank rank : a.layout().recording()) {
      REQUIRE(a.rank_record(rank).ledger.peak() == b.rank_record(rank).ledger.peak());
      REQUIRE(b.rank_record(rank)
                  .init.peak()[static_cast<std::size_t>(MemoryKind::UnshardedParameters)] == 0);
      // A shard that is drawn apart is smaller than its tensor.
      REQUIRE(beside_shards(b.rank_record(rank)) <= beside_shards(a.rank_record(rank)));
      num_less += beside_shards(b.rank_record(rank)) < beside_shards(a.rank_record(rank)) ? 1 : 0;
    }
  }
  CHECK(num_less > property_count(kCount) / 2);
}

/// Steps of units, in order: what is gathered, freed and reduced, when there is no recomputation.
std::vector<std::pair<StepKind, int>> steps_of_units(const Plan& plan) {
  std::vector<std::pair<StepKind, int>> steps;
  for (const Step& step : plan.steps) {
    if (step.bucket >= 0) steps.emplace_back(step.kind, step.bucket);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

/// Bytes of activations that rank 0 holds when the loss of the first pass is done.
std::int64_t kept_bytes(Plan plan) {
  const auto loss = std::find_if(plan.steps.begin(), plan.steps.end(),
                                 [](const Step& step) { return step.kind == StepKind::Loss; });
  plan.steps.erase(loss + 1, plan.steps.end());
  const Coordinate first(static_cast<std::size_t>(plan.mesh().num_dims()), 0);
  return planned_memory(plan, first)
      .ledger.live()[static_cast<std::size_t>(MemoryKind::Activations)];
}

/// Parts of the model, of which none lies in another.
Json some_parts(Dice& dice, const ModelSpec& model) {
  Json parts = Json::array();
  int end = 0;
  for (const ModelPart& part : model_parts(model)) {
    if (part.first < end || !dice.one_in(2)) continue;
    parts.push_back(part.name);
    end = part.end;
  }
  if (parts.empty()) parts.push_back(model_parts(model).front().name);
  return parts;
}

/// Whether blocks "blocks.0", ... keep less than what is made in them: what a block takes is what
/// its first module reads, no wider copy of it and no whole sequence.
bool saves_by_blocks(const Scenario& scenario) {
  const auto& groups = scenario.model.groups;
  const auto& styles = scenario.styles;
  const bool has_blocks = std::any_of(groups.begin(), groups.end(), [](const ModuleGroup& group) {
    return group.name == "blocks.0";
  });
  const bool cuts_sequences = std::any_of(styles.begin(), styles.end(), [](ParallelStyle style) {
    return style == ParallelStyle::RowwiseSp || style == ParallelStyle::SequenceParallel;
  });
  return has_blocks && !cuts_sequences && !scenario.fully_shard.mp_policy.param_dtype &&
         scenario.numerics.parameter_dtypes.empty() && scenario.training.trained_from.empty();
}

TEST_CASE("what backward computes again changes no number, and gathers nothing again") {
  const std::uint64_t seed = property_seed() + 16;
  Dice dice(seed);
  int num_sent_again = 0;
  int num_blocks = 0;
  for (int i = 0; i < 2 * property_count(kCount); ++i) {
    const SavedIfFailing text(i % 4 == 3 ? random_experts(dice) : drawn(dice, i), i, seed);
    INFO("scenario " << i << " of seed " << seed << ", saved as " << text.file());
    const Scenario base = parse_scenario(text.json(), text.file());
    if (base.model.is_elementwise()) continue;
    Json json = Json::parse(text.json());
    json["training"]["activation_checkpointing"] = Json::array();
    const VerifiedPlan without = plan_of(json);
    const RunResult plain = LocalExecutor().run(without, {});
    json["training"]["activation_checkpointing"] = some_parts(dice, base.model);
    CAPTURE(json["training"]["activation_checkpointing"].dump());
    const VerifiedPlan with = plan_of(json);
    REQUIRE(steps_of_units(*with) == steps_of_units(*without));
    const RunResult run = LocalExecutor().run(with, {});
    REQUIRE(have_equal_losses(plain, run));
    REQUIRE(have_equal_tensors(*with, plain, run));
    num_sent_again += std::any_of(with->steps.begin(), with->steps.end(), [](const Step& step) {
      return step.is_recomputed && step.collective;
    });
    if (!saves_by_blocks(base)) continue;
    json["training"]["activation_checkpointing"] = {"blocks.*"};
    REQUIRE(kept_bytes(*plan_of(json)) < kept_bytes(*without));
    ++num_blocks;
  }
  CHECK(num_sent_again * 8 > property_count(kCount));
  CHECK(num_blocks * 24 > property_count(kCount));
}

/// Calls change(json) on exact scenarios until `count` of them were judged: what it returns are two
/// scenarios that must come to the same. Those whose numbers outgrow their dtype are left out.
void compare_exact_pairs(std::uint64_t seed, int count,
                         const std::function<std::optional<std::pair<Json, Json>>(Json)>& change) {
  Dice dice(seed);
  int num_compared = 0;
  for (int i = 0; num_compared < count && i < 40 * count; ++i) {
    const SavedIfFailing text(random_scenario(dice), i, seed);
    INFO("scenario " << i << " of seed " << seed << ", saved as " << text.file());
    if (!parse_scenario(text.json(), text.file()).is_exact()) continue;
    const auto pair = change(Json::parse(text.json()));
    if (!pair) continue;
    const VerifiedPlan one = plan_of(pair->first);
    const VerifiedPlan other = plan_of(pair->second);
    try {
      static_cast<void>(run_baseline(one->scenario));
      static_cast<void>(run_baseline(other->scenario));
    } catch (const Error&) {
      continue;
    }
    const RunResult a = LocalExecutor().run(one, {});
    const RunResult b = LocalExecutor().run(other, {});
    REQUIRE(have_equal_tensors(*one, a, b));
    ++num_compared;
  }
  CHECK(num_compared == count);
}

TEST_CASE("exact gradients are the same whether every micro-batch reduces them or the last one") {
  compare_exact_pairs(property_seed() + 12, property_count(kCount) / 3,
                      [](Json json) -> std::optional<std::pair<Json, Json>> {
                        const std::int64_t passes = json["training"].value("micro_batches", 1);
                        if (passes == 1) return std::nullopt;
                        // What a rank does not use between two reductions has to be zeros.
                        if (json["data"].contains("inactive"))
                          json["training"]["reduce_unused"] = true;
                        Json other = json;
                        json["training"]["requires_gradient_sync"] = "every";
                        other["training"]["requires_gradient_sync"] = "last";
                        return std::pair(json, other);
                      });
}

TEST_CASE("exact sums of gradients are the same in micro-batches as in one pass") {
  compare_exact_pairs(
      property_seed() + 13, property_count(kCount) / 3,
      [](Json json) -> std::optional<std::pair<Json, Json>> {
        const std::int64_t passes = json["training"].value("micro_batches", 1);
        if (passes == 1) return std::nullopt;
        json["training"]["loss_normalization"] = "sum";
        // Both count micro-batches.
        json["data"].erase("inactive");
        json["data"].erase("tokens");
        Json other = json;
        for (const char* key : {"micro_batches", "requires_gradient_sync", "requires_all_reduce"})
          other["training"].erase(key);
        return std::pair(json, other);
      });
}

}  // namespace
}  // namespace hpsim::test
