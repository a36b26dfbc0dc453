#include <fmt/format.h>

#include "scenario/module_layouts.h"
#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

/// A linear of 8 features called a, then linears of 8 features called b and c with these keys, in
/// one unit.
std::string tied(std::string_view b, std::string_view c = "", std::string_view a = "",
                 std::string_view fully_shard = R"("units": [])") {
  constexpr const char* kLinear =
      R"({{"name": "{}", "type": "linear", "in_features": 8, "out_features": 8{}}})";
  return fmt::format(R"({{"hpsim": 1, "mesh": {{"shape": [4], "mesh_dim_names": ["fsdp"]}},)"
                     R"("model": [{}, {}, {}], "fully_shard": {{{}}}}})",
                     fmt::format(kLinear, "a", a), fmt::format(kLinear, "b", b),
                     fmt::format(kLinear, "c", c), fully_shard);
}

TEST_CASE("a module that is tied to another as a whole is that module, used once more") {
  const Scenario scenario = parsed(tied(R"(, "tied_to": "a")", R"(, "tied_to": "a.weight")"));
  const std::vector<ModuleSpec>& modules = scenario.model.modules;
  CHECK(modules[1].tied_to == 0);
  CHECK(modules[1].ties_bias);
  CHECK(modules[1].bias);
  CHECK(modules[2].tied_to == 0);
  CHECK_FALSE(modules[2].ties_bias);
  CHECK(names_of(scenario.parameters) == std::vector<std::string>{"a.weight", "a.bias", "c.bias"});
  CHECK(parameters_of_modules(scenario) == std::vector<std::vector<int>>{{0, 1}, {0, 1}, {0, 2}});
  REQUIRE(scenario.units.size() == 1);
  CHECK(scenario.units[0].parameters == std::vector<int>{0, 1, 2});
}

TEST_CASE("it has the bias of that module, or none") {
  const Scenario none = parsed(tied(R"(, "tied_to": "a")", "", R"(, "bias": false)"));
  CHECK_FALSE(none.model.modules[1].bias);
  CHECK(none.model.modules[1].ties_bias);
  CHECK(parameters_of_modules(none)[1] == std::vector<int>{0});
  CHECK_NOTHROW(parsed(tied(R"(, "tied_to": "a", "bias": false)", "", R"(, "bias": false)")));
  CHECK_NOTHROW(parsed(tied(R"(, "tied_to": "a", "bias": true)")));
  CHECK(messages_of(tied(R"(, "tied_to": "a", "bias": true)", "", R"(, "bias": false)")) ==
        "\"b\" is \"a\" used once more, which has no bias, but its \"bias\" is true\n");
  CHECK(messages_of(tied(R"(, "tied_to": "a", "bias": false)")) ==
        "\"b\" is \"a\" used once more, which has a bias, but its \"bias\" is false\n");
}

TEST_CASE("a repeat of a module that is tied uses it again and again") {
  const Scenario scenario = parsed(
      R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]}, "model": [)"
      R"({"name": "l", "type": "linear", "in_features": 8, "out_features": 8},)"
      R"({"name": "b", "type": "repeat", "count": 3, "module": {"type": "linear",)"
      R"("in_features": 8, "out_features": 8, "tied_to": "l"}}], "fully_shard": {"units": []}})");
  CHECK(scenario.parameters.size() == 2);
  for (int m = 1; m <= 3; ++m) {
    CHECK(scenario.model.modules[static_cast<std::size_t>(m)].ties_bias);
    CHECK(parameters_of_modules(scenario)[static_cast<std::size_t>(m)] == std::vector<int>{0, 1});
  }
}

TEST_CASE("what cannot be that module is refused") {
  CHECK(messages_of(tied(R"(, "tied_to": "b")", R"(, "tied_to": "none")")) ==
        "\"b\" is tied to itself\n"
        "\"c.weight\" is tied to \"none\", but no parameter, linear or embedding is called so\n");
  CHECK(messages_of(tied(R"(, "tied_to": "c")", R"(, "tied_to": "b")")) ==
        "\"b\" is tied to \"c\", which comes later\n");
  CHECK(messages_of(tied(R"(, "tied_to": "a")", R"(, "tied_to": "b")")) ==
        "\"c\" is tied to \"b\", which is tied itself to \"a\"\n");
  CHECK(messages_of(tied(R"(, "tied_to": "a.weight")", R"(, "tied_to": "b")")) ==
        "\"c\" is tied to \"b\", which is tied itself to \"a.weight\"\n");
}

TEST_CASE("a module used once more is in the unit of its first use, unless left alone") {
  const char* const both = R"(, "tied_to": "a")";
  CHECK(diagnostics_of(tied(both, "", "", R"("units": ["a"])"))[0].pointer == "/model/1/tied_to");
  CHECK_NOTHROW(parsed(tied(both, "", "", R"("units": ["b"], "ignored_params": ["a.*"])")));
  // The bias would still be gathered by two units.
  CHECK(diagnostics_of(tied(both, "", "", R"("units": ["b"], "ignored_params": ["a.weight"])"))[0]
            .pointer == "/model/1/tied_to");
  CHECK_NOTHROW(parsed(tied(R"(, "tied_to": "a.weight")", "", "",
                            R"("units": ["b"], "ignored_params": ["a.weight"])")));
}

}  // namespace
}  // namespace hpsim
