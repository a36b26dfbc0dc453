// Goldens as people use them: in this repository, beside scenarios of their own, on build servers.

#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/catch.h"
#include "support/program.h"
#include "support/scratch_directory.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kUneven =
    R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
        "parameters": {"weight": [7, 8]}})";
constexpr const char* kBalanced =
    R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
        "parameters": {"weight": [6, 8]}, "fully_shard": {"chunking": "balanced"}})";
constexpr const char* kCeil =
    R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
        "parameters": {"weight": [6, 8]}})";
/// Expects what is not so.
constexpr const char* kFailing =
    R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},
        "parameters": {"weight": [7, 8]}, "expect": {"world_size": 5}})";

/// `hpsim ARGUMENTS...` in that directory, with CI set or not.
ProgramResult hpsim(const std::string& directory, std::vector<std::string> arguments,
                    const char* ci = nullptr) {
  std::vector<std::string> command = {"/usr/bin/env", "-u", "CI"};
  if (ci != nullptr) command.push_back(std::string("CI=") + ci);
  command.emplace_back(HPSIM_PROGRAM);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_program(command, {.directory = directory, .timeout_s = 60});
}

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Path and content of everything below the directory.
std::vector<std::string> tree(const std::string& directory) {
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory)) {
    files.push_back(entry.path().string() +
                    (entry.is_regular_file() ? "\n" + read(entry.path()) : ""));
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void check_all_goldens(const std::string& backend) {
  const ProgramResult result =
      hpsim("", {"golden", "check", "--backend", backend, "--format", "json"}, "true");
  CAPTURE(backend, result.out, result.err);
  CHECK(result.exit_code == 0);
  const Json report = Json::parse(result.out);
  CHECK(report["counts"].size() == 1);
  CHECK(report["counts"]["same"] == report["scenarios"].size());
  CHECK(report["scenarios"].size() > 40);
  CHECK(report["obsolete"].empty());
  for (const Json& scenario : report["scenarios"])
    CHECK(scenario["golden"]["compared"] > 30);
}

TEST_CASE("every shipped scenario is what its golden says, without processes") {
  for (const char* backend : {"auto", "symbolic", "local"})
    check_all_goldens(backend);
}

// Every shipped scenario runs on Gloo in shipped_scenarios too, where it is judged.
TEST_CASE("every shipped scenario is what its golden says, on Gloo", "[.slow]") {
  check_all_goldens("gloo");
}

TEST_CASE("goldens of shipped scenarios are written anew byte for byte") {
  const ScratchDirectory scratch;
  fs::copy("scenarios", scratch.path() + "/scenarios", fs::copy_options::recursive);
  REQUIRE(hpsim(scratch.path(), {"golden", "update"}).exit_code == 0);
  std::size_t count = 0;
  for (const fs::directory_entry& entry :
       fs::recursive_directory_iterator(scratch.path() + "/golden")) {
    if (!entry.is_regular_file()) continue;
    const fs::path shipped = "golden" / entry.path().lexically_relative(scratch.path() + "/golden");
    CAPTURE(shipped);
    CHECK(read(entry.path()) == read(shipped));
    ++count;
  }
  CHECK(count > 40);
}

TEST_CASE("the life of a golden: missing, new, same, differs, written, obsolete, removed") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  const std::string scenario = scratch.write("scenarios/tp/a.json", kCeil);
  const std::string golden = home + "/golden/tp/a.json";

  ProgramResult result = hpsim(home, {"golden", "check"});
  CHECK(result.exit_code == 0);
  CHECK(contains(result.out, "missing     golden/tp/a.json\n"));
  CHECK(contains(result.out, "hpsim golden update"));
  CHECK_FALSE(fs::exists(home + "/golden"));

  result = hpsim(home, {"golden", "update"});
  CHECK(result.exit_code == 0);
  CHECK(contains(result.out, "new         golden/tp/a.json\n"));
  CHECK(contains(result.out, "1 new of 1 scenario"));
  CHECK(Json::parse(read(golden))["golden"] == 1);

  result = hpsim(home, {"golden", "check"}, "true");
  CHECK(result.exit_code == 0);
  CHECK(contains(result.out, "1 same of 1 scenario"));

  scratch.write("scenarios/tp/a.json", kBalanced);
  const std::string before = read(golden);
  for (const char* action : {"check", "diff"}) {
    result = hpsim(home, {"golden", action});
    CHECK(result.exit_code == 4);
    CHECK(contains(result.out, "differs     golden/tp/a.json\n"));
    CHECK(contains(result.out,
                   "            weight: rank 2 holds 1 row, golden 2\n"
                   "            weight: rank 3 holds 1 row, golden 0\n"));
    CHECK(read(golden) == before);
  }
  const std::string told = result.out.substr(0, result.out.find("\n\n"));
  result = hpsim(home, {"golden", "update"});
  CHECK(result.exit_code == 0);
  CHECK(contains(result.out, "written     golden/tp/a.json\n" + told.substr(told.find('\n') + 1)));
  CHECK(hpsim(home, {"golden", "check"}).exit_code == 0);
  CHECK(hpsim(home, {"golden", "update"}).out.find("written") == std::string::npos);

  fs::rename(scenario, home + "/scenarios/b.json");
  result = hpsim(home, {"golden", "check"});
  CHECK(result.exit_code == 4);
  CHECK(contains(result.out, "obsolete    golden/tp/a.json"));
  result = hpsim(home, {"golden", "update"});
  CHECK(result.exit_code == 0);
  CHECK(contains(result.out, "removed     golden/tp/a.json\n"));
  CHECK(contains(result.out, "new         golden/b.json\n"));
  CHECK_FALSE(fs::exists(home + "/golden/tp"));
  CHECK(hpsim(home, {"golden", "check"}, "1").exit_code == 0);
}

