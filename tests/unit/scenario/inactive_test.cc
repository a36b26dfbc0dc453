#include <fmt/format.h>

#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

using Numbers = std::vector<std::int64_t>;

constexpr const char* kResidual =
    R"({"name": "r", "type": "residual", "modules": [)"
    R"({"name": "l0", "type": "linear", "in_features": 8, "out_features": 6},)"
    R"({"name": "l1", "type": "linear", "in_features": 6, "out_features": 8}]},)"
    R"({"name": "l2", "type": "linear", "in_features": 8, "out_features": 3})";

/// A model on a mesh with entries of data.inactive, other members of data, of training and of the
/// scenario.
struct Text {
  std::string entries;
  std::string shape = "[4]";
  std::string names = R"(["fsdp"])";
  std::string model = kResidual;
  std::string data = R"(, "sample_shape": [8])";
  std::string training = R"("reduce_unused": true)";
  std::string members = "";

  operator std::string() const {  // NOLINT(google-explicit-constructor)
    return fmt::format(
        R"({{"hpsim": 1, "mesh": {{"shape": {}, "mesh_dim_names": {}}}, "model": [{}],)"
        R"("data": {{"inactive": [{}]{}}}, "training": {{{}}}{}}})",
        shape, names, model, entries, data, training, members);
  }
};

std::vector<InactiveSpec> inactive(const Text& text) {
  return parsed(std::string(text)).data.inactive;
}

/// `pointer: message` of the only mistake; empty if there is none.
std::string mistake(const Text& text) {
  try {
    static_cast<void>(parsed(std::string(text)));
    return "";
  } catch (const Error& error) {
    CHECK(error.diagnostics().size() == 1);
    return error.diagnostics()[0].pointer + ": " + error.diagnostics()[0].message;
  }
}

TEST_CASE("parts are left out on some ranks, in some passes") {
  const auto parts = inactive(
      {.entries = R"({"modules": ["r"], "ranks": [3, 1], "steps": [2, 0], "micro_batches": [1]})",
       .training = R"("reduce_unused": true, "steps": 3, "micro_batches": 2)"});
  REQUIRE(parts.size() == 1);
  CHECK(parts[0].first == 0);
  CHECK(parts[0].end == 3);
  CHECK(parts[0].data_ranks == Numbers{1, 3});
  CHECK(parts[0].steps == Numbers{0, 2});
  CHECK(parts[0].micro_batches == Numbers{1});
}

TEST_CASE("ranks, steps and micro-batches are all unless they are listed") {
  const auto parts =
      inactive({.entries = R"({"modules": ["r", "*"]})",
                .model = std::string(kResidual).substr(
                    0, std::string_view(kResidual).find(R"(,{"name": "l2")")),
                .training = R"("reduce_unused": true, "steps": 2, "micro_batches": 3)"});
  REQUIRE(parts.size() == 1);
  CHECK(parts[0].data_ranks == Numbers{0, 1, 2, 3});
  CHECK(parts[0].steps == Numbers{0, 1});
  CHECK(parts[0].micro_batches == Numbers{0, 1, 2});
}

TEST_CASE("elementwise parameters leave the loss") {
  const Scenario scenario =
      parsed(minimal_with(R"("data": {"inactive": [{"params": ["w*"], "ranks": [2]}]},)"
                          R"("training": {"reduce_unused": true})"));
  REQUIRE(scenario.data.inactive.size() == 1);
  CHECK(scenario.data.inactive[0].first == 0);
  CHECK(scenario.data.inactive[0].end == 1);
  CHECK(scenario.data.inactive[0].data_ranks == Numbers{2});
}

TEST_CASE("ranks of the mesh become data ranks: all that see the same samples are listed") {
  const auto parts = inactive({.entries = R"({"modules": ["r"], "ranks": [3, 2]})",
                               .shape = "[2, 2]",
                               .names = R"(["fsdp", "tp"])"});
  CHECK(parts.at(0).data_ranks == Numbers{1});
  // By coordinate, not by number.
  const Scenario permuted = parsed(
      R"({"hpsim": 1, "mesh": {"shape": [2, 2], "mesh_dim_names": ["fsdp", "tp"],)"
      R"("ranks": [3, 0, 1, 2]}, "parameters": {"w": [4]}, "training": {"reduce_unused": true},)"
      R"("data": {"inactive": [{"params": ["w"], "ranks": [0, 3]}]}})");
  CHECK(permuted.data.inactive.at(0).data_ranks == Numbers{0});
  CHECK(mistake({.entries = R"({"modules": ["r"], "ranks": [2]})",
                 .shape = "[2, 2]",
                 .names = R"(["fsdp", "tp"])"}) ==
        "/data/inactive/0/ranks: rank 2 is listed, but not 3, which sees the same samples, those "
        "of data rank 1");
  CHECK(mistake({.entries = R"({"modules": ["r"], "ranks": [5, 7]})",
                 .shape = "[2, 16]",
                 .names = R"(["fsdp", "tp"])"}) ==
        "/data/inactive/0/ranks: ranks 5, 7 are listed, but not 0, 1, 2, 3, 4, 6, 8, 9 and 6 more, "
        "which see the same samples, those of data rank 0");
}

