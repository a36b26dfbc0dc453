#include <fmt/format.h>

#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

/// A transformer of one block on fsdp 2 x tp 2, with this `parallelize`, and other members.
std::string transformer(std::string_view styles, std::string_view members = "") {
  return fmt::format(
      R"({{"hpsim": 1, "mesh": {{"shape": [2, 2], "mesh_dim_names": ["fsdp", "tp"]}}, "model": [
        {{"name": "tok", "type": "embedding", "num_embeddings": 11, "embedding_dim": 8}},
        {{"name": "blocks", "type": "repeat", "count": 1, "module": {{"type": "sequential", "modules": [
          {{"name": "r1", "type": "residual", "modules": [
            {{"name": "norm", "type": "layer_norm", "dim": 8}},
            {{"name": "attn", "type": "attention", "dim": 8, "heads": 4, "kv_heads": 2}}]}},
          {{"name": "mlp", "type": "mlp", "dim": 8, "hidden": 12}}]}}}},
        {{"name": "out", "type": "linear", "in_features": 8, "out_features": 11}}],
        "parallelize": {}, {}}})",
      styles, members.empty() ? std::string_view(R"("data": {"sample_shape": [5]})") : members);
}

/// What is not whole along tp, and styles other than replicate: `out.weight Shard(0)`,
/// `out colwise`.
std::string cuts_of(std::string_view text) {
  const Scenario scenario = parsed(text);
  std::string lines;
  for (std::size_t m = 0; m < scenario.styles.size(); ++m) {
    if (scenario.styles[m] == ParallelStyle::Replicate) continue;
    lines += fmt::format("{} {}\n", scenario.model.modules[m].name, name_of(scenario.styles[m]));
  }
  for (std::size_t p = 0; p < scenario.parameters.size(); ++p) {
    const std::vector<Placement>& placements = scenario.placements[p];
    CHECK(placements[0] == Placement{Replicate{}});
    if (placements[1] == Placement{Replicate{}}) continue;
    lines += fmt::format("{} {}\n", scenario.parameters[p].name, to_string(placements[1]));
  }
  return lines;
}

TEST_CASE("without parallelize nothing is cut") {
  CHECK(cuts_of(transformer("{}")).empty());
  CHECK(cuts_of(transformer(R"({"**": "replicate"})")).empty());
}

TEST_CASE("styles of linears and embeddings cut their weights") {
  CHECK(cuts_of(transformer(R"({"out": "colwise"})")) ==
        "out colwise\nout.weight Shard(0)\nout.bias Shard(0)\n");
  CHECK(cuts_of(transformer(R"({"out": "rowwise"})")) == "out rowwise\nout.weight Shard(1)\n");
  CHECK(cuts_of(transformer(R"({"out": "rowwise_sp"})")) ==
        "out rowwise_sp\nout.weight Shard(1)\n");
  CHECK(cuts_of(transformer(R"({"tok": "colwise"})")) == "tok colwise\ntok.weight Shard(1)\n");
  CHECK(cuts_of(transformer(R"({"tok": "rowwise"})")) == "tok rowwise\ntok.weight Shard(0)\n");
  CHECK(cuts_of(transformer(R"({"tok": "rowwise_sp"})")) ==
        "tok rowwise_sp\ntok.weight Shard(0)\n");
}

/// The placements of a.weight and a.bias of a linear on tp 2 x ep 2 whose weight and bias are
/// these.
std::string spelt(std::string_view weight, std::string_view bias) {
  const Scenario scenario = parsed(fmt::format(
      R"({{"hpsim": 1, "mesh": {{"shape": [2, 2], "mesh_dim_names": ["tp", "ep"]}}, "model": [
        {{"name": "a", "type": "linear", "in_features": 8, "out_features": 8, "bias": true}}],
        "placements": {{"a.weight": {{{}}}, "a.bias": {{{}}}}}}})",
      weight, bias));
  return fmt::format("{} {}", to_string(scenario.placements.at(0)),
                     to_string(scenario.placements.at(1)));
}