TEST_CASE("where CI is set nothing is written, and missing and obsolete goldens fail") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  scratch.write("scenarios/a.json", kCeil);
  const std::vector<std::string> before = tree(home);
  for (const char* ci : {"true", "1", "yes"}) {
    for (const char* action : {"check", "diff", "update"}) {
      CAPTURE(ci, action);
      const ProgramResult result = hpsim(home, {"golden", action}, ci);
      CHECK(result.exit_code == 4);
      CHECK(contains(result.out, "missing     golden/a.json"));
      CHECK(contains(result.out, "CI is set") == (std::string(action) == "update"));
      CHECK(tree(home) == before);
    }
    CHECK(hpsim(home, {"run", "scenarios", "--golden", "golden"}, ci).exit_code == 4);
  }
  for (const char* no_ci : {"", "0", "false"})
    CHECK(hpsim(home, {"golden", "check"}, no_ci).exit_code == 0);

  REQUIRE(hpsim(home, {"golden", "update"}).exit_code == 0);
  fs::copy(home + "/golden/a.json", home + "/golden/old.json");
  const std::vector<std::string> with_old = tree(home);
  for (const char* action : {"check", "update"}) {
    const ProgramResult result = hpsim(home, {"golden", action}, "true");
    CHECK(result.exit_code == 4);
    CHECK(contains(result.out, "obsolete    golden/old.json"));
    CHECK(tree(home) == with_old);
  }
  // A file alone says nothing of other goldens.
  CHECK(hpsim(home, {"golden", "check", "scenarios/a.json"}, "true").exit_code == 0);
}

TEST_CASE("an update refuses a run that does not pass, and writes the others") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  scratch.write("scenarios/bad.json", kFailing);
  scratch.write("scenarios/good.json", kUneven);
  const ProgramResult result = hpsim(home, {"golden", "update"});
  CHECK(result.exit_code == 1);
  CHECK(contains(result.out, "refused     scenarios/bad.json\n"));
  CHECK(contains(result.out, "EXPECT"));
  CHECK(fs::exists(home + "/golden/good.json"));
  CHECK_FALSE(fs::exists(home + "/golden/bad.json"));
  CHECK(hpsim(home, {"golden", "check"}).exit_code == 1);
  // The golden of a scenario that has begun to fail stays as it is.
  scratch.write("scenarios/good.json", kFailing);
  const std::string before = read(home + "/golden/good.json");
  CHECK(hpsim(home, {"golden", "update"}).exit_code == 1);
  CHECK(read(home + "/golden/good.json") == before);
  // What is no scenario stops everything.
  scratch.write("scenarios/good.json", "{\"hpsim\": 1}");
  const std::vector<std::string> all = tree(home);
  CHECK(hpsim(home, {"golden", "update"}).exit_code == 3);
  CHECK(tree(home) == all);
}

