#include "base/error.h"
#include "scenario/parse.h"
#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

std::string stem_of(const std::string& name) {
  return name.substr(0, name.rfind('.'));
}

TEST_CASE("every invalid scenario has its whole message as golden file") {
  const auto files = files_in("scenarios/invalid", ".json");
  REQUIRE(files.size() > 150);
  for (const std::string& name : files) {
    const std::string path = "scenarios/invalid/" + name;
    INFO(path);
    std::string text;
    try {
      static_cast<void>(parse_scenario(read_file(path), path));
      FAIL("parsed without complaint");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::InvalidScenario);
      for (const Diagnostic& diagnostic : error.diagnostics()) {
        CHECK_FALSE(diagnostic.help.empty());
        CHECK(diagnostic.line > 0);
        CHECK(diagnostic.column > 0);
        text += to_string(diagnostic) + "\n";
      }
    }
    CHECK(text == read_file("golden/invalid/" + stem_of(name) + ".txt"));
  }
}

TEST_CASE("every golden message belongs to an invalid scenario") {
  const auto scenarios = files_in("scenarios/invalid", ".json");
  const auto goldens = files_in("golden/invalid", ".txt");
  std::vector<std::string> expected;
  for (const std::string& name : scenarios)
    expected.push_back(stem_of(name) + ".txt");
  CHECK(goldens == expected);
}

}  // namespace
}  // namespace hpsim
