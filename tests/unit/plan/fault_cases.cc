#include "fault_cases.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/build_plan.h"
#include "scenario/parse.h"
#include "support/catch.h"

namespace hpsim::test {
namespace {

std::string scenario(const std::string& shape, const std::string& names, const std::string& rest) {
  return fmt::format(R"({{"hpsim": 1, "mesh": {{"shape": [{}], "mesh_dim_names": [{}]}}, {}}})",
                     shape, names, rest);
}

std::string uneven_rows(int ranks, int rows) {
  return scenario(
      fmt::format("{}", ranks), R"("fsdp")",
      fmt::format(R"("parameters": {{"a": [{}, 8], "b": [2, 3], "c": [{}, 2]}})", rows, 2 * ranks));
}

std::string hsdp(const std::string& mesh, const std::string& model, const std::string& training) {
  return scenario(mesh, R"("rep", "fsdp")",
                  fmt::format(R"({}, "training": {{"micro_batches": 3, {}}})", model, training));
}

std::string two_linears(int out) {
  return fmt::format(R"("model": [
      {{"name": "up", "type": "linear", "in_features": 4, "out_features": {}}},
      {{"name": "down", "type": "linear", "in_features": {}, "out_features": {}, "bias": false}}])",
                     out, out, out);
}

/// A collective per parameter, in mixed precision, and one more for the norm.
std::string unfused(const std::string& mesh, int out) {
  return scenario(mesh, R"("rep", "fsdp")", two_linears(out) + R"(,
    "fully_shard": {"comm_fusion": "none",
                    "mp_policy": {"param_dtype": "bfloat16", "reduce_dtype": "float32"}},
    "training": {"clip_grad_norm": {"max_norm": 1}})");
}

std::string strided_rows(const std::string& mesh, int rows) {
  return scenario(mesh, R"("fsdp", "tp")",
                  fmt::format(R"json("parameters": {{"w": [{}, 3]}},
                                     "placements": {{"w": {{"tp": "Shard(0)"}}}})json",
                              rows));
}

struct Sizes {
  std::string mesh;
  int dim = 0;
  int odd = 0;  ///< uneven over tp and fsdp
  int heads = 0;
  int positions = 16;
};

std::string transformer(const Sizes& sizes) {
  return scenario(sizes.mesh, R"("rep", "fsdp", "tp")",
                  fmt::format(R"("model": [
      {{"name": "tok", "type": "embedding", "num_embeddings": {odd}, "embedding_dim": {dim}}},
      {{"name": "blocks", "type": "repeat", "count": 2, "module": {{"type": "sequential", "modules": [
        {{"name": "a", "type": "residual", "modules": [
          {{"name": "norm", "type": "rms_norm", "dim": {dim}}},
          {{"name": "attn", "type": "attention", "dim": {dim}, "heads": {heads}}}]}},
        {{"name": "m", "type": "residual", "modules": [
          {{"name": "norm", "type": "rms_norm", "dim": {dim}}},
          {{"name": "mlp", "type": "mlp", "dim": {dim}, "hidden": {odd}}}]}}]}}}},
      {{"name": "norm", "type": "layer_norm", "dim": {dim}}},
      {{"name": "out", "type": "linear", "in_features": {dim}, "out_features": {odd}, "bias": false}}],
    "data": {{"sample_shape": [16]}},
    "parallelize": {{"tok": "rowwise_sp", "**.norm": "sequence_parallel", "norm": "sequence_parallel",
      "**.attn": "rowwise_sp", "**.mlp": "rowwise_sp", "out": "colwise"}},
    "fully_shard": {{"forward_prefetch": 1, "backward_prefetch": 1}},
    "training": {{"loss": "cross_entropy", "activation_checkpointing": ["blocks.*"]}})",
                              fmt::arg("dim", sizes.dim), fmt::arg("odd", sizes.odd),
                              fmt::arg("heads", sizes.heads)));
}

