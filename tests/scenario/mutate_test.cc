// `hpsim faults` and `hpsim mutate` as people use them.

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/program.h"
#include "support/scratch_directory.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;
using Catch::Matchers::Contains;

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// `hpsim ARGUMENTS...` at the root of the sources, with CI set or not.
ProgramResult hpsim(std::vector<std::string> arguments, bool is_ci = false) {
  std::vector<std::string> command = {"/usr/bin/env", "-u", "CI"};
  if (is_ci) command = {"/usr/bin/env", "CI=true"};
  command.emplace_back(HPSIM_PROGRAM);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_program(command, {.timeout_s = 280});
}

TEST_CASE("the list of faults says the same as text and as JSON, and one by one") {
  const ProgramResult text = hpsim({"faults"});
  CHECK(text.exit_code == 0);
  const Json all = Json::parse(hpsim({"faults", "--format", "json"}).out);
  REQUIRE(all.size() >= 3);
  for (const Json& fault : all) {
    const auto name = fault.at("name").get<std::string>();
    CAPTURE(name);
    CHECK_THAT(text.out, Contains(name));
    CHECK(Json::parse(hpsim({"faults", name, "--format", "json"}).out) == fault);
    const ProgramResult one = hpsim({"faults", name});
    CHECK(one.exit_code == 0);
    CHECK_THAT(one.out, Contains(fault.at("breaks").get<std::string>()) &&
                            Contains("\"fault\": \"" + name + "\""));
    for (const Json& found : fault.at("caught_by"))
      CHECK_THAT(one.out, Contains(found.at("code").get<std::string>()));
  }
}

TEST_CASE("a fault that there is not is answered with one that there is") {
  const ProgramResult result = hpsim({"faults", "stal"});
  CHECK(result.exit_code == 2);
  CHECK(result.err == "error: no fault is named \"stal\"\n  help: did you mean \"stall\"?\n");
  CHECK(hpsim({"mutate", "scenarios/fsdp", "--fault", "no_such_fault"}).exit_code == 2);
  // Faults of processes end runs, and need gloo: they are tried one by one.
  CHECK(hpsim({"mutate", "scenarios/fsdp", "--fault", "kill"}).exit_code == 2);
}

TEST_CASE("a run with a fault never passes: a fault that is missed is a finding") {
  const ScratchDirectory scratch;
  const auto run = [&](const std::string& fault, const std::string& backend) {
    return hpsim({"run",
                  scratch.write("faulty.json",
                                R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
                                    "parameters": {"weight": [7, 8]}, "faults": [{"fault": ")" +
                                    fault + "\"}]}"),
                  "--backend", backend, "--format", "json"});
  };
  // A plan is judged on every backend, what ranks do only where ranks run.
  for (const char* backend : {"symbolic", "local", "gloo"}) {
    const ProgramResult result = run("plan_scale_twice", backend);
    CAPTURE(backend, result.out, result.err);
    CHECK(result.exit_code == 1);
    CHECK_THAT(result.out, !Contains("FAULT_MISSED"));
  }
  for (const char* backend : {"local", "gloo"}) {
    const ProgramResult result = run("update_twice", backend);
    CAPTURE(backend, result.out, result.err);
    CHECK(result.exit_code == 1);
    CHECK_THAT(result.out, !Contains("FAULT_MISSED"));
  }
  // The plan is refused, so that no rank updates anything twice.
  const ProgramResult missed = run(R"(plan_scale_twice"}, {"fault": "update_twice)", "local");
  CHECK(missed.exit_code == 1);
  const Json findings = Json::parse(missed.out).at("findings");
  CHECK(findings.back().at("code") == "FAULT_MISSED");
  CHECK(findings.back().at("check") == "expect");
  CHECK_THAT(findings.back().at("message").get<std::string>(),
             Contains("planted fault \"update_twice\" must be found as parameter-parity "
                      "PARAM_VALUE; found: sync-set "));

  const ProgramResult symbolic = run("update_twice", "symbolic");
  CHECK(symbolic.exit_code == 2);
  CHECK_THAT(symbolic.err, Contains("fault \"update_twice\" needs ranks that run, which backend "
                                    "symbolic does not have"));
}

TEST_CASE("a scenario that reports without a fault fails the matrix") {
  const ScratchDirectory scratch;
  // Uneven rows in PyTorch's words, which cannot express them: that is a warning, no error. A mean
  // of means of 9 positions is one too. Ranks of exact mode with a scale that is no power of two:
  // refused at run time, which is no verdict.
  scratch.write("inexact.json",
                R"({"hpsim": 1, "mesh": {"shape": [2], "mesh_dim_names": ["fsdp"]},
                    "parameters": {"weight": [4, 3]}, "numerics": {"mode": "exact"},
                    "data": {"init": {"kind": "integer", "max": 8388607},
                             "input": {"kind": "integer", "max": 8388607},
                             "target": {"kind": "integer", "max": 8388607}}})");
  const ProgramResult result = hpsim({"mutate", scratch.path(), "--quiet"});
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.out, Contains("reports without a fault") && Contains("inexact.json"));
}

TEST_CASE("a golden matrix is written outside CI only, and differences are told") {
  const ScratchDirectory scratch;
  const std::string golden = scratch.path() + "/matrix.json";
  const std::vector<std::string> update = {"mutate",   "scenarios/fsdp/a2_uneven_7x8_over_4.json",
                                           "--golden", golden,
                                           "--update", "--quiet"};
  const ProgramResult refused = hpsim(update, true);
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err, Contains("CI is set"));
  CHECK(hpsim({"mutate", "scenarios/fsdp", "--update"}).exit_code == 2);
  CHECK(hpsim(update).exit_code == 0);
  const std::vector<std::string> check = {"mutate", "scenarios/fsdp/a2_uneven_7x8_over_4.json",
                                          "--golden", golden, "--quiet"};
  CHECK(hpsim(check, true).exit_code == 0);
  std::string text = read(golden);
  text.replace(text.find("a2_uneven"), 9, "a3_uneven");
  scratch.write("matrix.json", text);
  const ProgramResult differs = hpsim(check, true);
  CHECK(differs.exit_code == 4);
  CHECK_THAT(differs.err, Contains("scenarios/fsdp/a3_uneven_7x8_over_4.json: not among the "
                                   "scenarios any more"));
  CHECK_THAT(differs.err, Contains("scenarios/fsdp/a2_uneven_7x8_over_4.json: the golden does not "
                                   "know this scenario"));
  scratch.write("matrix.json", "no JSON");
  CHECK(hpsim(check).exit_code == 2);
}

TEST_CASE("every fault in uneven layouts is found by its own check, in the same words each time") {
  const std::vector<std::string> command = {"mutate", "scenarios/fsdp", "--quiet", "--format",
                                            "json"};
  const ProgramResult first = hpsim(command);
  CAPTURE(first.out, first.err);
  CHECK(first.exit_code == 0);
  CHECK(Json::parse(first.out).at("score") == 1);
  CHECK(hpsim(command).out == first.out);
}

}  // namespace
}  // namespace hpsim