TEST_CASE("goldens beside scenarios of their own, from any working directory") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  scratch.write("team/x.json", kUneven);
  scratch.write("team/deep/y.json", kCeil);
  REQUIRE(hpsim(home, {"golden", "update", "team"}).exit_code == 0);
  CHECK(fs::exists(home + "/team/golden/x.json"));
  CHECK(fs::exists(home + "/team/golden/deep/y.json"));
  CHECK(std::distance(fs::directory_iterator(home), {}) == 1);

  CHECK(hpsim(home, {"golden", "check", "team"}, "1").exit_code == 0);
  CHECK(hpsim(home, {"golden", "check", "team/deep"}, "1").exit_code == 0);
  CHECK(hpsim(home, {"golden", "check", "team/deep/y.json"}, "1").exit_code == 0);
  CHECK(hpsim(home, {"golden", "check", home + "/team"}, "1").exit_code == 0);
  CHECK(hpsim(home + "/team", {"golden", "check", "."}, "1").exit_code == 0);
  CHECK(hpsim(home + "/team", {"golden", "check", "x.json", "deep/y.json"}, "1").exit_code == 0);
  CHECK(hpsim(home + "/team/deep", {"golden", "check", "../"}, "1").exit_code == 0);
  CHECK(hpsim(home, {"run", "team/deep/y.json", "--golden", "team/golden"}, "1").exit_code == 0);
  CHECK(hpsim("/", {"golden", "check", home + "/team"}, "1").exit_code == 0);
  CHECK(std::distance(fs::directory_iterator(home), {}) == 1);
}

TEST_CASE("a golden directory that the caller names") {
  const ScratchDirectory scratch;
  const ScratchDirectory elsewhere;
  const std::string& home = scratch.path();
  scratch.write("project/scenarios/fsdp/a.json", kUneven);
  const std::string scenarios = home + "/project/scenarios";
  const std::string folder = elsewhere.path() + "/frozen";
  REQUIRE(hpsim(home, {"golden", "update", scenarios, "--golden", folder}).exit_code == 0);
  CHECK(fs::exists(folder + "/fsdp/a.json"));
  CHECK_FALSE(fs::exists(home + "/project/golden"));
  for (const std::string& path : {scenarios, scenarios + "/fsdp", scenarios + "/fsdp/a.json"}) {
    CHECK(hpsim(home, {"golden", "check", path, "--golden", folder}, "1").exit_code == 0);
    CHECK(hpsim(home, {"run", path, "--golden", folder}, "1").exit_code == 0);
  }
  const ProgramResult file =
      hpsim(home, {"golden", "check", scenarios, "--golden", scenarios + "/fsdp/a.json"});
  CHECK(file.exit_code == 2);
  CHECK(contains(file.err, "is a file"));
}

TEST_CASE("nothing is written outside the golden folder") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  scratch.write("scenarios/sub/a.json", kUneven);
  fs::create_directories(home + "/elsewhere");
  fs::create_directories(home + "/golden");
  fs::create_directory_symlink(home + "/elsewhere", home + "/golden/sub");
  ProgramResult result = hpsim(home, {"golden", "update"});
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "leads out of the golden folder"));
  CHECK(fs::is_empty(home + "/elsewhere"));
  // A link in place of the golden itself.
  fs::remove(home + "/golden/sub");
  fs::create_directories(home + "/golden/sub");
  scratch.write("elsewhere/victim.txt", "mine");
  fs::create_symlink(home + "/elsewhere/victim.txt", home + "/golden/sub/a.json");
  result = hpsim(home, {"golden", "update"});
  CHECK(result.exit_code == 2);
  CHECK(read(home + "/elsewhere/victim.txt") == "mine");
  // A scenario that is named by a path that goes up and down again.
  fs::remove(home + "/golden/sub/a.json");
  CHECK(
      hpsim(home + "/elsewhere", {"golden", "update", "../scenarios/../scenarios/sub"}).exit_code ==
      0);
  CHECK(fs::exists(home + "/golden/sub/a.json"));
  CHECK(std::distance(fs::directory_iterator(home + "/elsewhere"), {}) == 1);
}

TEST_CASE("files in the golden folder that are no goldens stay and do not count") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  scratch.write("scenarios/a.json", kUneven);
  scratch.write("golden/other.json", "{\"mine\": 1}");
  scratch.write("golden/notes.txt", "notes");
  CHECK(hpsim(home, {"golden", "update"}).exit_code == 0);
  CHECK(hpsim(home, {"golden", "check"}, "1").exit_code == 0);
  CHECK(fs::exists(home + "/golden/other.json"));
  CHECK(fs::exists(home + "/golden/notes.txt"));
}

