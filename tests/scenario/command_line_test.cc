#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/catch.h"
#include "support/program.h"
#include "support/scratch_directory.h"

namespace hpsim {
namespace {

namespace fs = std::filesystem;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// As it stands in the scenario format.
constexpr const char* kSmallest =
    R"json({ "hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]}, "parameters": {"weight": [7, 8]} })json";

constexpr const char* kFailing = R"json({
  "hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]}, "parameters": {"weight": [7, 8]},
  "expect": {"counts": {"all_gather": 3}}
})json";

TEST_CASE("the smallest scenario of the format passes, on Gloo by default") {
  const ScratchDirectory scratch;
  const ProgramResult result =
      run_program({HPSIM_PROGRAM, "run", scratch.write("smallest.json", kSmallest)});
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  CHECK(contains(result.out, "gloo"));
  CHECK(contains(result.out, "2 2 2 1"));
  CHECK(contains(result.out, "PASS"));
}

TEST_CASE("wrong usage exits with 2 and says the way out") {
  struct Row {
    std::vector<std::string> arguments;
    const char* err;
  };
  const std::vector<Row> rows = {
      {{}, "error: no subcommand given\n  help: hpsim run FILE"},
      {{"rum"}, "error: no subcommand is named \"rum\"\n  help: did you mean \"run\"?\n"},
      {{"zzzzzz"},
       "help: it takes run, golden, plan, explain, faults, mutate, shrink, list, schema, "
       "exit-codes\n"},
      {{"scenarios"}, "help: hpsim run scenarios\n"},
      {{"run"}, "error: paths is required"},
      {{"run", "no/such/file.json"}, "no/such/file.json: error: no such file or directory\n"},
      {{"run", "scenarios/fsdp", "no/such"}, "no/such: error: no such file or directory\n"},
      {{"run", "cmake"}, "cmake: error: holds no scenario\n"},
      {{"run", "scenarios", "--backend", "glo"},
       "error: --backend does not know \"glo\"\n  help: did you mean \"gloo\"? it takes symbolic, "
       "local, gloo, nccl\n"},
      {{"run", "scenarios", "--format", "yaml"}, "it takes text, json, md\n"},
      {{"run", "scenarios", "--color", "x"}, "it takes auto, always, never\n"},
      {{"run", "scenarios", "--bakend", "gloo"}, "help: did you mean --backend?\n"},
      {{"run", "scenarios", "--timeout", "soon"}, "--timeout"},
      {{"run", "scenarios", "--timeout", "0"}, "--timeout is 0 s, but must be more than 0"},
      {{"run", "scenarios", "--timeout", "nan"}, "--timeout"},
      {{"run", "scenarios", "--timeout"}, "--timeout"},
      {{"list", "--bogus"}, "--bogus"},
      {{"schema", "extra"}, "extra"},
  };
  for (const Row& row : rows) {
    std::vector<std::string> command = {HPSIM_PROGRAM};
    command.insert(command.end(), row.arguments.begin(), row.arguments.end());
    const ProgramResult result = run_program(command);
    CAPTURE(row.err, result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(contains(result.err, "error: "));
    CHECK(contains(result.err, row.err));
  }
}

TEST_CASE("NCCL is known and missing") {
  const ProgramResult result =
      run_program({HPSIM_PROGRAM, "run", "scenarios", "--backend", "nccl"});
  CHECK(result.exit_code == 7);
  CHECK(contains(result.err, "NCCL"));
}

TEST_CASE("more than 64 ranks on gloo is a usage error that names the others") {
  const ScratchDirectory scratch;
  const std::string file = scratch.write("wide.json", R"json({"hpsim": 1,
      "mesh": {"shape": [65], "mesh_dim_names": ["fsdp"]}, "parameters": {"w": [7, 8]}})json");
  const ProgramResult gloo = run_program({HPSIM_PROGRAM, "run", file});
  CAPTURE(gloo.err);
  CHECK(gloo.exit_code == 2);
  CHECK(contains(gloo.err, "local"));
  CHECK(contains(gloo.err, "symbolic"));
  for (const char* backend : {"local", "symbolic"}) {
    CHECK(run_program({HPSIM_PROGRAM, "run", file, "--backend", backend}).exit_code == 0);
  }
}

