#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/catch.h"
#include "support/program.h"
#include "support/scratch_directory.h"

namespace hpsim {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr std::size_t kWidth = 100;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// What the program prints; it must succeed and say nothing else.
std::string said(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), HPSIM_PROGRAM);
  const ProgramResult result = run_program(arguments);
  CAPTURE(arguments, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  return result.out;
}

/// Everything from the first empty line on: all but the header.
std::string body(const std::string& text) {
  const std::size_t at = text.find("\n\n");
  REQUIRE(at != std::string::npos);
  return text.substr(at + 2);
}

std::vector<std::string> shipped_scenarios() {
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator("scenarios")) {
    const fs::path& path = entry.path();
    if (path.extension() == ".json" && path.filename() != "scenario.schema.json" &&
        path.parent_path().filename() != "invalid") {
      files.push_back(path.string());
    }
  }
  return files;
}

/// Columns of the longest line: code points, as all characters used here are one column wide.
std::size_t longest_line(const std::string& text) {
  std::istringstream lines(text);
  std::size_t longest = 0;
  for (std::string line; std::getline(lines, line);) {
    std::size_t columns = 0;
    for (const char c : line)
      columns += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
    longest = std::max(longest, columns);
  }
  return longest;
}

// Made: the whole weight of 224 bytes and a slot of 64. Backward: the slot, 256 bytes gathered and
// as many of gradients, and two samples of 56 inputs and targets, 896.
TEST_CASE("the plan of seven rows over four ranks, whole") {
  CHECK(body(said({"plan", "scenarios/fsdp/a2_uneven_7x8_over_4.json"})) ==
        R"(  #  step            of      over    groups  elements  bytes        scale  why
  forward
  0  unshard         (root)  fsdp 4       1  16 -> 64  64 -> 256 B         1
  1  forward         weight                                                2
  2  reshard         (root)                                                3
  3  loss                                                                  4
  backward
  4  unshard         (root)  fsdp 4       1  16 -> 64  64 -> 256 B         1
  5  backward        weight                                                5
  6  reshard         (root)                                                3
  7  reduce_scatter  (root)  fsdp 4       1  64 -> 16  256 -> 64 B  1/4    6
  8  store_gradient  (root)                                                7
  optimizer
  9  optimizer                                                             8

  1   compute sees whole parameters: only the fully_shard dim is gathered (multi-dim RFC 2.1.2)
        [RaggedShard((0,), (2, 2, 2, 1))] -> [Replicate]
  2   the model applies its modules in order
  3   outside compute parameters are sharded (multi-dim RFC 2.1.2)
        [Replicate] -> [RaggedShard((0,), (2, 2, 2, 1))]
  4   every rank takes the loss of the samples that it holds
  5   gradients flow back through the modules in reverse
  6   shard_size > 1: reduce-scatter over the sharded group (multi-dim RFC 2.2.2)
        [Partial(sum)] -> [RaggedShard((0,), (2, 2, 2, 1))]
  7   true sizes are stored, padding is not (ragged RFC 6.4)
  8   the optimizer updates true shards only (ragged RFC 6.4)

Elements and bytes are per rank; scale multiplies what comes out, or what goes in; all collectives
carry float32.

Memory per rank: 288 B while parameters are made, at most 1.44 KiB in step 5, backward of "weight";
64 B are left at the end.

  ✓ coverage 7    ✓ sync-set 2    ✓ plan-agreement 42    ✓ placements 12

PASS  4 checks, 63 facts compared; nothing has run
)");
}

TEST_CASE("seven rows over four ranks, explained") {
  CHECK(body(said({"explain", "scenarios/fsdp/a2_uneven_7x8_over_4.json"})) ==
        R"(weight (7, 8) · 56 elements, 224 B · unit (root)
  fsdp 4    RaggedShard((0,), (2, 2, 2, 1)) -> Replicate: 7 % 4 != 0: ceil rule, chunks of 2 rows
            (ragged RFC 6.4)
  parts     fsdp 0..2: 2 rows each, [0, 6); fsdp 3: 1 row + 1 of padding, [6, 7)
  gradient  reduce_scatter over fsdp 4; k/F = 1/4

--param NAME draws a parameter and tells all about it
)");
}