TEST_CASE("a golden that is damaged, or no file at all") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  scratch.write("scenarios/a.json", kUneven);
  scratch.write("scenarios/b.json", kCeil);
  REQUIRE(hpsim(home, {"golden", "update"}).exit_code == 0);
  const std::string deep(100'000, '[');
  for (const std::string& text : {std::string(), std::string("{\"golden\": 1"), deep,
                                  "{\"golden\": 1, \"name\": " + deep, std::string("\0", 1)}) {
    scratch.write("golden/a.json", text);
    ProgramResult result = hpsim(home, {"golden", "check"});
    CAPTURE(text.substr(0, 40), result.out);
    CHECK(result.exit_code == 4);
    CHECK(contains(result.out, "unreadable  golden/a.json"));
    CHECK(contains(result.out, "1 same, 1 unreadable of 2 scenarios"));
    CHECK(hpsim(home, {"run", "scenarios", "--golden", "golden"}).exit_code == 4);
    CHECK(hpsim(home, {"golden", "update"}).exit_code == 0);
    CHECK(hpsim(home, {"golden", "check"}, "1").exit_code == 0);
  }
  fs::remove(home + "/golden/a.json");
  fs::create_directory(home + "/golden/a.json");
  CHECK(hpsim(home, {"golden", "check"}).exit_code == 4);
  CHECK(hpsim(home, {"golden", "update"}).exit_code != 0);
  fs::remove(home + "/golden/a.json");
  fs::create_symlink("nowhere", home + "/golden/a.json");
  CHECK(hpsim(home, {"golden", "check"}).exit_code == 4);
  fs::remove(home + "/golden/a.json");
  REQUIRE(::mkfifo((home + "/golden/a.json").c_str(), 0600) == 0);
  CHECK_FALSE(hpsim(home, {"golden", "check"}).timed_out);
}

TEST_CASE("what is no golden is neither overwritten nor removed") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  scratch.write("scenarios/a.json", kUneven);
  // The scenario itself in the place of its golden.
  ProgramResult result = hpsim(home, {"golden", "update", "--golden", "scenarios"});
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "is no golden"));
  CHECK(read(home + "/scenarios/a.json") == kUneven);
  for (const char* foreign : {"{\"important\": 1}", "[1]", "{\"golden\": {\"my\": \"config\"}}"}) {
    scratch.write("golden/a.json", foreign);
    scratch.write("golden/config.json", foreign);
    result = hpsim(home, {"golden", "update"});
    CHECK(result.exit_code == 2);
    CHECK(contains(result.err, "golden/a.json: error: is where the golden of scenarios/a.json"));
    CHECK(read(home + "/golden/a.json") == foreign);
    CHECK(read(home + "/golden/config.json") == foreign);
  }
}

TEST_CASE("one scenario that cannot be written leaves the others written and told") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  for (const char* name : {"a", "b", "c"})
    scratch.write(std::string("scenarios/") + name + ".json", kUneven);
  scratch.write("golden/b.json", "[]");
  const ProgramResult result = hpsim(home, {"golden", "update"});
  CHECK(result.exit_code == 2);
  CHECK(contains(result.out, "new         golden/a.json"));
  CHECK(contains(result.out, "new         golden/c.json"));
  CHECK(contains(result.err, "golden/b.json"));
  CHECK(fs::exists(home + "/golden/c.json"));
}

TEST_CASE("scenarios here and elsewhere do not take each other for obsolete") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  scratch.write("scenarios/a.json", kUneven);
  scratch.write("mine/x.json", kUneven);
  scratch.write("mine/tp/b.json", kCeil);
  REQUIRE(hpsim(home, {"golden", "update"}).exit_code == 0);
  REQUIRE(hpsim(home, {"golden", "update", "mine"}).exit_code == 0);
  CHECK(fs::exists(home + "/mine/golden/x.json"));
  CHECK(fs::exists(home + "/mine/golden/tp/b.json"));
  CHECK(hpsim(home, {"golden", "check"}, "1").exit_code == 0);
  CHECK(hpsim(home, {"golden", "check", "mine"}, "1").exit_code == 0);
  CHECK(hpsim(home, {"golden", "check", "scenarios", "mine"}, "1").exit_code == 0);
  CHECK(hpsim(home + "/mine/tp", {"golden", "check", "."}, "1").exit_code == 0);
  CHECK(hpsim("/", {"golden", "check", home + "/mine/tp"}, "1").exit_code == 0);
  // A part of a tree, with goldens elsewhere.
  const ScratchDirectory other;
  const std::string frozen = other.path() + "/x/frozen";
  REQUIRE(hpsim(home, {"golden", "update", "mine", "--golden", frozen}).exit_code == 0);
  const std::vector<std::string> before = tree(other.path());
  CHECK(hpsim(home, {"golden", "update", "mine/tp", "--golden", frozen}).exit_code == 0);
  CHECK(hpsim(home, {"golden", "check", "mine/tp", "mine/tp/b.json", "--golden", frozen}, "1")
            .exit_code == 0);
  CHECK(tree(other.path()) == before);
  // The last golden of a folder goes, the folder stays, and so does what it is in.
  scratch.write("mine/x.json", kFailing);
  fs::remove_all(home + "/mine/tp");
  CHECK(hpsim(home, {"golden", "update", "mine", "--golden", frozen}).exit_code == 1);
  CHECK(fs::exists(frozen));
}