TEST_CASE("the dim that shard_size splits splits the samples as before") {
  const Scenario scenario =
      parsed(on_mesh("[8, 2]", R"(["dp", "tp"])",
                     R"("fully_shard": {"shard_size": 2}, "training": {"reduce_unused": true},)"
                     R"("data": {"inactive": [{"params": ["weight"], "ranks": [10, 11]}]})"));
  CHECK(scenario.num_data_ranks() == 8);
  CHECK(scenario.data.inactive.at(0).data_ranks == Numbers{5});
}

TEST_CASE("numbers outside their range, repeated or missing are refused where they stand") {
  CHECK(messages_of(std::string(
            Text{.entries = R"({"modules": ["r"], "ranks": [4, 1, 1], "steps": [1, 0, 0],)"
                            R"("micro_batches": [2]}, {"modules": [], "ranks": []},)"
                            R"({"modules": ["q"], "steps": []}, {"ranks": [0]},)"
                            R"({"params": ["r.l0.weight"], "modules": ["r"]})"})) ==
        "rank 4 is outside 0..3\n"
        "rank 1 is listed twice\n"
        "optimizer step 1 is outside 0..0\n"
        "optimizer step 0 is listed twice\n"
        "micro-batch 2 is outside 0..0\n"
        "\"modules\" is empty\n"
        "no rank is listed\n"
        "\"q\" matches no module\n"
        "no optimizer step is listed\n"
        "\"modules\" is missing\n"
        "a parameter of a model is left out with the module that it is of\n");
  CHECK(messages_of(minimal_with(R"("data": {"inactive": [{"modules": ["weight"]}]})")) ==
        "the scenario has \"parameters\", and no modules to leave out\n");
  // What follows from another mistake is not told.
  CHECK(mistake({.entries = R"({"modules": ["r"], "steps": [5]})", .training = R"("steps": 0)"}) ==
        "/training/steps: expected an integer of at least 1, found 0");
}

TEST_CASE("a part must be able to give what it takes") {
  CHECK(mistake({.entries = R"({"modules": ["r.l1"], "ranks": [0]})"}) ==
        "/data/inactive/0/modules/0: \"r.l1\" cannot be left out: it takes 6 features and gives 8");
  CHECK(mistake({.entries = R"({"modules": ["r.add"], "ranks": [0]})"}) ==
        "/data/inactive/0/modules/0: \"r.add\" is the sum of a residual, no part of its own");
  CHECK(mistake({.entries = R"({"modules": ["s"], "ranks": [0]})",
                 .model = R"({"name": "s", "type": "sequential", "modules": [{"name": "tok",)"
                          R"("type": "embedding", "num_embeddings": 9, "embedding_dim": 4}]})",
                 .data = R"(, "sample_shape": [5])"}) ==
        "/data/inactive/0/modules/0: \"s\" cannot be left out: \"s.tok\" takes tokens and gives "
        "features");
}

/// One linear of 8 features with the style, in a residual or not, on mesh (fsdp 2, tp 2).
Text cut_linear(std::string_view style, bool in_residual) {
  const std::string linear =
      R"({"name": "l", "type": "linear", "in_features": 8, "out_features": 8})";
  return {.entries = R"({"modules": ["b"], "ranks": [0, 1]})",
          .shape = "[2, 2]",
          .names = R"(["fsdp", "tp"])",
          .model = fmt::format(R"({{"name": "b", "type": "{}", "modules": [{}]}})",
                               in_residual ? "residual" : "sequential", linear),
          .members = fmt::format(R"(, "parallelize": {{"b.l": "{}"}})", style)};
}

TEST_CASE("what a part takes and gives is cut alike, but for residuals") {
  CHECK(mistake(cut_linear("replicate", false)).empty());
  CHECK(mistake(cut_linear("colwise", false)) ==
        "/data/inactive/0/modules/0: \"b\" cannot be left out: along tp it takes Replicate and "
        "gives Shard(1)");
  CHECK_FALSE(mistake(cut_linear("rowwise", false)).empty());
  CHECK(mistake(cut_linear("colwise", true)).empty());
  CHECK(mistake(cut_linear("rowwise", true)).empty());
}

