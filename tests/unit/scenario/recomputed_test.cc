#include <fmt/format.h>

#include <utility>
#include <vector>

#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

/// l0; repeat b of 2 sequentials of l and a; l1: modules l0, b.0.l, b.0.a, b.1.l, b.1.a, l1.
std::string blocks_with(std::string_view patterns) {
  return fmt::format(
      R"({{"hpsim": 1, "mesh": {{"shape": [4], "mesh_dim_names": ["fsdp"]}}, "model": [
            {{"name": "l0", "type": "linear", "in_features": 8, "out_features": 8}},
            {{"name": "b", "type": "repeat", "count": 2, "module": {{"type": "sequential", "modules": [
              {{"name": "l", "type": "linear", "in_features": 8, "out_features": 8}},
              {{"name": "a", "type": "tanh"}}]}}}},
            {{"name": "l1", "type": "linear", "in_features": 8, "out_features": 3}}],
          "training": {{"activation_checkpointing": {}}}}})",
      patterns);
}

using Parts = std::vector<std::pair<int, int>>;

Parts parts_of(std::string_view patterns) {
  Parts parts;
  for (const RecomputedSpec& part : parsed(blocks_with(patterns)).training.recomputed)
    parts.emplace_back(part.first, part.end);
  return parts;
}

/// `pointer: message` of the only mistake.
std::string mistake(const std::string& text) {
  const auto diagnostics = diagnostics_of(text);
  REQUIRE(diagnostics.size() == 1);
  return diagnostics[0].pointer + ": " + diagnostics[0].message;
}

TEST_CASE("patterns name parts that are computed again: blocks, all of them, leaves") {
  CHECK(parts_of("[]").empty());
  CHECK(parts_of(R"(["b.*"])") == Parts{{1, 3}, {3, 5}});
  CHECK(parts_of(R"(["b"])") == Parts{{1, 5}});
  CHECK(parts_of(R"(["b.1"])") == Parts{{3, 5}});
  CHECK(parts_of(R"(["**.a"])") == Parts{{2, 3}, {4, 5}});
  CHECK(parts_of(R"(["l1", "b.1", "l0"])") == Parts{{0, 1}, {3, 5}, {5, 6}});
  // What two patterns name comes once.
  CHECK(parts_of(R"(["b.0", "b.*", "b.0"])") == Parts{{1, 3}, {3, 5}});
  CHECK(parsed(minimal_with("")).training.recomputed.empty());
  CHECK(parsed(minimal_with(R"("training": {"activation_checkpointing": []})"))
            .training.recomputed.empty());
}

TEST_CASE("parts that lie in one another, patterns that match nothing, no modules at all") {
  CHECK(mistake(blocks_with(R"(["b", "b.1"])")) ==
        "/training/activation_checkpointing/1: \"b.1\" lies in \"b\", which is computed again as a "
        "whole");
  // The pattern that names the inner one is where the mistake is.
  CHECK(mistake(blocks_with(R"(["b.0.a", "b.*"])")) ==
        "/training/activation_checkpointing/0: \"b.0.a\" lies in \"b.0\", which is computed again "
        "as a whole");
  // One mistake for each outer part.
  CHECK(diagnostics_of(blocks_with(R"(["b.*", "b.*.*"])")).size() == 2);
  CHECK(mistake(blocks_with(R"(["**"])")) ==
        "/training/activation_checkpointing/0: \"b.0\" lies in \"b\", which is computed again as a "
        "whole");
  CHECK(mistake(blocks_with(R"(["c.*"])")) ==
        "/training/activation_checkpointing/0: \"c.*\" matches no module");
  CHECK(mistake(minimal_with(R"("training": {"activation_checkpointing": ["weight"]})")) ==
        "/training/activation_checkpointing: the scenario has \"parameters\", and no modules to "
        "compute again");
}

}  // namespace
}  // namespace hpsim