TEST_CASE("two replicas of seven rows: rank 7, whole") {
  CHECK(body(said({"explain", "scenarios/hsdp/b4_uneven_7x8_on_2x4.json", "--param", "weight",
                   "--rank", "7"})) == R"(weight (7, 8) · 56 elements, 224 B · unit (root)

  rows cut over fsdp 4
    0 ┌────────────┐
      │ ranks 0, 4 │  fsdp 0: 2 rows
    2 ├────────────┤
      │ ranks 1, 5 │  fsdp 1: 2 rows
    4 ├────────────┤
      │ ranks 2, 6 │  fsdp 2: 2 rows
    6 ├────────────┤
      │ ranks 3, 7 │  fsdp 3: 1 row + 1 of padding
    7 └────────────┘

  placements: sharded -> in compute, and why
    rep 2   Replicate
            holds copies: role dp_replicate_dim (multi-dim RFC 2.1.1)
    fsdp 4  RaggedShard((0,), (2, 2, 2, 1)) -> Replicate
            7 % 4 != 0: ceil rule, chunks of 2 rows (ragged RFC 6.4)

  groups, and what is sent over them
    sharded    fsdp 4, 2 groups: all_gather (forward, backward), reduce_scatter (backward);
               shard_size 4 > 1: compute needs all shards, and gradients are scattered back to them
               (multi-dim RFC 2.1.2, 2.2.2)
    unsharded  rep 2, 4 groups: all_reduce (backward); dp_size 2 > 1: copies saw different samples
               (multi-dim RFC 2.2.2)
    partial    nothing; its gradient is Partial along no other dim

  gradient, as backward computes it
    rep 2   partial: the batch is split over it; all_reduce adds it up
    fsdp 4  partial: the batch is split over it; reduce_scatter adds it up
    k/F     1/8: F = 8, number of data ranks; 1/F is applied to the output of step 8, all_reduce

  through optimizer step 0 on rank 7 (whole: what compute sees; collectives carry padding)
     #  step            of     what it is                                      bytes
     0  unshard         param  shard -> whole                                  64 B -> 256 B
     1  forward         param  whole                                           224 B
     2  reshard         param  whole -> shard                                  256 B -> 64 B
     4  unshard         param  shard -> whole                                  64 B -> 256 B
     5  backward        grad   none -> whole Partial(rep, fsdp)                0 B -> 256 B
     6  reshard         param  whole -> shard                                  256 B -> 64 B
     7  reduce_scatter  grad   whole Partial(rep, fsdp) -> shard Partial(rep)  256 B -> 64 B
     8  all_reduce      grad   shard Partial(rep) -> shard                     64 B
     9  store_gradient  grad   shard                                           64 B -> 32 B
    10  optimizer       param  shard                                           32 B

  rank 7 at rep 1, fsdp 3
    holds      (6, 0) + (1, 8): 8 elements, 32 B, and 8 elements of padding
    slot       elements [0, 16) of the 16 in its row of the bucket
    copies     the same on ranks 3, 7
    sharded    all_gather, reduce_scatter among ranks 4..7
    unsharded  all_reduce among ranks 3, 7
)");
}