TEST_CASE("the same cuts of a weight and its bias are one, however they are spelt") {
  // Rank (t, e) holds rows [4t + 2e, 4t + 2e + 2) in each spelling: tp cuts first.
  constexpr std::string_view kPlain = R"x("tp": "Shard(0)", "ep": "Shard(0)")x";
  constexpr std::string_view kSpeltOut = R"x("tp": "Shard(0)", "ep": "StridedShard(0, 2)")x";
  const std::string same = spelt(kPlain, kPlain);
  CHECK(spelt(kSpeltOut, kPlain) == same);
  CHECK(spelt(kPlain, kSpeltOut) == same);
  CHECK(spelt(kSpeltOut, kSpeltOut) == same);
  // Here ep cuts first, and rank (t, e) holds rows [4e + 2t, 4e + 2t + 2).
  constexpr std::string_view kEpFirst = R"x("tp": "StridedShard(0, 2)", "ep": "Shard(0)")x";
  CHECK(spelt(kEpFirst, kEpFirst) != same);
  CHECK_THROWS(spelt(kEpFirst, kPlain));
}

TEST_CASE("a norm under sequence_parallel stays whole") {
  CHECK(cuts_of(transformer(R"({"**.norm": "sequence_parallel"})")) ==
        "blocks.0.r1.norm sequence_parallel\n");
}

TEST_CASE("a style of a whole attention or mlp is one of each of its linears") {
  CHECK(cuts_of(transformer(R"({"**.attn": "colwise"})")) ==
        "blocks.0.r1.attn.wq colwise\n"
        "blocks.0.r1.attn.wk colwise\n"
        "blocks.0.r1.attn.wv colwise\n"
        "blocks.0.r1.attn.wo rowwise\n"
        "blocks.0.r1.attn.wq.weight Shard(0)\n"
        "blocks.0.r1.attn.wk.weight Shard(0)\n"
        "blocks.0.r1.attn.wv.weight Shard(0)\n"
        "blocks.0.r1.attn.wo.weight Shard(1)\n");
  CHECK(cuts_of(transformer(R"({"blocks.*.mlp": "rowwise_sp"})")) ==
        "blocks.0.mlp.w1 colwise\n"
        "blocks.0.mlp.w3 colwise\n"
        "blocks.0.mlp.w2 rowwise_sp\n"
        "blocks.0.mlp.w1.weight Shard(0)\n"
        "blocks.0.mlp.w3.weight Shard(0)\n"
        "blocks.0.mlp.w2.weight Shard(1)\n");
}

TEST_CASE("what is said of a part overrides what is said of the whole, in any order") {
  const std::string expected =
      "blocks.0.mlp.w1 colwise\n"
      "blocks.0.mlp.w2 rowwise_sp\n"
      "blocks.0.mlp.w1.weight Shard(0)\n"
      "blocks.0.mlp.w2.weight Shard(1)\n";
  CHECK(cuts_of(transformer(
            R"({"blocks.0.mlp": "colwise", "**.w2": "rowwise_sp", "**.w3": "replicate"})")) ==
        expected);
  CHECK(cuts_of(transformer(
            R"({"**.w3": "replicate", "**.w2": "rowwise_sp", "blocks.0.mlp": "colwise"})")) ==
        expected);
}

TEST_CASE("a pattern passes by what takes no style, if it matches something that does") {
  CHECK(cuts_of(transformer(R"({"blocks.*.mlp.*": "colwise"})")) ==
        "blocks.0.mlp.w1 colwise\n"
        "blocks.0.mlp.w3 colwise\n"
        "blocks.0.mlp.w2 colwise\n"
        "blocks.0.mlp.w1.weight Shard(0)\n"
        "blocks.0.mlp.w3.weight Shard(0)\n"
        "blocks.0.mlp.w2.weight Shard(0)\n");
  CHECK(messages_of(transformer(R"({"blocks.*": "colwise"})")) ==
        "\"blocks.0\" takes no style: sequential keeps the layout of its input\n");
  CHECK(messages_of(transformer(R"({"blocks.**": "colwise"})")) ==
        "layer_norm \"blocks.0.r1.norm\" takes sequence_parallel or replicate, not colwise\n");
}

