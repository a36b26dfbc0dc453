#include <fmt/format.h>

#include <string>

#include "scenario/module_layouts.h"
#include "scenario/parse.h"
#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

/// A scenario on this mesh that averages weights, with more members of fully_shard and of the file.
std::string averaging(const char* shape, const char* names, const char* fully_shard = "",
                      const char* members = "") {
  return on_mesh(
      shape, names,
      fmt::format(R"("fully_shard": {{"sync_object": "weight"{}}}{})", fully_shard, members));
}

/// How often the reader complains.
std::size_t num_mistakes(const std::string& text) {
  return diagnostics_of(text).size();
}

TEST_CASE("weights of whole copies may be averaged") {
  const Scenario ddp = parsed(averaging("[4]", R"(["ddp"])"));
  CHECK(ddp.fully_shard.sync_object == SyncObject::Weight);
  CHECK(averaged_dims(ddp).at(0) == MeshDims{0});
  const Scenario off =
      parsed(averaging("[2, 4]", R"(["rep", "fsdp"])", R"(, "enable_param_shard": false)"));
  CHECK(averaged_dims(off).at(0) == MeshDims{0, 1});
  // Whole for other reasons: groups of one, copies by name, too small to cut.
  CHECK(averaged_dims(parsed(averaging("[4, 1]", R"(["rep", "fsdp"])"))).at(0) == MeshDims{0, 1});
  CHECK(averaged_dims(parsed(averaging("[8]", R"(["dp"])", R"(, "shard_size": 1)"))).at(0) ==
        MeshDims{0, 1});
  CHECK(averaged_dims(parsed(averaging("[4]", R"(["fsdp"])", R"(, "replicate_params": ["*"])")))
            .at(0) == MeshDims{0});
  CHECK(
      averaged_dims(parsed(averaging("[4]", R"(["fsdp"])", R"(, "min_shard_bytes": 225)"))).at(0) ==
      MeshDims{0});
  // No data ranks, nothing to average: legal, and told by the plan.
  CHECK(averaged_dims(parsed(averaging("[4]", R"(["tp"])"))).at(0).empty());
  // 224 bytes are cut.
  CHECK(num_mistakes(averaging("[4]", R"(["fsdp"])", R"(, "min_shard_bytes": 224)")) == 1);
  CHECK(num_mistakes(averaging("[8]", R"(["dp"])", R"(, "shard_size": 2)")) == 1);
}

TEST_CASE("what averaging weights cannot mean is refused, whatever else is said") {
  const auto on_ddp = [](const char* fully_shard, const char* members = "") {
    return averaging("[4]", R"(["ddp"])", fully_shard, members);
  };
  CHECK(num_mistakes(on_ddp(R"(, "reduce_op": "sum")")) == 1);
  CHECK(num_mistakes(on_ddp(R"(, "gradient_divide_factor": 4)")) == 1);
  (void)parsed(on_ddp(R"(, "gradient_divide_factor": null, "reduce_op": "avg")"));
  (void)parsed(on_ddp(R"(, "gradient_scaling_factor": 3)"));
  CHECK(num_mistakes(on_ddp("", R"(, "training": {"optimizer": {"name": "adam"}})")) == 1);
  CHECK(num_mistakes(on_ddp(R"(, "ignored_params": ["*"])")) == 1);
  // An ignored gradient that is complete needs no reduction.
  (void)parsed(on_ddp(R"(, "ignored_params": ["*"])", R"(, "data": {"data_dims": []})"));
  CHECK(num_mistakes(averaging("[4, 2]", R"(["ddp", "tp"])", "",
                               R"(, "data": {"data_dims": ["ddp", "tp"]})")) == 1);
  CHECK(num_mistakes(averaging("[4, 2]", R"(["ddp", "ep"])")) == 1);
  (void)parsed(averaging("[4, 1]", R"(["ddp", "ep"])"));
  (void)parsed(averaging("[4, 2]", R"(["ddp", "ep"])", "",
                         R"x(, "placements": {"*": {"ep": "Shard(0)"}})x"));
}

TEST_CASE("averaging weights computes in one dtype, and clips nothing") {
  const auto on_ddp = [](const char* fully_shard, const char* members = "") {
    return averaging("[4]", R"(["ddp"])", fully_shard, members);
  };
  CHECK(num_mistakes(on_ddp("", R"(, "numerics": {"dtype": "bfloat16"})")) == 1);
  CHECK(num_mistakes(on_ddp("", R"(, "numerics": {"parameter_dtypes": {"*": "float64"}})")) == 1);
  CHECK(num_mistakes(on_ddp(R"(, "mp_policy": {"param_dtype": "bfloat16", "reduce_dtype":)"
                            R"("float32", "output_dtype": "float16"})")) == 2);
  CHECK(num_mistakes(on_ddp(R"(, "mp_policy": {"reduce_dtype": "bfloat16"})")) == 1);
  CHECK(num_mistakes(on_ddp("", R"(, "training": {"clip_grad_norm": {"max_norm": 1}})")) == 1);
  CHECK(num_mistakes(on_ddp("", R"(, "training": {"loss_normalization": "global_tokens"})")) == 1);
  // Of one dtype all the same.
  (void)parsed(on_ddp(R"(, "mp_policy": {"param_dtype": "float64", "output_dtype": "float64"})",
                      R"(, "numerics": {"dtype": "float64"})"));
  (void)parsed(
      on_ddp("", R"(, "training": {"micro_batches": 2, "requires_gradient_sync": "last"})"));
}

TEST_CASE("exact means are over a power of two of copies, whatever the number of data ranks") {
  const char* const exact = R"(, "numerics": {"mode": "exact"})";
  (void)parsed(averaging("[8]", R"(["ddp"])", "", exact));
  CHECK(num_mistakes(averaging("[6]", R"(["ddp"])", "", exact)) == 1);
  // Six data ranks, but only the two along tp hold copies.
  (void)parsed(averaging("[2, 3]", R"(["tp", "ep"])", "",
                         R"x(, "numerics": {"mode": "exact"}, "data": {"data_dims": ["tp", "ep"]},
           "placements": {"*": {"ep": "Shard(0)"}})x"));
}

TEST_CASE("mistakes that follow from another mistake are not told") {
  CHECK(num_mistakes(averaging("[2, 4]", R"(["rep", "fsdp"])", R"(, "units": ["nothing"])")) == 1);
}

}  // namespace
}  // namespace hpsim