TEST_CASE("what stands beside scenarios keeps out of their golden folder") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  scratch.write("scenarios/a.json", kUneven);
  scratch.write("mine/tp/b.json", kCeil);
  REQUIRE(hpsim(home, {"golden", "update", "."}).exit_code == 0);
  CHECK(fs::exists(home + "/golden/a.json"));
  CHECK(fs::exists(home + "/mine/golden/tp/b.json"));
  for (const char* path : {".", "scenarios", "mine", "mine/tp"})
    CHECK(hpsim(home, {"golden", "check", path}, "1").exit_code == 0);
  // One whose golden would lie among those of others.
  scratch.write("loose.json", kUneven);
  const std::vector<std::string> before = tree(home);
  for (const char* path : {".", "loose.json"}) {
    const ProgramResult result = hpsim(home, {"golden", "update", path});
    CHECK(result.exit_code == 2);
    CHECK(contains(result.err,
                   "loose.json: error: has no place for its golden: golden mirrors "
                   "scenarios\n  help: move it in there"));
    CHECK(tree(home) == before);
  }
  CHECK(hpsim(home, {"golden", "update", "loose.json", "--golden", "frozen"}).exit_code == 0);
}

TEST_CASE("Ctrl-C in an update leaves whole goldens and nothing else") {
  for (const double after_s : {0.0, 0.002, 0.005, 0.01, 0.02, 0.04}) {
    const ScratchDirectory scratch;
    const std::string& home = scratch.path();
    for (int i = 0; i < 40; ++i)
      scratch.write("scenarios/s" + std::to_string(i) + ".json", kUneven);
    const ProgramResult result = run_program(
        {"/usr/bin/env", "-u", "CI", HPSIM_PROGRAM, "golden", "update"},
        {.directory = home, .signal = SIGINT, .signal_after_s = after_s, .timeout_s = 60});
    CHECK_FALSE(result.timed_out);
    if (!fs::exists(home + "/golden")) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(home + "/golden")) {
      CAPTURE(after_s, entry.path());
      CHECK(entry.path().extension() == ".json");
      CHECK(Json::parse(read(entry.path()))["golden"] == 1);
    }
  }
}

TEST_CASE("a scenario named twice runs once") {
  const ScratchDirectory scratch;
  scratch.write("scenarios/a.json", kUneven);
  CHECK(contains(hpsim(scratch.path(), {"golden", "update", "scenarios", "scenarios/a.json",
                                        "./scenarios/../scenarios"})
                     .out,
                 "1 new of 1 scenario"));
}

TEST_CASE("an update without numbers keeps those of the golden") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  scratch.write("scenarios/a.json", kUneven);
  REQUIRE(hpsim(home, {"golden", "update"}).exit_code == 0);
  Json golden = Json::parse(read(home + "/golden/a.json"));
  const Json losses = golden["losses"];
  golden["memory"]["padding"] = 1;
  scratch.write("golden/a.json", golden.dump());
  REQUIRE(hpsim(home, {"golden", "update", "--backend", "symbolic"}).exit_code == 0);
  CHECK(Json::parse(read(home + "/golden/a.json"))["losses"] == losses);
  CHECK(hpsim(home, {"golden", "check"}, "1").exit_code == 0);
}

TEST_CASE("a missing golden is told by run too, and an empty flag is no flag") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  scratch.write("scenarios/a.json", kUneven);
  scratch.write("scenarios/b.json", kUneven);
  ProgramResult result = hpsim(home, {"run", "scenarios", "--golden", "goldne"});
  CHECK(result.exit_code == 0);
  CHECK(contains(result.out, "golden goldne/a.json: there is none"));
  for (const char* flag : {"--golden", "--budget", "--junit"}) {
    result = hpsim(home, {"run", "scenarios", flag, ""});
    CAPTURE(flag);
    CHECK(result.exit_code == 2);
    CHECK(contains(result.err, std::string(flag) + " is empty"));
  }
  // An obsolete golden is named whatever the form, and counted.
  REQUIRE(hpsim(home, {"golden", "update"}).exit_code == 0);
  fs::copy(home + "/golden/a.json", home + "/golden/old.json");
  for (const char* format : {"text", "json", "md"}) {
    result = hpsim(home, {"run", "scenarios", "--golden", "golden", "--format", format});
    CHECK(result.exit_code == 4);
    CHECK(contains(result.err, "golden/old.json: error: this golden mirrors no scenario"));
    CHECK((std::string(format) != "text" || contains(result.out, ", 1 obsolete golden of 2")));
  }
}