TEST_CASE("tensor and data parallelism cut the same rows unevenly: rank 7 holds none, whole") {
  const ScratchDirectory scratch;
  const std::string file = scratch.write("same_dim.json", R"json({
    "hpsim": 1, "mesh": {"shape": [4, 2], "mesh_dim_names": ["fsdp", "tp"]},
    "parameters": {"weight": {"shape": [7, 2], "placements": {"tp": "Shard(0)"}}}
  })json");
  CHECK(body(said({"explain", file, "--param", "weight", "--rank", "7"})) ==
        R"(weight (7, 2) · 14 elements, 56 B · unit (root)

  rows cut over tp 2, then fsdp 4
    0 ┌────────┐
      │ rank 0 │  tp 0, fsdp 0: 1 row
    1 ├────────┤
      │ rank 2 │  tp 0, fsdp 1: 1 row
    2 ├────────┤
      │ rank 4 │  tp 0, fsdp 2: 1 row
    3 ├────────┤
      │ rank 6 │  tp 0, fsdp 3: 1 row
    4 ├────────┤
      │ rank 1 │  tp 1, fsdp 0: 1 row
    5 ├────────┤
      │ rank 3 │  tp 1, fsdp 1: 1 row
    6 ├────────┤
      │ rank 5 │  tp 1, fsdp 2: 1 row
    7 └────────┘
    tp 1, fsdp 3: no row, a slot of 1 row

  placements: sharded -> in compute, and why
    fsdp 4  RaggedStridedShard((0,), ((1, 1, 1, 1), (1, 1, 1, 0)), 2) -> Replicate
            tp leaves 4 or 3 rows, 3 % 4 != 0: uneven on every rank, as their placements must agree;
            ceil rule (ragged RFC 6.4); split_factor 2 = tp 2, which cuts the same tensor dim first
            (ragged RFC 6.4)
    tp 2    Shard(0)
            as the scenario's placements say, role tp_dim (multi-dim RFC 2.1.1): 7 % 2 != 0, ceil
            rule, chunks of 4 rows (torch.chunk)

  groups, and what is sent over them
    sharded    fsdp 4, 2 groups: all_gather (forward, backward), reduce_scatter (backward);
               shard_size 4 > 1: compute needs all shards, and gradients are scattered back to them
               (multi-dim RFC 2.1.2, 2.2.2)
    unsharded  nothing; dp_size 1: no copies in the fully_shard domain (multi-dim RFC 2.2.5)
    partial    nothing; its gradient is Partial along no other dim

  gradient, as backward computes it
    fsdp 4  partial: the batch is split over it; reduce_scatter adds it up
    tp 2    cut: the rank's part of it
    k/F     1/4: F = 4, number of data ranks; 1/F is applied to the output of step 7, reduce_scatter

  through optimizer step 0 on rank 7 (whole: what compute sees; collectives carry padding)
    #  step            of     what it is                    bytes
    0  unshard         param  shard -> whole                8 B -> 32 B
    1  forward         param  whole                         24 B
    2  reshard         param  whole -> shard                32 B -> 8 B
    4  unshard         param  shard -> whole                8 B -> 32 B
    5  backward        grad   none -> whole Partial(fsdp)   0 B -> 32 B
    6  reshard         param  whole -> shard                32 B -> 8 B
    7  reduce_scatter  grad   whole Partial(fsdp) -> shard  32 B -> 8 B
    8  store_gradient  grad   shard                         8 B -> 0 B
    9  optimizer       param  shard                         0 B

  rank 7 at fsdp 3, tp 1
    holds      nothing, at (7, 0) + (0, 2), and 2 elements of padding
    slot       elements [0, 2) of the 2 in its row of the bucket
    copies     no other rank holds the same
    sharded    all_gather, reduce_scatter among ranks 1, 3, 5, 7
)");
}

/// The picture of "weight": the lines of the second section.
std::string picture(const std::string& scenario) {
  const ScratchDirectory scratch;
  const std::string text =
      said({"explain", scratch.write("drawn.json", scenario), "--param", "weight"});
  const std::string sections = body(body(text));
  return sections.substr(0, sections.find("\n\n") + 1);
}

