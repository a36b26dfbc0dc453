// What is said of planted faults of plans, with both numbers derived by hand.

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "fault_cases.h"
#include "support/catch.h"
#include "support/planted_plans.h"

namespace hpsim::test {
namespace {

struct Row {
  const char* fault;
  char letter;  ///< of a case
  const char* text;
};

void check(const Row& row) {
  const Planted planted = plant(plan_of(case_json(row.letter)), {unaimed(row.fault)});
  CAPTURE(row.fault, row.text);
  INFO(planted.told());
  const std::vector<Finding> own = planted.of(row.fault);
  CHECK(std::any_of(own.begin(), own.end(), [&](const Finding& each) {
    return each.message.find(row.text) != std::string::npos;
  }));
}

/// A: a (5, 8), b (2, 3), c (8, 2) over 4 ranks. Rows 2, 2, 1, 0; 1, 1, 0, 0; 2 each: slots of 16,
/// 3 and 4 elements at 0, 16 and 19.
TEST_CASE("what is wrong with slots and cuts is said with both numbers") {
  const Row rows[] = {
      {"plan_offset_shifted", 'A',
       R"t(slot of "a" begins at 1 at (fsdp 0), the one before it ends at 0)t"},
      {"plan_offset_shifted", 'A',
       R"t(slots of unit "(root)" end at 24, its row has 23 elements)t"},
      // Rank 2 is the first one without a row of b.
      {"plan_empty_offset_zero", 'A',
       R"t(slot of "b" begins at 0 at (fsdp 2), the one before it ends at 16)t"},
      // floor(5 / 4) = 1.
      {"plan_floor_chunk", 'A',
       R"t(shards of "a" have (1, 1, 1, 1), together 4 of 5 rows: rows [4, 5) are held by no shard)t"},
      {"plan_units_do_not_fit", 'A',
       R"t(shards of "a" have (3, 2, 1, 0) = 6 rows, there are 5: 1 would be in two of them)t"},
      {"plan_chunk_rule", 'A',
       R"t("a" is cut in balanced chunks of dims (0) over 4, over (fsdp), the scenario asks for: )t"
       R"t(cut in ceil chunks of dims (0) over 4, over (fsdp))t"},
      // Rank 2 has one row of 8 elements.
      {"plan_padding_exposed", 'A',
       R"t(slot of "a" has 8 elements at (fsdp 2), its largest shard 16)t"},
  };
  for (const Row& row : rows)
    check(row);
}

/// C: w (32, 64) over fsdp 2 in two replicas. D: w (10, 3), of which tp leaves 5 rows, and fsdp 3
/// or 2 of these.
TEST_CASE("what is wrong with placements is said with what they imply") {
  const Row rows[] = {
      {"plan_replicate_for_shard", 'C',
       R"t("w" at (0, 0): [Replicate, Replicate] implies (0, 0) + (32, 64), the cut gives (0, 0) + (16, 64))t"},
      {"plan_placement_dropped", 'C', R"t("w" has 1 placement, [Shard(0)], for a mesh of 2 dims)t"},
      // fsdp first leaves 5 rows, of which tp takes 3 or 2: rank (0, 1) has rows 3 and 4, not 5
      // to 7.
      {"plan_cut_order", 'D', "implies (3, 0) + (2, 3), the cut gives (5, 0) + (3, 3)"},
      {"plan_split_factor", 'D', "RaggedStridedShard((0,), (3, 2), 4)"},
  };
  for (const Row& row : rows)
    check(row);
}

/// C: of 2048 elements each rank has 1024. G averages over fsdp. B has units up and down.
TEST_CASE("what is wrong with collectives is said with what is asked for") {
  const Row rows[] = {
      {"plan_group_wrong_dim", 'C', "over (rep), expected over (fsdp)"},
      {"plan_group_extra_dim", 'C', "over (rep, fsdp), expected over (fsdp)"},
      {"plan_group_extra_dim", 'C', "over (rep, fsdp), expected over (rep)"},
      {"plan_group_consecutive", 'C',
       "runs of 2 consecutive ranks along (rep, fsdp), expected 0 (0: all)"},
      {"plan_skip_all_gather", 'C', R"t(unshard of unit "(root)": no all_gather)t"},
      {"plan_all_gather_twice", 'C', R"t(unshard of unit "(root)": it is gathered already)t"},
      {"plan_wrong_op", 'C', R"t(unshard of unit "(root)": all_reduce, expected all_gather)t"},
      {"plan_max_for_sum", 'C', "reduce_scatter of the largest, expected reduce_scatter"},
      {"plan_wrong_dtype", 'C', R"t(bfloat16 on the wire, expected float32 for "w")t"},
      {"plan_wrong_elems", 'C', "1025 elements in and 2048 out, expected 1024 and 2048"},
      // The gather of down fills up, so that down is not there when its forward comes.
      {"plan_wrong_bucket", 'B', R"t(forward of "down": its parameters are not gathered)t"},
  };
  for (const Row& row : rows)
    check(row);
}

/// Along which dims gradients are Partial follows from the samples: C along rep and fsdp, E along
/// tp too where a module sees part of the sequence, F along ep where it is no expert.
TEST_CASE("dims that are not reduced, or twice, are named with how often they are") {
  const Row rows[] = {
      {"plan_group_dropped_dim", 'C',
       R"t(gradient of "w" is Partial along rep, and reduced 0 times there in step 0)t"},
      {"plan_skip_reduce_scatter", 'C',
       R"t(gradient of "w" is Partial along fsdp, and reduced 0 times there in step 0)t"},
      {"plan_skip_all_reduce", 'C',
       R"t(gradient of "w" is Partial along rep, and reduced 0 times there in step 0)t"},
      {"plan_skip_average", 'G',
       R"t(gradient of "weight" is Partial along fsdp, and answered 0 times there in step 0)t"},
      {"plan_missing_tp_sync", 'E',
       R"t(gradient of "blocks.0.a.norm.weight" is Partial along tp, and reduced 0 times)t"},
      {"plan_missing_ep_sync", 'F',
       R"t(gradient of "tok.weight" is Partial along ep, and reduced 0 times)t"},
      {"plan_missing_replica_sync", 'C',
       R"t(gradient of "w" is Partial along rep, and reduced 0 times)t"},
      {"plan_extra_sync", 'C', R"t(gradient of "w" is Partial along rep, and reduced 2 times)t"},
      // Nothing is sent along rep, where both replicas have the same samples.
      {"plan_extra_sync", 'G',
       R"t(gradient of "weight" is complete along rep, and answered 1 times)t"},
      {"plan_second_reduce_of_recomputed", 'E',
       R"t(gradient of "blocks.0.a.attn.wq.weight" is Partial along fsdp, and reduced 2 times)t"},
      // Rows of the embedding are cut over tp: a rank has vectors of its own tokens only.
      {"plan_activation_not_reduced", 'E', "Partial(sum) along tp"},
      {"plan_replicate_on_partial", 'E',
       "the plan says it is [Shard(0), Shard(0), Replicate], it is [Shard(0), Shard(0), "
       "Partial(sum)]"},
  };
  for (const Row& row : rows)
    check(row);
}

/// C: k/F = 1/4, of the all-reduce; S = R = 2, so that 4 is W, D, S*R and F. F: 4 data ranks on
/// (fsdp 2, ep 2), experts on ep 2.
TEST_CASE("wrong factors are explained by the numbers of the scenario") {
  const Row rows[] = {
      {"plan_scale_twice", 'C',
       R"t(gradient of "w" is scaled by 0.0625 in step 0, k/F is 0.25: 0.25 times that, )t"
       "1/W=1/4, 1/D=1/4, 1/S*R=1/4, 1/F=1/4"},
      {"plan_scale_missing", 'C',
       R"t(gradient of "w" is scaled by 1 in step 0, k/F is 0.25: 4 times that, )t"
       "W=4, D=4, S*R=4, F=4"},
      {"plan_scale_all_reduce_again", 'C',
       R"t(gradient of "w" is scaled by 0.125 in step 0, k/F is 0.25: 0.5 times that, 1/S=1/2, 1/R=1/2)t"},
      {"plan_expert_divisor", 'F',
       R"t(gradient of "m.moe.experts.w1" is scaled by 0.5 in step 0, k/F is 0.25: 2 times that, )t"
       "S=2, tp=2, ep=2"},
  };
  for (const Row& row : rows)
    check(row);
}

/// B reduces in the last of three micro-batches, C all-reduces there and scatters in each.
TEST_CASE("micro-batches that reduce too much, or nothing, are named") {
  const Row rows[] = {
      {"plan_ignore_sync_flag", 'B',
       "reduce_scatter over (fsdp) in micro-batch 0 of 3, which asks for 0 of them"},
      {"plan_sync_first", 'B',
       "reduce_scatter over (fsdp) in micro-batch 0 of 3, which asks for 0 of them"},
      {"plan_all_reduce_each_micro_batch", 'C',
       "all_reduce over (rep) in micro-batch 1 of 3, which asks for 0 of them"},
      {"plan_sync_last_only", 'C',
       R"t(micro-batch 0 of 3 ended with 0 reduce_scatters over (fsdp) of unit "(root)", and asks)t"},
  };
  for (const Row& row : rows)
    check(row);
}

TEST_CASE("what comes too early is told of the step that lacks it") {
  const Row rows[] = {
      {"plan_store_before_reduce", 'A',
       R"t(store_gradient of unit "(root)": it comes before the reduce-scatter)t"},
      {"plan_reshard_before_use", 'A', R"t(forward of "a": its parameters are not gathered)t"},
      {"plan_update_before_reduce", 'A',
       "optimizer of the model: gradients of bucket 0 are not stored"},
      // Nothing comes before tok that could begin its gather.
      {"plan_wait_missing", 'E',
       R"t(forward of "blocks.0.a.norm": its unshard is begun, and nothing waits for it)t"},
      {"plan_second_gather_of_recomputed", 'E',
       "is computed again, its backward would gather it once more"},
  };
  for (const Row& row : rows)
    check(row);
}

}  // namespace
}  // namespace hpsim::test