TEST_CASE("what a golden holds does not reach the terminal or the runner as it is") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  scratch.write("scenarios/a.json", kUneven);
  REQUIRE(hpsim(home, {"golden", "update"}).exit_code == 0);
  Json golden = Json::parse(read(home + "/golden/a.json"));
  golden["parameters"][0]["dtype"] = "x\n::stop-commands::zzz\n\x1b[2J";
  golden["name"] = std::string(100'000, 'n');
  scratch.write("golden/a.json", golden.dump());
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"golden", "check"},
        std::vector<std::string>{"run", "scenarios", "--golden", "golden", "--annotations"}}) {
    const ProgramResult result = hpsim(home, command);
    CHECK(result.exit_code == 4);
    CHECK_FALSE(contains(result.out, "\n::stop"));
    CHECK_FALSE(contains(result.out, "\x1b"));
    CHECK(result.out.size() < 20'000);
  }
}

TEST_CASE("diff and update in every form") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  scratch.write("scenarios/a.json", kCeil);
  REQUIRE(hpsim(home, {"golden", "update"}).exit_code == 0);
  scratch.write("scenarios/a.json", kBalanced);
  fs::copy(home + "/golden/a.json", home + "/golden/old.json");
  const std::string difference = "weight: rank 2 holds 1 row, golden 2";
  for (const char* action : {"diff", "update"}) {
    const bool updates = std::string(action) == "update";
    for (const char* format : {"md", "json"}) {
      const ScratchDirectory copy;
      fs::copy(home, copy.path(), fs::copy_options::recursive);
      const ProgramResult result = hpsim(copy.path(), {"golden", action, "--format", format});
      CAPTURE(action, format, result.out);
      CHECK(result.exit_code == (updates ? 0 : 4));
      CHECK(contains(result.out, difference));
      CHECK(contains(result.out, "golden/old.json"));
      if (std::string(format) == "json") {
        const Json json = Json::parse(result.out);
        CHECK(json["golden"] == action);
        CHECK(json["scenarios"][0]["result"] == (updates ? "written" : "differs"));
        CHECK(json[updates ? "removed" : "obsolete"].size() == 1);
      } else {
        CHECK(contains(result.out, "failed") == !updates);
      }
    }
  }
}

TEST_CASE("two scenarios with one golden are refused") {
  const ScratchDirectory scratch;
  const ScratchDirectory other;
  scratch.write("a.json", kUneven);
  other.write("a.json", kCeil);
  const ProgramResult result =
      hpsim(scratch.path(), {"golden", "update", scratch.path(), other.path(), "--golden",
                             other.path() + "/../frozen-goldens/x"});
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "has the same golden as"));
}

TEST_CASE("two checks and two updates at once get on") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  for (int i = 0; i < 20; ++i)
    scratch.write("scenarios/s" + std::to_string(i) + ".json", i % 2 == 0 ? kUneven : kCeil);
  for (const char* action : {"update", "check"}) {
    std::vector<ProgramResult> results(2);
    std::vector<std::thread> threads;
    for (ProgramResult& result : results)
      threads.emplace_back([&] { result = hpsim(home, {"golden", action}); });
    for (std::thread& thread : threads)
      thread.join();
    for (const ProgramResult& result : results) {
      CAPTURE(action, result.out, result.err);
      CHECK(result.exit_code == 0);
    }
  }
  CHECK(hpsim(home, {"golden", "check"}, "1").exit_code == 0);
  CHECK(std::distance(fs::directory_iterator(home + "/golden"), {}) == 20);
}