TEST_CASE("what a part takes and gives has one dtype, but for residuals") {
  const auto casting = [](const char* type) {
    return Text{.entries = R"({"modules": ["b"], "ranks": [0]})",
                .model = fmt::format(
                    R"({{"name": "b", "type": "{}", "modules": [{{"name": "a", "type": "tanh"}},)"
                    R"({{"name": "l", "type": "linear", "in_features": 8, "out_features": 8}}]}})",
                    type),
                .members = R"(, "fully_shard": {"units": ["b.l", "b.a"], "mp_policy": {)"
                           R"("param_dtype": "bfloat16", "output_dtype": "float32"}})"};
  };
  // Takes the bfloat16 to which the root casts, and gives the same.
  CHECK(mistake(casting("sequential")).empty());
}

TEST_CASE("ranks that share samples, or exchange them for experts, leave a part out together") {
  const std::string moe = R"({"name": "moe", "type": "moe", "dim": 8, "hidden": 6, "experts": 4,)"
                          R"("top_k": 2}, {"name": "l", "type": "linear", "in_features": 8,)"
                          R"("out_features": 3})";
  Text experts = {.entries = R"({"modules": ["moe"], "ranks": [0]})",
                  .shape = "[2, 2]",
                  .names = R"(["fsdp", "ep"])",
                  .model = moe,
                  .data = R"(, "sample_shape": [5, 8])",
                  .members = R"(, "parallelize": {"moe": "expert"})"};
  CHECK(mistake(experts) ==
        "/data/inactive/0/ranks: rank 0 leaves out \"moe\", 1 does not, but along \"ep\" ranks "
        "exchange positions for the experts of \"moe.experts\"");
  experts.entries = R"({"modules": ["moe"], "ranks": [0, 1]})";
  CHECK(mistake(experts).empty());
  experts.members = "";
  experts.entries = R"({"modules": ["moe"], "ranks": [0]})";
  CHECK(mistake(experts).empty());

  Text shared = {.entries = R"({"modules": ["r"], "ranks": [2]})",
                 .shape = "[2, 2]",
                 .names = R"(["fsdp", "tp"])",
                 .data = R"(, "sample_shape": [8], "data_dims": ["fsdp", "tp"])",
                 .members = R"(, "parallelize": {"r.l0": "colwise", "r.l1": "rowwise"})"};
  CHECK(mistake(shared) ==
        "/data/inactive/0/ranks: rank 2 leaves out \"r\", 3 does not, but along \"tp\" ranks "
        "compute \"r.l0\" with the samples of all of them");
  shared.entries = R"({"modules": ["r"], "ranks": [3, 2]})";
  CHECK(mistake(shared).empty());
}

TEST_CASE("an elementwise parameter that ranks hold parts of is left out by all of them") {
  const auto cut = [](std::string_view ranks) {
    return on_mesh("[2, 2]", R"(["fsdp", "ep"])",
                   fmt::format(R"x("placements": {{"weight": {{"ep": "Shard(1)"}}}},)x"
                               R"("training": {{"reduce_unused": true}},)"
                               R"("data": {{"inactive": [{{"params": ["weight"], "ranks": {}}}]}})",
                               ranks));
  };
  CHECK(messages_of(cut("[0, 2]")) ==
        "rank 0 leaves out \"weight\", 1 does not, but along \"ep\" ranks compute \"weight\" with "
        "the samples of all of them\n");
  CHECK(parsed(cut("[2, 3]")).data.inactive.at(0).data_ranks == Numbers{2, 3});
}

TEST_CASE("parts that lie in one another are not left out in one pass") {
  const char* const both = R"({{"modules": ["r"], "ranks": [0, 1], "steps": [0]}},)"
                           R"({{"modules": ["s"], "ranks": {}, "steps": {}}})";
  const auto nested = [&](std::string_view ranks, std::string_view steps) {
    return Text{.entries = fmt::format(fmt::runtime(both), ranks, steps),
                .model = fmt::format(R"({{"name": "s", "type": "sequential", "modules": [{}]}})",
                                     std::string(kResidual).substr(
                                         0, std::string_view(kResidual).find(R"(,{"name": "l2")"))),
                .training = R"("reduce_unused": true, "steps": 2)"};
  };
  Text text = nested("[1, 2]", "[0, 1]");
  text.entries.replace(text.entries.find("\"r\""), 3, "\"s.r\"");
  CHECK(mistake(text) ==
        "/data/inactive/0/modules/0: \"s.r\" is left out, and so is \"s\" around it: on rank 1 in "
        "step 0, micro-batch 0, at /data/inactive/1/modules/0 too");
  for (const auto& [ranks, steps] : {std::pair("[2, 3]", "[0]"), std::pair("[0, 1]", "[1]")}) {
    Text apart = nested(ranks, steps);
    apart.entries.replace(apart.entries.find("\"r\""), 3, "\"s.r\"");
    CHECK(mistake(apart).empty());
  }
  CHECK(
      mistake({.entries = R"({"modules": ["r"], "ranks": [0]}, {"modules": ["r"], "ranks": [0]})"})
          .starts_with("/data/inactive/1/modules/0: \"r\" is left out twice: on rank 0"));
}