std::string experts(const Sizes& sizes, int num_experts) {
  return scenario(sizes.mesh, R"("fsdp", "ep", "tp")",
                  fmt::format(R"("model": [
      {{"name": "tok", "type": "embedding", "num_embeddings": {odd}, "embedding_dim": {dim}}},
      {{"name": "a", "type": "residual", "modules": [
        {{"name": "norm", "type": "rms_norm", "dim": {dim}}},
        {{"name": "attn", "type": "attention", "dim": {dim}, "heads": {heads}}}]}},
      {{"name": "m", "type": "residual", "modules": [
        {{"name": "norm", "type": "rms_norm", "dim": {dim}}},
        {{"name": "moe", "type": "moe", "dim": {dim}, "hidden": 12, "experts": {experts}, "top_k": 2}}]}},
      {{"name": "out", "type": "linear", "in_features": {dim}, "out_features": {odd}, "bias": false}}],
    "data": {{"sample_shape": [{positions}]}},
    "parallelize": {{"tok": "rowwise_sp", "*.norm": "sequence_parallel", "*.attn": "rowwise_sp",
      "*.moe": "expert", "out": "colwise"}},
    "fully_shard": {{"units": ["tok", "a", "m.moe.experts", "m", "out"]}},
    "training": {{"loss": "cross_entropy"}})",
                              fmt::arg("dim", sizes.dim), fmt::arg("odd", sizes.odd),
                              fmt::arg("heads", sizes.heads), fmt::arg("experts", num_experts),
                              fmt::arg("positions", sizes.positions)));
}

std::string averaged(const std::string& mesh) {
  return scenario(mesh, R"("rep", "fsdp")",
                  R"("parameters": {"weight": [7, 8], "bias": [7]}, "data": {"data_dims": ["fsdp"]},
                     "fully_shard": {"enable_param_shard": false, "sync_object": "weight"})");
}

}  // namespace

const std::vector<FaultCase>& fault_cases() {
  // 255 rows over 128 ranks are 127 times 2 and one; 2040 over tp 8 are 255, 1920 over tp 128 are
  // 15, which fsdp 8 cuts into 7 times 2 and one: uneven as those of few ranks are.
  static const std::vector<FaultCase> cases = {
      {'A', "uneven rows and an empty shard", uneven_rows(4, 5), uneven_rows(131072, 131073)},
      {'B', "HSDP, synced last",
       hsdp("2, 2", two_linears(7), R"("requires_gradient_sync": "last")"),
       hsdp("1024, 128", two_linears(255), R"("requires_gradient_sync": "last")")},
      {'C', "HSDP, all-reduced last",
       hsdp("2, 2", R"("parameters": {"w": [32, 64]})", R"("requires_all_reduce": "last")"),
       hsdp("1024, 128", R"("parameters": {"w": [256, 64]})", R"("requires_all_reduce": "last")")},
      {'D', "rows cut by TP, then by FSDP", strided_rows("2, 2", 10),
       strided_rows("16384, 8", 8 * 32767)},
      {'E', "SP transformer", transformer({"2, 2, 2", 12, 11, 2}),
       transformer({"128, 128, 8", 2048, 2040, 8})},
      {'F', "experts", experts({"2, 2, 2", 8, 11, 4}, 4),
       experts({"8, 128, 128", 2048, 1920, 128, 128}, 1024)},
      {'G', "averaged weights", averaged("2, 3"), averaged("1024, 128")},
      {'H', "a collective per parameter", unfused("2, 2", 7), unfused("1024, 128", 255)},
  };
  return cases;
}

const std::string& case_json(char letter) {
  const auto& cases = fault_cases();
  const auto found = std::find_if(cases.begin(), cases.end(),
                                  [&](const FaultCase& each) { return each.letter == letter; });
  REQUIRE(found != cases.end());
  return found->few;
}

Plan plan_of(const std::string& json) {
  return build_plan(parse_scenario(json, "case.json"));
}

}  // namespace hpsim::test