TEST_CASE("run --golden: one go, in every form of output") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  scratch.write("scenarios/a.json", kCeil);
  scratch.write("scenarios/b.json", kUneven);
  REQUIRE(hpsim(home, {"golden", "update"}).exit_code == 0);
  const std::vector<std::string> run = {"run",    "scenarios", "--golden",
                                        "golden", "--backend", "local"};
  CHECK(hpsim(home, run, "1").exit_code == 0);
  scratch.write("scenarios/a.json", kBalanced);
  const std::string difference = "weight: rank 2 holds 1 row, golden 2";
  ProgramResult result = hpsim(home, run);
  CHECK(result.exit_code == 4);
  CHECK(contains(result.out, difference));
  CHECK(contains(result.out, "2 passed, 1 not as the golden says of 2"));  // it ran on
  result = hpsim(home, {"run", "scenarios/a.json", "--golden", "golden", "--backend", "local"});
  CHECK(result.exit_code == 4);
  CHECK(contains(result.out, "✗ golden golden/a.json: "));
  CHECK(contains(result.out, "PASS, golden differs  "));
  CHECK(contains(result.out, difference));
  result = hpsim(home, {"run", "scenarios", "--golden", "golden", "--format", "json"});
  CHECK(result.exit_code == 4);
  const Json reports = Json::parse(result.out);
  CHECK(reports[0]["verdict"] == "pass");
  CHECK(reports[0]["exit_code"] == 4);
  CHECK(reports[0]["golden"]["state"] == "differs");
  CHECK(reports[0]["golden"]["differences"][1]["message"] == difference);
  CHECK(reports[0]["golden"]["differences"][1]["param"] == "weight");
  CHECK(reports[1]["golden"]["state"] == "same");
  for (const char* command : {"run", "golden"}) {
    std::vector<std::string> arguments = {command,  "scenarios", "--golden",
                                          "golden", "--format",  "md"};
    if (std::string(command) == "golden") arguments.insert(arguments.begin() + 1, "check");
    result = hpsim(home, arguments);
    CHECK(result.exit_code == 4);
    CHECK(contains(result.out, "golden/a.json"));
    CHECK(contains(result.out, "rank 2 holds 1 row, golden 2"));
  }
}

TEST_CASE("the JSON of golden check") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  scratch.write("scenarios/a.json", kCeil);
  REQUIRE(hpsim(home, {"golden", "update"}).exit_code == 0);
  scratch.write("scenarios/a.json", kBalanced);
  scratch.write("scenarios/bad.json", kFailing);
  fs::copy(home + "/golden/a.json", home + "/golden/old.json");
  const ProgramResult result = hpsim(home, {"golden", "check", "--format", "json"});
  CHECK(result.exit_code == 1);
  const Json report = Json::parse(result.out);
  CHECK(report["golden"] == "check");
  CHECK(report["exit_code"] == 1);
  CHECK(report["counts"] == Json::parse(R"({"differs": 1, "failed": 1})"));
  CHECK(report["scenarios"][0]["file"] == "scenarios/a.json");
  CHECK(report["scenarios"][0]["golden"]["file"] == "golden/a.json");
  CHECK(report["scenarios"][0]["result"] == "differs");
  CHECK(report["scenarios"][1]["verdict"] == "fail");
  CHECK(report["scenarios"][1]["findings"][0]["code"] == "EXPECT");
  CHECK(report["obsolete"] == Json::parse(R"(["golden/old.json"])"));
}

TEST_CASE("a mesh of more ranks than local takes is checked symbolically") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  scratch.write("scenarios/large.json",
                R"({"hpsim": 1, "mesh": {"shape": [64, 64], "mesh_dim_names": ["rep", "fsdp"]},
                    "parameters": {"weight": [100, 8]}})");
  REQUIRE(hpsim(home, {"golden", "update"}).exit_code == 0);
  const Json golden = Json::parse(read(home + "/golden/large.json"));
  CHECK_FALSE(golden.contains("losses"));
  CHECK(golden["groups"]["fsdp"]["count"] == 64);
  CHECK(hpsim(home, {"golden", "check"}, "1").exit_code == 0);
  CHECK(hpsim(home, {"golden", "check", "--backend", "local"}, "1").exit_code == 2);
}