TEST_CASE("experts that rounding may swap are refused by place, position and number") {
  // Twelve rows of two numbers of -1, 0, 1: some are alike, and so are their probabilities.
  const ScratchDirectory scratch;
  const std::string file = scratch.write("alike.json", R"json({
  "hpsim": 1, "mesh": {"shape": [2], "mesh_dim_names": ["fsdp"]},
  "model": [{"name": "norm", "type": "rms_norm", "dim": 2},
    {"name": "moe", "type": "moe", "dim": 2, "hidden": 3, "experts": 12, "top_k": 3}],
  "data": {"sample_shape": [2], "init": {"kind": "integer", "max": 1}}
})json");
  const ProgramResult result = run_program({HPSIM_PROGRAM, "run", file, "--backend", "local"});
  CHECK(result.exit_code == 3);
  CHECK(contains(result.err, file + ":4:5: /model/1: error: NEAR_TIE: at step 0 \"moe.experts\" "));
  CHECK(contains(result.err, "help: take another data.seed"));
  // Nothing is computed there, and nothing is chosen.
  CHECK(run_program({HPSIM_PROGRAM, "run", file, "--backend", "symbolic"}).exit_code == 0);
}

TEST_CASE("a run stops at the first that does not pass, or keeps going") {
  const ScratchDirectory scratch;
  scratch.write("a.json", kSmallest);
  scratch.write("b.json", kFailing);
  scratch.write("c.json", kSmallest);
  scratch.write("invalid/d.json", "{ \"hpsim\": 2 }");
  scratch.write("notes.json", "{\"a\": {\"hpsim\": 1}}");
  const std::vector<std::string> command = {HPSIM_PROGRAM, "run", scratch.path(), "--backend",
                                            "local"};
  const ProgramResult stopped = run_program(command);
  CAPTURE(stopped.out);
  CHECK(stopped.exit_code == 1);
  CHECK(contains(stopped.out, "1 passed, 1 failed, 1 not run of 3"));
  CHECK(contains(stopped.out, "✗ EXPECT"));
  CHECK(contains(stopped.out, "/expect/counts/all_gather: expected 3, got 2 in step 0"));

  std::vector<std::string> all = command;
  all.emplace_back("--keep-going");
  const ProgramResult kept = run_program(all);
  CHECK(kept.exit_code == 1);
  CHECK(contains(kept.out, "2 passed, 1 failed of 3"));

  all.insert(all.end(), {"--format", "json"});
  const nlohmann::json reports = nlohmann::json::parse(run_program(all).out);
  REQUIRE(reports.size() == 3);
  CHECK(reports[1].at("verdict") == "fail");
  CHECK(reports[1].at("findings")[0].at("code") == "EXPECT");
  CHECK(reports[1].at("findings")[0].at("pointer") == "/expect/counts/all_gather");

  all.back() = "md";
  CHECK(contains(run_program(all).out, "**EXPECT**"));
}

TEST_CASE("a broken file in a directory is not left out in silence") {
  const ScratchDirectory scratch;
  scratch.write("a.json", kSmallest);
  scratch.write("b.json", "{ \"hpsim\": 1, ");
  const ProgramResult result = run_program({HPSIM_PROGRAM, "run", scratch.path()});
  CHECK(result.exit_code == 3);
  CHECK(contains(result.err, "b.json:"));
}