TEST_CASE("placements override the styles of modules of any kind") {
  const char* const members =
      R"x("data": {"sample_shape": [5]}, "placements": {"tok.weight": {"tp": "Shard(0)"},)x"
      R"x("**.w1.weight": {"tp": "Replicate"}})x";
  CHECK(cuts_of(transformer(R"({"tok": "colwise", "blocks.*.mlp": "colwise"})", members)) ==
        "tok colwise\n"
        "blocks.0.mlp.w1 colwise\n"
        "blocks.0.mlp.w3 colwise\n"
        "blocks.0.mlp.w2 rowwise\n"
        "tok.weight Shard(0)\n"
        "blocks.0.mlp.w3.weight Shard(0)\n"
        "blocks.0.mlp.w2.weight Shard(1)\n");
}

/// Attention of 6 heads and 3 kv_heads, sequences of `sequence`, on `tp` ranks.
std::string attention_over(int tp, int sequence, std::string_view style) {
  return fmt::format(
      R"({{"hpsim": 1, "mesh": {{"shape": [{}], "mesh_dim_names": ["tp"]}}, "model": [)"
      R"({{"name": "a", "type": "attention", "dim": 12, "heads": 6, "kv_heads": 3}}],)"
      R"("data": {{"sample_shape": [{}, 12]}}, "parallelize": {{"a": "{}"}}}})",
      tp, sequence, style);
}

TEST_CASE("heads, and those of keys and values, divide over the ranks") {
  CHECK_NOTHROW(parsed(attention_over(1, 5, "colwise")));
  CHECK_NOTHROW(parsed(attention_over(3, 5, "colwise")));
  CHECK(messages_of(attention_over(2, 5, "colwise")) ==
        "the 3 kv_heads of \"a\" do not divide over 2 ranks along \"tp\": 1 remain\n");
  CHECK(messages_of(attention_over(4, 5, "colwise")) ==
        "the 6 heads of \"a\" do not divide over 4 ranks along \"tp\": 2 remain\n");
  CHECK(messages_of(attention_over(6, 8, "rowwise_sp")) ==
        "the 3 kv_heads of \"a\" do not divide over 6 ranks along \"tp\": 3 remain\n");
  CHECK_NOTHROW(parsed(attention_over(4, 5, "replicate")));
}

TEST_CASE("a sequence that a style cuts is as long as there are ranks") {
  CHECK_NOTHROW(parsed(attention_over(3, 3, "rowwise_sp")));
  CHECK_NOTHROW(parsed(attention_over(3, 2, "colwise")));
  CHECK(messages_of(attention_over(3, 2, "rowwise_sp")) ==
        "rowwise_sp cuts the sequence over 3 ranks along \"tp\", but it has 2 positions\n");
}

TEST_CASE("what a wrong sample_shape says of the sequence is not judged") {
  CHECK(messages_of(transformer(R"({"out": "rowwise_sp"})", R"("data": {"sample_shape": []})")) ==
        "samples have no dims\n");
  CHECK(messages_of(transformer(R"({"out": "rowwise_sp"})", R"("data": {})")) ==
        "data.sample_shape is missing: the first module, \"tok\", is no linear\n");
}

std::string tied(std::string_view styles, std::string_view placements = "{}") {
  return fmt::format(
      R"({{"hpsim": 1, "mesh": {{"shape": [2], "mesh_dim_names": ["tp"]}}, "model": [)"
      R"({{"name": "tok", "type": "embedding", "num_embeddings": 11, "embedding_dim": 8}},)"
      R"({{"name": "out", "type": "linear", "in_features": 8, "out_features": 11,)"
      R"("tied_to": "tok.weight"}}], "data": {{"sample_shape": [5]}},)"
      R"("fully_shard": {{"units": []}}, "parallelize": {}, "placements": {}}})",
      styles, placements);
}