TEST_CASE("budgets: exit 5, and 4 and 1 before it") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  // 2 all_gather and 1 reduce_scatter of 64 elements of 4 bytes at the larger side.
  scratch.write("scenarios/a.json", kUneven);
  const auto run = [&](const std::string& budget) {
    return hpsim(home, {"run", "scenarios/a.json", "--backend", "symbolic", "--budget", budget});
  };
  CHECK(run("collectives=3,bytes=768").exit_code == 0);
  CHECK(run("collectives=3,bytes=0.75KiB,peak=1GiB").exit_code == 0);
  ProgramResult result = run("collectives=2,bytes=767");
  CHECK(result.exit_code == 5);
  CHECK(contains(result.out, "✗ budget: collectives 3, allowed 2\n"));
  CHECK(contains(result.out, "✗ budget: bytes 768, allowed 767\n"));
  CHECK(run("peak=1").exit_code == 5);
  CHECK(run("peak=1.7GiB,bytes=0.7501KiB").exit_code == 0);  // 768.1 bytes: 768
  for (const char* wrong : {"", "collectives", "collectives=", "collectives=x", "collectives=1.5",
                            "collectives=-1", "collectives=1KiB", "peaks=3", "peak=1,peak=2",
                            "peak=1QiB", "bytes=1e999", "bytes=nan", ",", "peak=1,"}) {
    CAPTURE(wrong);
    result = run(wrong);
    CHECK(result.exit_code == 2);
    CHECK(contains(result.err, "--budget"));
  }
  result = run("peaks=3,bytes=x");
  CHECK(contains(result.err, "did you mean \"peak\"?"));
  CHECK(contains(result.err, "bytes is \"x\""));

  const Json json = Json::parse(hpsim(home, {"run", "scenarios/a.json", "--backend", "symbolic",
                                             "--budget", "collectives=2", "--format", "json"})
                                    .out);
  CHECK(json["budget"] ==
        Json::parse(R"([{"name": "collectives", "limit": 2, "got": 3, "verdict": "fail"}])"));
  CHECK(json["exit_code"] == 5);
  // A golden that is missing is graver, a run that fails graver still.
  const std::vector<std::string> check = {"golden", "check", "--budget", "collectives=2"};
  CHECK(hpsim(home, check).exit_code == 5);
  CHECK(hpsim(home, check, "1").exit_code == 4);
  scratch.write("scenarios/a.json", kFailing);
  CHECK(hpsim(home, check, "1").exit_code == 1);
}

TEST_CASE("JUnit and annotations beside any output") {
  const ScratchDirectory scratch;
  const std::string& home = scratch.path();
  scratch.write("scenarios/a.json", kFailing);
  const std::string junit = home + "/report.xml";
  ProgramResult result = hpsim(
      home, {"run", "scenarios", "--backend", "local", "--junit", "report.xml", "--annotations"});
  CHECK(result.exit_code == 1);
  CHECK(contains(result.out, "::error file=scenarios/a.json,line=2,"));
  CHECK(contains(read(junit), "<testsuites"));
  CHECK(contains(read(junit), "name=\"expect\""));
  result =
      hpsim(home, {"run", "scenarios", "--backend", "local", "--annotations", "--format", "json"});
  CHECK(Json::parse(result.out).is_object());
  CHECK(contains(result.err, "::error file=scenarios/a.json,line=2,"));
  // Nothing is left of a report that could not be written, and that is seen before anything runs.
  for (const std::string& where : {home + "/no/such/directory.xml", home + "/scenarios"}) {
    result = hpsim(home, {"run", "scenarios", "--backend", "local", "--junit", where});
    CHECK(result.exit_code == 7);
    CHECK(result.out.empty());
    CHECK(contains(result.err, "cannot be written"));
  }
  CHECK(hpsim(home, {"run", "scenarios", "--backend", "local", "--junit", "/dev/full"}).exit_code ==
        7);
  CHECK(fs::exists("/dev/full"));
  // Files that are no scenarios are told in both.
  scratch.write("scenarios/a.json", "{\"hpsim\": 2}");
  result = hpsim(home, {"run", "scenarios", "--junit", "report.xml", "--annotations"});
  CHECK(result.exit_code == 3);
  CHECK(contains(result.out, "::error file=scenarios/a.json,line=1,"));
  CHECK(contains(read(junit), "<error"));
  for (const fs::directory_entry& entry : fs::directory_iterator(home))
    CHECK(entry.path().extension() != ".tmp");
}

TEST_CASE("mistakes on the command line of golden") {
  const ScratchDirectory scratch;
  scratch.write("scenarios/a.json", kUneven);
  const auto error = [&](std::vector<std::string> arguments) {
    const ProgramResult result = hpsim(scratch.path(), std::move(arguments));
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    return result.err;
  };
  CHECK(contains(error({"golden"}), "subcommand"));
  CHECK(contains(error({"golden", "chekc"}), "did you mean \"check\"?"));
  CHECK(contains(error({"golden", "scenarios"}), "it takes check, update, diff"));
  CHECK(contains(error({"golden", "check", "--bakend", "local"}), "did you mean --backend?"));
  CHECK(contains(error({"golden", "check", "--nothing"}), "hpsim golden check --help"));
  CHECK(contains(error({"golden", "check", "--backend", "nccl"}),
                 "it takes auto, symbolic, local, gloo"));
  CHECK(contains(error({"golden", "check", "--format", "xml"}), "it takes text, json, md"));
  CHECK(contains(error({"golden", "check", "nowhere"}), "no such file or directory"));
  CHECK(contains(error({"golden", "check", "--timeout", "0"}), "--timeout"));
  CHECK(contains(hpsim(scratch.path(), {"golden", "check", "--help"}).out, "--junit"));
}

}  // namespace
}  // namespace hpsim