TEST_CASE("what is no file is refused, and nobody is waited for without end") {
  const ScratchDirectory scratch;
  const std::string pipe = scratch.path() + "/pipe.json";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  struct Row {
    std::string path;
    const char* err;
  };
  const std::vector<Row> rows = {
      {"/dev/zero", "/dev/zero: error: is a device, not a file"},
      {"/dev/urandom", "is a device, not a file"},
      {"/proc/self/mem", "cannot be read: "},
      {scratch.path(), "holds no scenario"},  // although a pipe in it is called *.json
      {pipe, "nothing came through this pipe for 10 s"},
  };
  for (const Row& row : rows) {
    const ProgramResult result = run_program({HPSIM_PROGRAM, "run", row.path}, {.timeout_s = 60});
    CAPTURE(row.path, result.err);
    CHECK(result.exit_code == 2);
    CHECK(contains(result.err, row.err));
  }
  // With somebody to write, a pipe is as good as a file.
  std::thread writer([&] { std::ofstream(pipe) << kSmallest; });
  const ProgramResult piped = run_program({HPSIM_PROGRAM, "run", pipe}, {.timeout_s = 60});
  writer.join();
  CHECK(piped.exit_code == 0);
}

TEST_CASE("a file without permission is refused") {
  if (::geteuid() == 0) return;  // may read everything
  const ScratchDirectory scratch;
  const std::string file = scratch.write("secret.json", kSmallest);
  REQUIRE(::chmod(file.c_str(), 0) == 0);
  const ProgramResult result = run_program({HPSIM_PROGRAM, "run", file});
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "cannot be read: Permission denied"));
}

TEST_CASE("a file that cannot be read is an error, whatever it is") {
  const ScratchDirectory scratch;
  std::filesystem::create_symlink("nowhere", scratch.path() + "/dangling.json");
  for (const std::string& path :
       {scratch.path() + "/dangling.json", std::string("/proc/self/mem")}) {
    const ProgramResult result = run_program({HPSIM_PROGRAM, "run", path});
    CAPTURE(path, result.err);
    CHECK(result.exit_code == 2);
    CHECK(contains(result.err, path));
  }
}

TEST_CASE("an inexact scenario in exact mode is refused with its file") {
  const ScratchDirectory scratch;
  const std::string file = scratch.write("long.json", R"json({"hpsim": 1,
      "mesh": {"shape": [2], "mesh_dim_names": ["fsdp"]},
      "parameters": {"w": [7, 8]}, "numerics": {"mode": "exact"},
      "training": {"steps": 3, "optimizer": {"name": "sgd", "lr": 1.52587890625e-05,
                   "round_to": 2.3283064365386963e-10}}})json");
  const ProgramResult result = run_program({HPSIM_PROGRAM, "run", file, "--backend", "local"});
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 3);
  CHECK(contains(result.err, file + ":3:57: /numerics/mode: error: "));
}

TEST_CASE("list, schema, version, help and exit codes") {
  const ProgramResult list = run_program({HPSIM_PROGRAM, "list"});
  CHECK(list.exit_code == 0);
  CHECK(contains(list.out, "a2_uneven_7x8_over_4"));
  CHECK(contains(list.out, "scenarios/fsdp/a2_uneven_7x8_over_4.json"));
  CHECK_FALSE(contains(list.out, "scenarios/invalid"));

  const ProgramResult schema = run_program({HPSIM_PROGRAM, "schema"});
  CHECK(schema.exit_code == 0);
  CHECK(nlohmann::json::parse(schema.out).contains("$schema"));

  CHECK(run_program({HPSIM_PROGRAM, "--version"}).out == "hpsim " HPSIM_VERSION "\n");
  CHECK(contains(run_program({HPSIM_PROGRAM, "--help"}).out, "run"));
  const ProgramResult help = run_program({HPSIM_PROGRAM, "run", "--help"});
  CHECK(help.exit_code == 0);
  CHECK(contains(help.out, "--keep-going"));
  CHECK(contains(run_program({HPSIM_PROGRAM, "exit-codes"}).out, "130  interrupted"));
}

TEST_CASE("colour only if asked for or on a terminal") {
  const std::vector<std::string> command = {HPSIM_PROGRAM, "run", "scenarios/fsdp/a9_one_rank.json",
                                            "--backend", "local"};
  CHECK_FALSE(contains(run_program(command).out, "\x1b["));
  std::vector<std::string> colored = command;
  colored.insert(colored.end(), {"--color", "always"});
  CHECK(contains(run_program(colored).out, "\x1b["));
}

}  // namespace
}  // namespace hpsim
