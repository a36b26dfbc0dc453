#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "support/catch.h"
#include "support/program.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;

const std::string kLong = "scenarios/training/long_hsdp_adamw.json";

/// The report, without what may differ between two runs.
Json report_of_run(const std::string& backend) {
  const ProgramResult result =
      run_program({HPSIM_PROGRAM, "run", kLong, "--backend", backend, "--format", "json"});
  CAPTURE(backend, result.err);
  REQUIRE(result.exit_code == 0);
  Json report = Json::parse(result.out);
  CHECK(report.erase("timing") == 1);
  CHECK(report.erase("meta") == 1);
  return report;
}

TEST_CASE("200 steps over real collectives give the same bytes twice, and as in one process") {
  const Json first = report_of_run("gloo");
  CHECK(first.dump() == report_of_run("gloo").dump());
  Json local = report_of_run("local");
  CHECK(local.at("backend") == "local");
  local["backend"] = "gloo";
  CHECK(first.dump() == local.dump());
}

TEST_CASE("every one of 200 steps is judged, and the drift of all of them is told") {
  const Json report = report_of_run("local");
  // Parameters: 5*7 + 7 + 7*3 + 3 = 66 numbers in two copies; gradients and both averages of adamw
  // after every step, parameters before the first one besides.
  const auto compared = [&](const std::string& id) {
    for (const Json& check : report.at("checks")) {
      if (check.at("id") == id) return check.at("compared").get<int>();
    }
    return 0;
  };
  CHECK(compared("loss-parity") == 200);
  CHECK(compared("gradient-parity") == 66 * 2 * 200);
  CHECK(compared("parameter-parity") == 66 * 2 * 201);
  CHECK(compared("optimizer-state-parity") == 66 * 2 * 2 * 200);

  const Json& drift = report.at("drift");
  REQUIRE(drift.size() == 200);
  double largest = 0;
  for (std::size_t step = 0; step < drift.size(); ++step) {
    CHECK(drift[step].at("step") == step);
    CHECK(drift[step].at("relative") > 0);
    largest = std::max(largest, drift[step].at("relative").get<double>());
  }
  // A step cannot undo what the roundings of all before it have led to.
  CHECK(largest > drift[0].at("relative").get<double>());

  const ProgramResult text = run_program({HPSIM_PROGRAM, "run", kLong, "--backend", "local"});
  CHECK(text.out.find("drift  after 200 steps parameters are") != std::string::npos);
  CHECK(text.out.find("more steps") != std::string::npos);
}

}  // namespace
}  // namespace hpsim