TEST_CASE("between two reductions all ranks use a parameter, or none does") {
  Text text = {.entries = R"({"modules": ["r"], "ranks": [2, 3], "steps": [1]})",
               .shape = "[2, 2]",
               .names = R"(["fsdp", "tp"])",
               .training = R"("steps": 2)"};
  CHECK(mistake(text) ==
        "/data/inactive/0/ranks: in step 1, \"r.l0.weight\" and 3 other parameters get no gradient "
        "on ranks 2, 3, but one on ranks 0, 1: the ranks would reduce buffers of different sizes, "
        "and hang");
  text.training = R"("steps": 2, "reduce_unused": true)";
  CHECK(mistake(text).empty());
  // Frozen parameters are not reduced.
  text.training = R"("steps": 2, "frozen": ["r.*.*"])";
  CHECK(mistake(text).empty());
  text.training = R"("steps": 2, "frozen": ["r.*.*"], "unfreeze_at": {"r.l0.bias": 1})";
  CHECK(mistake(text).starts_with("/data/inactive/0/ranks: in step 1, \"r.l0.bias\" gets no"));
  // All ranks leave it out.
  text.entries = R"({"modules": ["r"], "ranks": [0, 1], "steps": [1]},)"
                 R"({"modules": ["r"], "ranks": [2, 3], "steps": [1]})";
  text.training = R"("steps": 2)";
  CHECK(mistake(text).empty());
}

TEST_CASE("a pass in which a rank uses a parameter is enough, up to the next reduction") {
  Text text = {.entries = R"({"modules": ["r"], "ranks": [3], "micro_batches": [0, 2]})",
               .training = R"("micro_batches": 4, "requires_gradient_sync": [false, true, false,)"
                           R"(true])"};
  CHECK(mistake(text).empty());
  text.entries = R"({"modules": ["r"], "ranks": [3], "micro_batches": [1, 2]})";
  CHECK(mistake(text).empty());
  text.entries = R"({"modules": ["r"], "ranks": [3], "micro_batches": [2, 3]})";
  CHECK(mistake(text) ==
        "/data/inactive/0/ranks: in step 0, micro-batches 2 to 3, \"r.l0.weight\" and 3 other "
        "parameters get no gradient on rank 3, but one on ranks 0, 1, 2: the ranks would reduce "
        "buffers of different sizes, and hang");
  text.training = R"("micro_batches": 4)";
  text.entries = R"({"modules": ["r"], "ranks": [3], "micro_batches": [2]})";
  CHECK(mistake(text).starts_with("/data/inactive/0/ranks: in step 0, micro-batch 2, \"r.l0"));
  text.training = R"("micro_batches": 4, "requires_gradient_sync": "last")";
  CHECK(mistake(text).empty());
}

TEST_CASE("a weight is used while any of the modules that are tied to it is") {
  Text text = {.entries = R"({"modules": ["l1"], "ranks": [3]})",
               .model = R"({"name": "l0", "type": "linear", "in_features": 8, "out_features": 8},)"
                        R"({"name": "l1", "type": "linear", "in_features": 8, "out_features": 8,)"
                        R"("tied_to": "l0"})",
               .training = "",
               .members = R"(, "fully_shard": {"units": []})"};
  CHECK(mistake(text).empty());
  text.entries += R"(, {"modules": ["l0"], "ranks": [2, 3]})";
  CHECK(
      mistake(text).ends_with("no gradient on rank 3, but one on ranks 0, 1, 2: the ranks would "
                              "reduce buffers of different sizes, and hang"));
}

TEST_CASE("what is left out is limited: lists are kept, and looked at pass by pass") {
  CHECK(mistake({.entries = R"({"modules": ["r"]})", .training = R"("micro_batches": 900000)"}) ==
        "");
  CHECK(mistake({.entries = R"({"modules": ["r"]}, {"modules": ["r.*"]})",
                 .training = R"("micro_batches": 900000)"})
            .starts_with("/data/inactive/1: up to this entry 18000000 passes"));
}

}  // namespace
}  // namespace hpsim
