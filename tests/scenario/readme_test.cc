// What the README shows: its transcripts, and its workflow with a shell in place of the runner.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "support/catch.h"
#include "support/program.h"
#include "support/scratch_directory.h"

namespace hpsim {
namespace {

namespace fs = std::filesystem;

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The lines below "run: |" of the step with that name, as far as they are indented deeper.
std::string script_of_step(const std::string& name) {
  std::istringstream lines(read("README.md"));
  std::string line;
  while (std::getline(lines, line) && line != "```yaml") {
  }
  while (std::getline(lines, line) && !contains(line, "- name: " + name)) {
  }
  std::getline(lines, line);
  REQUIRE(contains(line, "run: |"));
  const std::size_t depth = line.find("run");
  std::string script;
  while (std::getline(lines, line) && line.find_first_not_of(' ') > depth && line != "```")
    script += line.substr(depth + 2) + "\n";
  return script;
}

/// Runs a step as the runner does: `sh -e FILE`, CI set, a file for the summary.
ProgramResult run_step(const std::string& script, const ScratchDirectory& repository) {
  const std::string& home = repository.path();
  const std::string file = repository.write("runner/step.sh", script);
  fs::create_directories(home + "/runner/bin");
  std::error_code is_there;
  fs::create_symlink(HPSIM_PROGRAM, home + "/runner/bin/hpsim", is_there);
  fs::remove(home + "/runner/summary.md");
  return run_program({"/usr/bin/env", "CI=true", "GITHUB_ACTIONS=true",
                      "GITHUB_STEP_SUMMARY=" + home + "/runner/summary.md",
                      "PATH=" + home + "/runner/bin:/usr/bin:/bin", "/bin/sh", "-e", file},
                     {.directory = home, .timeout_s = 60});
}

/// The block of text that follows `words` in the README.
std::string block_after(const std::string& words) {
  const std::string readme = read("README.md");
  const std::size_t at = readme.find(words);
  REQUIRE(at != std::string::npos);
  const std::size_t begin = readme.find("```\n", at) + 4;
  return readme.substr(begin, readme.find("```", begin) - begin);
}

/// All but the last line, which tells times.
std::string without_last_line(const std::string& text) {
  return text.substr(0, text.rfind('\n', text.size() - 2));
}

TEST_CASE("the transcripts are what the program says") {
  const std::string scenario = "scenarios/fsdp/a2_uneven_7x8_over_4.json";
  const auto out = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), HPSIM_PROGRAM);
    return run_program(arguments, {.timeout_s = 60});
  };
  CHECK(without_last_line(out({"run", scenario}).out) ==
        without_last_line(block_after("`build/hpsim run " + scenario + "`")));
  CHECK(out({"plan", scenario}).out == block_after("`build/hpsim plan " + scenario + "`"));
  CHECK(out({"explain", scenario, "--param", "weight", "--rank", "3"}).out ==
        block_after("`build/hpsim explain " + scenario + " --param weight --rank 3`"));
  const std::string command = "$ build/hpsim run scenarios/invalid/several.json\n";
  const std::string readme = read("README.md");
  const std::size_t begin = readme.find(command) + command.size();
  CHECK(out({"run", "scenarios/invalid/several.json"}).err ==
        readme.substr(begin, readme.find("```", begin) - begin));
}

const std::string kScenario =
    "{\"hpsim\": 1, \"mesh\": {\"shape\": [4], \"mesh_dim_names\": [\"fsdp\"]},\n"
    " \"parameters\": {\"weight\": [6, 8]}";

TEST_CASE("the workflow passes, and tells a pull request what it changes") {
  const std::string script = script_of_step("check");
  REQUIRE(contains(script, "hpsim run scenarios"));
  const ScratchDirectory repository;
  const std::string& home = repository.path();
  repository.write("scenarios/layer.json", kScenario + "}");
  repository.write("scenarios/other.json", kScenario + "}");

  // Before anybody has frozen anything, the build server says what is missing.
  ProgramResult result = run_step(script, repository);
  CHECK(result.exit_code == 4);
  CHECK(contains(read(home + "/runner/summary.md"), "golden missing"));
  CHECK_FALSE(fs::exists(home + "/golden"));

  REQUIRE(run_program({"/usr/bin/env", "-u", "CI", HPSIM_PROGRAM, "golden", "update"},
                      {.directory = home, .timeout_s = 60})
              .exit_code == 0);
  result = run_step(script, repository);
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out.empty());
  CHECK(result.err.empty());
  CHECK(contains(read(home + "/runner/summary.md"), "**2 passed** of 2"));
  CHECK(contains(read(home + "/hpsim.xml"), "failures=\"0\""));

  // A pull request that cuts otherwise.
  repository.write("scenarios/layer.json",
                   kScenario + ",\n \"fully_shard\": {\"chunking\": \"balanced\"}}");
  result = run_step(script, repository);
  CHECK(result.exit_code == 4);
  CHECK(contains(result.err,
                 "::error file=scenarios/layer.json,title=golden differs::weight: rank "
                 "2 holds 1 row, golden 2\n"));
  const std::string summary = read(home + "/runner/summary.md");
  CHECK(contains(summary, "**1 failed**, 1 passed of 2"));
  CHECK(contains(summary, "weight: rank 2 holds 1 row, golden 2"));
  CHECK(contains(read(home + "/hpsim.xml"), "weight: rank 2 holds 1 row, golden 2"));

  // One that breaks an expectation: the line of the file is named.
  repository.write("scenarios/layer.json", kScenario + ",\n \"expect\": {\"world_size\": 5}}");
  result = run_step(script, repository);
  CHECK(result.exit_code == 1);
  CHECK(contains(result.err, "::error file=scenarios/layer.json,line=3,col="));
  CHECK(contains(read(home + "/runner/summary.md"), "scenarios/layer.json:3"));

  // And one that is no scenario.
  repository.write("scenarios/layer.json", kScenario + ",\n \"chunking\": \"balanced\"}");
  result = run_step(script, repository);
  CHECK(result.exit_code == 3);
  CHECK(contains(result.err, "::error file=scenarios/layer.json,line=3,col=2"));
  CHECK(contains(read(home + "/runner/summary.md"), "unknown key"));
}

}  // namespace
}  // namespace hpsim