TEST_CASE("pictures of other cuts") {
  CHECK(picture(R"json({
    "hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
    "parameters": {"weight": [32, 64]}, "fully_shard": {"shard_placement": {"weight": 1}}
  })json") == R"(  columns cut over fsdp 4
      fsdp 0   fsdp 1   fsdp 2   fsdp 3
    0        16       32       48       64
    ┌────────┬────────┬────────┬────────┐
    │ rank 0 │ rank 1 │ rank 2 │ rank 3 │
    └────────┴────────┴────────┴────────┘
)");
  CHECK(picture(R"json({
    "hpsim": 1, "mesh": {"shape": [2, 2, 2], "mesh_dim_names": ["rep", "fsdp", "tp"]},
    "parameters": {"weight": {"shape": [5, 8], "placements": {"tp": "Shard(1)"}}}
  })json") == R"(  rows cut over fsdp 2; columns cut over tp 2
        tp 0         tp 1
      0            4            8
    0 ┌────────────┬────────────┐
      │ ranks 0, 4 │ ranks 1, 5 │  fsdp 0: 3 rows
    3 ├────────────┼────────────┤
      │ ranks 2, 6 │ ranks 3, 7 │  fsdp 1: 2 rows + 1 of padding
    5 └────────────┴────────────┘
)");
  CHECK(picture(R"json({
    "hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]}, "parameters": {"weight": [2, 64]},
    "fully_shard": {"shard_placement": {"weight": {"dims": [0, 1], "local_units": [21, 21, 22, 0]}}}
  })json") == R"(  cells of dims 0, 1 cut in runs over fsdp 4
      0        20     42       64
    0 ┌───────────────┬────────┐
      │ rank 0        │ rank 1 │
    1 ├────────┬──────┴────────┤
      │ rank 1 │ rank 2        │
    2 └────────┴───────────────┘
    fsdp 0  42 elements + 2 of padding: (0, 0) + (1, 42)
    fsdp 1  42 elements + 2 of padding: (0, 42) + (1, 22), (1, 0) + (1, 20)
    fsdp 2  44 elements: (1, 20) + (1, 44)
    fsdp 3  0 elements + 44 of padding
)");
  // Position in the mesh decides, not the number of the rank.
  CHECK(picture(R"json({
    "hpsim": 1, "mesh": {"shape": [3], "mesh_dim_names": ["fsdp"], "ranks": [2, 0, 1]},
    "parameters": {"weight": [4]}
  })json") == R"(  elements cut over fsdp 3
    0 ┌────────┐
      │ rank 2 │  fsdp 0: 2 elements
    2 ├────────┤
      │ rank 0 │  fsdp 1: 2 elements
    4 └────────┘
    fsdp 2: no element, a slot of 2 elements
)");
  CHECK(picture(R"json({
    "hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]}, "parameters": {"weight": [4, 4]},
    "fully_shard": {"enable_param_shard": false}
  })json") == "  whole on ranks 0..3\n");
}

TEST_CASE("every shipped scenario has a plan and an explanation that fit the screen") {
  const std::vector<std::string> files = shipped_scenarios();
  REQUIRE(files.size() > 20);
  for (const std::string& file : files) {
    CAPTURE(file);
    CHECK(longest_line(said({"plan", file})) <= kWidth);
    CHECK(longest_line(said({"plan", file, "--full"})) <= kWidth);
    CHECK(longest_line(said({"explain", file})) <= kWidth);
    CHECK(longest_line(said({"explain", file, "--param", "**", "--rank", "0"})) <= kWidth);
  }
}