TEST_CASE("modules that share a weight cut it alike") {
  const Scenario vocabulary = parsed(tied(R"({"tok": "rowwise", "out": "colwise"})"));
  CHECK(vocabulary.placements[0][0] == Placement{Shard{0}});
  CHECK(vocabulary.placements[1][0] == Placement{Shard{0}});  // out.bias
  const Scenario features = parsed(tied(R"({"tok": "colwise", "out": "rowwise_sp"})"));
  CHECK(features.placements[0][0] == Placement{Shard{1}});
  CHECK(features.placements[1][0] == Placement{Replicate{}});
  CHECK(messages_of(tied(R"({"tok": "rowwise"})")) ==
        "\"tok\" and \"out\" share \"tok.weight\": for the first rowwise cuts dim 0 of it, for the "
        "second replicate leaves it whole\n");
  CHECK(messages_of(tied(R"({"out": "colwise"})")) ==
        "\"tok\" and \"out\" share \"tok.weight\": for the first replicate leaves it whole, for "
        "the second colwise cuts dim 0 of it\n");
  CHECK_NOTHROW(parsed(
      tied("{}", R"x({"tok.weight": {"tp": "Shard(0)"}, "out.bias": {"tp": "Shard(0)"}})x")));
  CHECK(messages_of(tied("{}", R"x({"tok.weight": {"tp": "Shard(0)"}})x")) ==
        "\"tok.weight\" is Shard(0) along tp, but \"out.bias\" is Replicate\n");
}

/// Placements of w1 and w2 of a mixture of 4 experts in a group g on tp 2 x ep 2.
std::string experts_cut(std::string_view members) {
  const Scenario scenario = parsed(fmt::format(
      R"({{"hpsim": 1, "mesh": {{"shape": [2, 2], "mesh_dim_names": ["tp", "ep"]}}, "model": [
        {{"name": "g", "type": "sequential", "modules": [
          {{"name": "moe", "type": "moe", "dim": 8, "hidden": 6, "experts": 4, "top_k": 2}}]}}],
        "data": {{"sample_shape": [8]}}, {}}})",
      members));
  CHECK(scenario.placements.at(1) == scenario.placements.at(3));
  return fmt::format("{} {} {}", to_string(scenario.placements.at(0)),
                     to_string(scenario.placements.at(1)), to_string(scenario.placements.at(2)));
}

TEST_CASE("the style expert cuts experts along ep_dim, and leaves the router whole") {
  const char* const kWhole = "[Replicate, Replicate]";
  const std::string cut = fmt::format("{} [Replicate, Shard(0)] [Replicate, Shard(0)]", kWhole);
  CHECK(experts_cut(R"("parallelize": {})") == fmt::format("{0} {0} {0}", kWhole));
  CHECK(experts_cut(R"("parallelize": {"g.moe": "expert"})") == cut);
  CHECK(experts_cut(R"("parallelize": {"g.moe.experts": "expert"})") == cut);
  CHECK(experts_cut(R"("parallelize": {"g.moe": "expert", "g.moe.experts": "replicate"})") ==
        fmt::format("{0} {0} {0}", kWhole));
  CHECK(experts_cut(R"("parallelize": {"g.moe": "expert", "g.moe.router": "colwise"})") ==
        "[Shard(0), Replicate] [Replicate, Shard(0)] [Replicate, Shard(0)]");
  // Inside: hidden is dim 1 of w1 and w3, dim 2 of w2.
  CHECK(experts_cut(R"x("parallelize": {"g.moe": "expert"}, "placements": {
          "**.w1": {"tp": "Shard(1)"}, "**.w3": {"tp": "Shard(1)"}, "**.w2": {"tp": "Shard(2)"}})x") ==
        fmt::format("{} [Shard(1), Shard(0)] [Shard(2), Shard(0)]", kWhole));
  CHECK(experts_cut(R"x("placements": {"**.experts.*": {"tp": "Shard(0)", "ep": "Shard(0)"}})x") ==
        fmt::format("{} [Shard(0), Shard(0)] [Shard(0), Shard(0)]", kWhole));
}

TEST_CASE("replicate cuts nothing, and needs no mesh dim to cut along") {
  const auto placements = [](std::string_view styles) {
    return parsed(
               fmt::format(
                   R"({{"hpsim": 1, "mesh": {{"shape": [2, 2], "mesh_dim_names": ["fsdp", "ep"]}},
        "model": [{{"name": "up", "type": "linear", "in_features": 3, "out_features": 8}},
          {{"name": "moe", "type": "moe", "dim": 8, "hidden": 6, "experts": 4, "top_k": 2}}],
        "parallelize": {}}})",
                   styles))
        .placements;
  };
  CHECK(placements(R"({"moe": "replicate", "up": "replicate"})") == placements("{}"));
  CHECK(placements(R"({"moe.router": "replicate", "moe.experts": "expert"})") ==
        placements(R"({"moe": "expert"})"));
}

}  // namespace
}  // namespace hpsim
