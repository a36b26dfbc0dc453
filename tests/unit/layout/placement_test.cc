#include <fmt/format.h>

#include "layout/parse_placement.h"
#include "support/catch.h"

namespace hpsim {
namespace {

TEST_CASE("placements print as in PyTorch and HyperParallel, and read back in any vocabulary") {
  struct Case {
    Placement placement;
    Vocabulary vocabulary;
    std::string text;
  };
  constexpr auto kRagged = Vocabulary::Ragged;
  const std::vector<Case> cases = {
      {Replicate{}, kRagged, "Replicate"},
      {Partial{}, kRagged, "Partial(sum)"},
      {Partial{ReduceOp::Avg}, kRagged, "Partial(avg)"},
      {Shard{1}, kRagged, "Shard(1)"},
      {Shard{0, true}, Vocabulary::UnevenFlag, "Shard(0, uneven)"},
      {StridedShard{0, 2}, kRagged, "StridedShard(0, 2)"},
      {StridedShard{1, 6, true}, Vocabulary::UnevenFlag, "StridedShard(1, 6, uneven)"},
      {StridedShard{0, 2}, Vocabulary::Torch, "_StridedShard(0, 2)"},
      {RaggedShard{{0}, {2, 2, 2, 1}}, kRagged, "RaggedShard((0,), (2, 2, 2, 1))"},
      {RaggedShard{{0, 1}, {3, 7, 4, 1}}, kRagged, "RaggedShard((0, 1), (3, 7, 4, 1))"},
      {RaggedShard{{0}, {5}}, kRagged, "RaggedShard((0,), (5,))"},
      {RaggedStridedShard{{0}, {{3, 2}}, 2}, kRagged, "RaggedStridedShard((0,), (3, 2), 2)"},
      {RaggedStridedShard{{0}, {{1, 1, 1, 1}, {1, 1, 1, 0}}, 2}, kRagged,
       "RaggedStridedShard((0,), ((1, 1, 1, 1), (1, 1, 1, 0)), 2)"},
  };
  for (const Case& c : cases) {
    CHECK(to_string(c.placement, c.vocabulary) == c.text);
    const auto parsed = parse_placement(c.text);
    REQUIRE(std::holds_alternative<Placement>(parsed));
    CHECK(std::get<Placement>(parsed) == c.placement);
  }
  CHECK(to_string(std::vector<Placement>{Replicate{}, Shard{0}}) == "[Replicate, Shard(0)]");
}

TEST_CASE("long lists of units print in runs, which read back") {
  LocalUnits units;
  units.append(100, 2);
  units.append(1, 1);
  units.append(27, 0);
  const std::string text = "RaggedShard((0,), (2 * 100, 1, 0 * 27))";
  CHECK(to_string(Placement{RaggedShard{{0}, units}}) == text);
  CHECK(std::get<Placement>(parse_placement(text)) == Placement{RaggedShard{{0}, units}});
  CHECK(std::get<Placement>(parse_placement("RaggedShard((0,), (2 * 3, 1))")) ==
        Placement{RaggedShard{{0}, {2, 2, 2, 1}}});
  // 64 are still listed one by one.
  CHECK(to_string(LocalUnits(std::vector<std::int64_t>(64, 1))).find('*') == std::string::npos);
  CHECK(to_string(LocalUnits(std::vector<std::int64_t>(65, 1))) == "(1 * 65)");
}

TEST_CASE("units: runs, sums, intervals") {
  const LocalUnits units = {2, 2, 2, 1};
  CHECK(units.runs() == std::vector<LocalUnits::Run>{{3, 2}, {1, 1}});
  CHECK(units.size() == 4);
  CHECK(units.sum() == 7);
  CHECK(units.largest() == 2);
  CHECK(units.interval(0) == Interval{0, 2});
  CHECK(units.interval(3) == Interval{6, 7});
  CHECK(LocalUnits{0, 3, 0}.interval(2) == Interval{3, 3});
  CHECK(LocalUnits{1, 1} == LocalUnits(std::vector<std::int64_t>{1, 1}));
  CHECK(LocalUnits(shard_runs(9, 131072)).runs() ==
        std::vector<LocalUnits::Run>{{9, 1}, {131063, 0}});
}

TEST_CASE("blanks do not matter") {
  CHECK(std::get<Placement>(parse_placement("  Shard( 0 )  ")) == Placement{Shard{0}});
  CHECK(std::get<Placement>(parse_placement("RaggedShard((0,),(2,1,))")) ==
        Placement{RaggedShard{{0}, {2, 1}}});
  CHECK(std::get<Placement>(parse_placement("Partial")) == Placement{Partial{}});
}

TEST_CASE("what is no placement is told with the way out") {
  struct Case {
    std::string text, message, help;
  };
  const std::vector<Case> cases = {
      {"", "no name of a placement", "write Replicate"},
      {"shard(0)", "unknown placement \"shard\"", "did you mean \"Shard\"?"},
      {"Shard", "Shard takes 1 to 2 arguments, 0 given", "write Replicate"},
      {"Shard(x)", "the tensor dim is no number", "write Replicate"},
      {"Shard(-1)", "tensor dim -1 is below 0", "dims count from 0"},
      {"Shard(0) or so", "unexpected \"or so\" at the end", "write Replicate"},
      {"Shard(0", "a closing parenthesis is missing", "write Replicate"},
      {"Shard(0, even)", "the last argument is not \"uneven\"", "write Replicate"},
      {"Shard(99999999999999999999)", "a number is beyond 64 bits", "smaller"},
      {"StridedShard(0, 0)", "split_factor is 0", "at least 1"},
      {"Partial(max)", "unknown reduction", "Partial(sum)"},
      {"RaggedShard((1,), (1, 1))", "not the leading ones: 1 at 0", "write (0,)"},
      {"RaggedShard((0, 2), (1, 1))", "not the leading ones: 2 at 1", "write (0,)"},
      {"RaggedShard((), (1, 1))", "a ragged shard has no dims", "write (0,)"},
      {"RaggedShard((0,), (0, 0))", "the units sum to 0", "at least one rank"},
      {"RaggedShard((0,), ())", "local_units are no tuple", "write Replicate"},
      {"RaggedShard((0,), (1, -1))", "-1 units for 1 ranks", "0 or more"},
      {"RaggedShard((0,), (1 * 0))", "1 units for 0 ranks", "1 rank or more"},
      {"RaggedShard((0,), (9000000000000000000 * 9))", "more than 2^53", "smaller"},
      {"RaggedStridedShard((0,), ((1, 1), (1,)), 2)", "tuples of 2 and 1 units", "as many"},
      {"RaggedStridedShard((0,), ((1, 1), (1, 0)), 3)", "2 tuples of units, but split_factor is 3",
       "one per coordinate"},
      {"((((((", "no name of a placement", "write"},
  };
  for (const Case& c : cases) {
    const auto parsed = parse_placement(c.text);
    CAPTURE(c.text);
    REQUIRE(std::holds_alternative<PlacementProblem>(parsed));
    const auto& problem = std::get<PlacementProblem>(parsed);
    CHECK_THAT(problem.message, Catch::Matchers::Contains(c.message));
    CHECK_THAT(problem.help, Catch::Matchers::Contains(c.help));
  }
}

}  // namespace
}  // namespace hpsim