TEST_CASE("JSON of every shipped scenario agrees with the report of its run") {
  for (const std::string& file : shipped_scenarios()) {
    CAPTURE(file);
    const Json report =
        Json::parse(said({"run", file, "--backend", "symbolic", "--format", "json"}));
    const Json plan = Json::parse(said({"plan", file, "--full", "--format", "json"}));
    CHECK(plan.at("plan") == 1);
    CHECK(plan.at("verdict") == "pass");
    CHECK(plan.at("scenario") == report.at("scenario"));
    Json collectives = Json::array();
    for (const Json& step : plan.at("steps")) {
      CHECK_FALSE(step.at("why").at("rule").get<std::string>().empty());
      if (!step.at("collective").is_null()) collectives.push_back(step.at("collective"));
    }
    CHECK(collectives == report.at("collectives"));

    const Json explained = Json::parse(said({"explain", file, "--format", "json"}));
    CHECK(explained.at("explain") == 1);
    REQUIRE(explained.at("parameters").size() == report.at("parameters").size());
    for (std::size_t p = 0; p < report.at("parameters").size(); ++p) {
      const Json& got = explained.at("parameters").at(p);
      for (const auto& [key, value] : report.at("parameters").at(p).items())
        CHECK(got.at(key) == value);
      CHECK(got.at("dims").size() == got.at("placements").at("sharded").size());
      CHECK(got.at("groups").size() == 3);
      CHECK_FALSE(got.at("life").empty());
    }
  }
}

TEST_CASE("several scenarios: one after the other, or an array") {
  const std::string text = said({"plan", "scenarios/hsdp"});
  CHECK(has(text, "\n\nb4_uneven_7x8_on_2x4 · "));
  const Json array = Json::parse(said({"plan", "scenarios/hsdp", "--format", "json"}));
  REQUIRE(array.is_array());
  CHECK(array.size() > 5);
}

TEST_CASE("131,072 and a billion ranks take no list of ranks") {
  const ScratchDirectory scratch;
  for (const char* shape : {"[256, 64, 8]", "[1000, 1000, 1000]"}) {
    const std::string file =
        scratch.write("large.json", std::string(R"json({
      "hpsim": 1, "mesh": {"shape": )json") +
                                        shape + R"json(, "mesh_dim_names": ["rep", "fsdp", "tp"]},
      "parameters": {"up": {"shape": [70001, 16], "placements": {"tp": "Shard(0)"}}, "bias": [7]}
    })json");
    CAPTURE(shape);
    for (const char* command : {"plan", "explain"}) {
      CHECK(said({command, file}).size() < 6000);
      const std::string json = said({command, file, "--format", "json"});
      CHECK(json.size() < 500000);  // a list of 131,072 ranks takes more
      CHECK(Json::parse(json).at("world_size") > 131000);
    }
    const std::string detail = said({"explain", file, "--param", "up", "--rank", "131071"});
    CHECK(longest_line(detail) <= kWidth);
    CHECK(has(detail, "rank 131071 at "));
  }
  // tp cuts 70001 rows into 8 of 8751 (the last of 8744); fsdp cuts these into chunks of 137.
  const std::string file = scratch.write("large.json", R"json({
    "hpsim": 1, "mesh": {"shape": [256, 64, 8], "mesh_dim_names": ["rep", "fsdp", "tp"]},
    "parameters": {"up": {"shape": [70001, 16], "placements": {"tp": "Shard(0)"}}}
  })json");
  const std::string detail = said({"explain", file, "--param", "up"});
  CHECK(has(detail, "tp 0..6, fsdp 0..62: 137 rows each, from 8751 tp + 137 fsdp on\n"));
  CHECK(has(detail, "tp 0..6, fsdp 63: 120 rows + 17 of padding each, from 8751 tp + 8631 on\n"));
  CHECK(has(detail, "tp 7, fsdp 0..62: 137 rows each, [61257, 69888)\n"));
  CHECK(has(detail, "tp 7, fsdp 63: 113 rows + 24 of padding, [69888, 70001)\n"));
}

/// Exit code and the message of a command that must fail.
void check_refused(const std::vector<std::string>& arguments, int exit_code,
                   const std::string& message) {
  std::vector<std::string> command = {HPSIM_PROGRAM};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const ProgramResult result = run_program(command);
  CAPTURE(arguments, result.out);
  CHECK(result.exit_code == exit_code);
  CHECK(result.out.empty());
  CHECK(result.err == message);
}

