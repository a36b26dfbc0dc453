#include "report/digest.h"

#include "exec/local.h"
#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

TEST_CASE("a digest is FNV-1a over float64 values, -0 as +0") {
  // FNV-1a of no bytes is its offset basis.
  CHECK(digest_of_values({}) == "cbf29ce484222325");
  // Eight zero bytes: offset times prime^8 modulo 2^64.
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (int i = 0; i < 8; ++i)
    hash *= 0x100000001b3U;
  CHECK(digest_of_values({0.0}) == digest_of_values({-0.0}));
  CHECK(std::stoull(digest_of_values({0.0}), nullptr, 16) == hash);
  // 1.0 is 3f f0 00 ...: little-endian, its last two bytes are f0 and 3f.
  std::uint64_t one = 0xcbf29ce484222325U;
  for (const std::uint64_t byte : {0x00U, 0x00U, 0x00U, 0x00U, 0x00U, 0x00U, 0xf0U, 0x3fU})
    one = (one ^ byte) * 0x100000001b3U;
  CHECK(std::stoull(digest_of_values({1.0}), nullptr, 16) == one);
  CHECK(digest_of_values({1.0, 2.0}) != digest_of_values({2.0, 1.0}));
}

/// Of an exact run on rep 2 x fsdp 4 without sharding.
std::string digest_by(SyncObject sync_object) {
  Scenario scenario =
      test::hsdp_scenario(test::elementwise_model({{"w", {7, 8}}, {"b", {5}}}), 2, 4);
  scenario.fully_shard.shards_parameters = false;
  scenario.fully_shard.sync_object = sync_object;
  test::make_exact(scenario);
  scenario.training.steps = 3;
  scenario.training.optimizer.momentum = 0.5;
  const VerifiedPlan plan = verify_plan(build_plan(scenario));
  const RunResult run = LocalExecutor().run(plan, {});
  return digest_of(*plan, run, {1, 2, 3});
}

TEST_CASE("the mean of weights and the sum of gradients have one digest") {
  CHECK(digest_by(SyncObject::Weight) == digest_by(SyncObject::Grad));
}

}  // namespace
}  // namespace hpsim
