// What each rank computes where a weight is cut by columns: terms of every output feature.

#include <cstdlib>
#include <memory>
#include <vector>

#include "engine/rank_engine.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "tensor/fill.h"

namespace hpsim {
namespace {

constexpr std::int64_t kIn = 7;
constexpr std::int64_t kOut = 3;
constexpr std::int64_t kBatch = 2;

double drawn(const Scenario& scenario, const char* name, std::int64_t i) {
  return value_at(fill_key(name, scenario.data.seed), i,
                  {.kind = FillSpec::Kind::Integer, .max = 2, .scale = 1});
}

/// What the rank hands to the first collective of an activation.
std::vector<double> first_sent(const VerifiedPlan& plan, Rank rank) {
  const ResultLayout layout(*plan, true);
  RunResult result(
      "test", layout,
      {static_cast<std::byte*>(std::calloc(1, static_cast<std::size_t>(layout.size_bytes()))),
       [](std::byte* data) { std::free(data); }});
  const std::unique_ptr<RankEngine> engine = make_rank_engine(plan, rank, result);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(plan->steps.size()); ++i) {
    const std::optional<CollectiveCall> call = engine->begin(i);
    if (call) {
      REQUIRE(plan->steps[static_cast<std::size_t>(i)].redistribution >= 0);
      const auto* data = static_cast<const float*>(call->input);
      return {data, data + call->elems_in};
    }
    engine->finish(i);
  }
  return {};
}

TEST_CASE("a bias behind a weight cut by columns is added by the first rank, and by no other") {
  // Columns over tp and within these over ep: 4 and 3, then 2 2 and 2 1.
  const VerifiedPlan plan = verify_plan(build_plan(parse_scenario(
      R"x({"hpsim": 1, "mesh": {"shape": [2, 2], "mesh_dim_names": ["tp", "ep"]},
           "model": [{"name": "down", "type": "linear", "in_features": 7, "out_features": 3}],
           "parallelize": {"down": "rowwise"},
           "placements": {"down.weight": {"ep": "Shard(1)"}},
           "data": {"data_dims": []}, "numerics": {"mode": "exact"}})x",
      "test.json")));
  const std::vector<Interval> columns = {{0, 2}, {2, 4}, {4, 6}, {6, 7}};
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const std::vector<double> terms = first_sent(plan, Rank{rank});
    REQUIRE(terms.size() == kBatch * kOut);
    CAPTURE(rank);
    for (std::int64_t n = 0; n < kBatch; ++n) {
      for (std::int64_t o = 0; o < kOut; ++o) {
        double expected = rank == 0 ? drawn(plan->scenario, "down.bias", o) : 0;
        const Interval mine = columns[static_cast<std::size_t>(rank)];
        for (std::int64_t i = mine.begin; i < mine.end; ++i) {
          expected += drawn(plan->scenario, "input", n * kIn + i) *
                      drawn(plan->scenario, "down.weight", o * kIn + i);
        }
        CHECK(terms[static_cast<std::size_t>(n * kOut + o)] == expected);
      }
    }
  }
}

TEST_CASE("data ranks each add the bias to their own samples") {
  const VerifiedPlan plan = verify_plan(build_plan(parse_scenario(
      R"x({"hpsim": 1, "mesh": {"shape": [2, 2], "mesh_dim_names": ["rep", "tp"]},
           "model": [{"name": "down", "type": "linear", "in_features": 7, "out_features": 3}],
           "parallelize": {"down": "rowwise"}, "numerics": {"mode": "exact"}})x",
      "test.json")));
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const std::vector<double> terms = first_sent(plan, Rank{rank});
    REQUIRE(terms.size() == kBatch * kOut);
    CAPTURE(rank);
    const bool is_first_of_tp = rank % 2 == 0;
    const std::int64_t first_sample = rank / 2 * kBatch;
    const Interval mine = is_first_of_tp ? Interval{0, 4} : Interval{4, 7};
    for (std::int64_t n = 0; n < kBatch; ++n) {
      for (std::int64_t o = 0; o < kOut; ++o) {
        double expected = is_first_of_tp ? drawn(plan->scenario, "down.bias", o) : 0;
        for (std::int64_t i = mine.begin; i < mine.end; ++i) {
          expected += drawn(plan->scenario, "input", (first_sample + n) * kIn + i) *
                      drawn(plan->scenario, "down.weight", o * kIn + i);
        }
        CHECK(terms[static_cast<std::size_t>(n * kOut + o)] == expected);
      }
    }
  }
}

}  // namespace
}  // namespace hpsim