TEST_CASE("what a user gets wrong is answered with the way out") {
  const std::string file = "scenarios/fsdp/linear_chain.json";
  const std::string small = "scenarios/fsdp/a2_uneven_7x8_over_4.json";
  check_refused({"explain", small, "--param", "wieght"}, 2,
                small +
                    ": error: --param \"wieght\" matches no parameter\n"
                    "  help: did you mean \"weight\"?\n");
  check_refused({"explain", small, "--param", "nothing*like"}, 2,
                small +
                    ": error: --param \"nothing*like\" matches no parameter\n"
                    "  help: the parameters are \"weight\"\n");
  check_refused({"explain", small, "--rank", "4"}, 2,
                small +
                    ": error: --rank is 4, but the mesh has 4 ranks\n"
                    "  help: ranks are 0 to 3\n");
  check_refused({"explain", small, "--rank", "-1"}, 2,
                small +
                    ": error: --rank is -1, but the mesh has 4 ranks\n"
                    "  help: ranks are 0 to 3\n");
  check_refused({"explain", "scenarios/fsdp"}, 2,
                "scenarios/fsdp: error: is a directory\n"
                "  help: explain takes one scenario file\n");
  check_refused({"plan", small, "--step", "1"}, 2,
                small +
                    ": error: --step is 1, but there is 1 optimizer step\n"
                    "  help: the only one is 0\n");
  check_refused({"plan", small, "--format", "md"}, 2,
                "error: --format does not know \"md\"\n  help: it takes text, json\n");
  const std::string invalid = "scenarios/invalid/mesh_size_zero.json";
  for (const char* command : {"plan", "explain"}) {
    const ProgramResult result = run_program({HPSIM_PROGRAM, command, invalid});
    CHECK(result.exit_code == 3);
    CHECK(result.out.empty());
    CHECK(has(result.err, invalid + ":"));
  }
  CHECK(has(said({"plan", file, "--step", "1"}), "optimizer step 1 of "));
}

TEST_CASE("listing more than a million ranks is refused, telling them by mesh dims is not") {
  const ScratchDirectory scratch;
  const std::string file = scratch.write("large.json", R"json({
    "hpsim": 1, "mesh": {"shape": [2097152], "mesh_dim_names": ["fsdp"]}, "parameters": {"w": [7, 8]}
  })json");
  for (const char* command : {"plan", "explain"}) {
    check_refused({command, file, "--full", "--format", "json"}, 2,
                  file +
                      ": error: --full lists every rank, at most 1048576, not 2097152\n"
                      "  help: leave --full out: ranks are then told by mesh dims\n");
    CHECK_FALSE(said({command, file, "--full"}).empty());
  }
}

TEST_CASE("JSON about more parameters than fit is refused, about some of them is not") {
  Json scenario = {{"hpsim", 1}, {"mesh", {{"shape", {4}}, {"mesh_dim_names", {"fsdp"}}}}};
  for (int i = 0; i < 10001; ++i)
    scenario["parameters"]["p" + std::to_string(i)] = {7, 8};
  const ScratchDirectory scratch;
  const std::string file = scratch.write("many.json", scenario.dump());
  check_refused({"explain", file, "--format", "json"}, 2,
                file +
                    ": error: --format json tells of at most 10000 parameters, not 10001\n"
                    "  help: choose some: --param takes a glob\n");
  const Json some = Json::parse(said({"explain", file, "--format", "json", "--param", "p999*"}));
  CHECK(some.at("parameters").size() == 11);  // p999, p9990 to p9999
  CHECK(has(said({"explain", file}), "… 9990 more parameters"));
}

TEST_CASE("colour when asked for, and only then") {
  const std::string small = "scenarios/fsdp/a2_uneven_7x8_over_4.json";
  for (const char* command : {"plan", "explain"}) {
    CHECK(has(said({command, small, "--color", "always"}), "\x1b["));
    CHECK_FALSE(has(said({command, small}), "\x1b["));
  }
}

}  // namespace
}  // namespace hpsim
