#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/program.h"
#include "support/scratch_directory.h"

namespace hpsim {
namespace {

#ifdef HPSIM_SANITIZED
// Their shadows take terabytes of addresses, and they are an order of magnitude slower.
constexpr std::int64_t kMaxMemoryBytes = 0;
constexpr int kScale = 16;
#else
constexpr std::int64_t kMaxMemoryBytes = std::int64_t{2} << 30;
constexpr int kScale = 1;
#endif

constexpr std::size_t kFileLimit = std::size_t{16} << 20;
constexpr int kMany = 100'000 / kScale;
/// Of what only ends if something is wrong.
constexpr double kTimeoutS = 120;

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// Runs a file within the limits of this test. Whatever the outcome, it is said in bounded words of
/// the program's own.
ProgramResult run_file(const std::string& path, std::vector<std::string> more = {}) {
  std::vector<std::string> command = {HPSIM_PROGRAM, "run", path, "--backend", "symbolic"};
  command.insert(command.end(), more.begin(), more.end());
  ProgramResult result =
      run_program(command, {.timeout_s = kTimeoutS, .max_memory_bytes = kMaxMemoryBytes});
  CAPTURE(result.exit_code, result.err.substr(0, 1000), result.out.substr(0, 1000));
  CHECK_FALSE(result.timed_out);
  CHECK_FALSE(contains(result.err, "json.exception"));
  CHECK_FALSE(contains(result.err, "internal error"));
  CHECK(result.err.size() < (std::size_t{1} << 20));
  CHECK(result.out.size() < (std::size_t{1} << 20));
  CHECK((result.exit_code <= 1) == result.err.empty());
  return result;
}

ProgramResult run_text(std::string_view text, std::vector<std::string> more = {}) {
  const ScratchDirectory scratch;
  return run_file(scratch.write("limits.json", std::string(text)), std::move(more));
}

std::string scenario(std::string_view parameters, std::string_view more = "",
                     std::string_view shape = "[4]", std::string_view names = R"(["fsdp"])") {
  return fmt::format(R"({{"hpsim": 1, "mesh": {{"shape": {}, "mesh_dim_names": {}}}, )"
                     R"("parameters": {}{}}})",
                     shape, names, parameters, more);
}

std::string smallest(std::string_view more = "") {
  return scenario(R"({"w": [7, 8]})", more);
}

/// `count` times what `make` gives, with commas, in the brackets.
std::string list_of(int count, char open, char close, const std::function<std::string(int)>& make) {
  std::string list(1, open);
  for (int i = 0; i < count; ++i) {
    if (i > 0) list += ',';
    list += make(i);
  }
  return list + close;
}

/// The text with as much of `filler` before its last brace as fits a file of `size` bytes.
std::string filled(std::string text, std::string_view filler, std::size_t size) {
  text.pop_back();
  while (text.size() + filler.size() < size)
    text += filler;
  return text + '}';
}

struct Refusal {
  std::string text;
  std::string err;
};

void check_refused(const std::vector<Refusal>& rows) {
  for (const Refusal& row : rows) {
    const ProgramResult result = run_text(row.text);
    CAPTURE(row.err, row.text.substr(0, 300), result.err.substr(0, 1000));
    CHECK(result.exit_code == 3);
    CHECK(contains(result.err, row.err));
    CHECK(contains(result.err, "  help: "));
  }
}

TEST_CASE("a mesh of a thousand million ranks passes where no rank is a process") {
  const std::string wide = scenario(R"({"w": [7, 8]})", "", "[1000000000]");
  const std::string tall =
      scenario(R"({"w": [7, 8]})", "", "[1000, 1000000]", R"(["rep", "fsdp"])");
  for (const std::string& text : {wide, tall}) {
    const ProgramResult result = run_text(text);
    CHECK(result.exit_code == 0);
    CHECK(contains(result.out, "1,000,000,000 ranks"));
    for (const char* backend : {"local", "gloo"}) {
      CHECK(run_text(text, {"--backend", backend}).exit_code == 2);
    }
  }
}

TEST_CASE("what does not fit 64 bits is refused") {
  const auto on_mesh = [](const char* shape, const char* names) {
    return scenario(R"({"w": [7, 8]})", "", shape, names);
  };
  check_refused({
      {on_mesh("[4294967296, 4294967296]", R"(["rep", "fsdp"])"), "4294967296 * 4294967296 ranks"},
      {on_mesh("[9223372036854775808]", R"(["fsdp"])"), "9223372036854775808, beyond 64 bits"},
      {on_mesh("[1e30]", R"(["fsdp"])"), "1e+30, beyond 64 bits"},
      {on_mesh("[]", "[]"), "the mesh has no dims"},
      {scenario(R"({"w": [4294967296, 4294967296]})"), "(4294967296, 4294967296)"},
      {scenario(R"({"w": [9223372036854775807, 1]})"), "2^53"},
      {scenario(R"({"w": [-9223372036854775809]})"), "beyond 64 bits"},
      // 2^61 + 1 elements fit, their bytes do not.
      {scenario(R"({"w": [1, 2305843009213693953]})",
                R"(, "fully_shard": {"shard_placement": {"w": 1}})"),
       "2305843009213693953 long, does not divide into 4 shards"},
      {smallest(R"(, "data": {"seed": 18446744073709551616})"), "0..2^64-1"},
      {smallest(R"(, "training": {"steps": 4611686018427387904})"), "4611686018427387904 steps"},
      {smallest(R"(, "training": {"global_batch": 9223372036854775804})"), "9223372036854775804"},
      {smallest(R"(, "training": {"global_batch": 9223372036854775807})"),
       "9223372036854775807 samples do not divide evenly over 4 data ranks: 3 remain"},
  });
}

TEST_CASE("numbers that are none are refused, and the largest are taken") {
  for (const char* number : {"NaN", "nan", "Infinity", "-Infinity", "1e999", "-1e999", "1e309",
                             "0x10", "1_000", "+1", ".5"}) {
    const ProgramResult result = run_text(smallest(
        fmt::format(R"(, "training": {{"optimizer": {{"name": "sgd", "lr": {}}}}})", number)));
    CAPTURE(number, result.err);
    CHECK(result.exit_code == 3);
    CHECK(contains(result.err, "limits.json:1:"));
    CHECK(contains(result.err, "  help: "));
  }
  for (const char* number : {"1e308", "1e-400", "5e-324", "-0.0"}) {
    const std::string text = smallest(
        fmt::format(R"(, "training": {{"optimizer": {{"name": "sgd", "lr": {}}}}})", number));
    CAPTURE(number);
    CHECK(run_text(text).exit_code == 0);
  }
  // The weights overflow, which is found.
  const ScratchDirectory scratch;
  const std::string file = scratch.write(
      "lr.json", smallest(R"(, "training": {"optimizer": {"name": "sgd", "lr": 1e308}})"));
  CHECK(run_program({HPSIM_PROGRAM, "run", file, "--backend", "local"}).exit_code == 1);
}

TEST_CASE("nesting is counted before anything is parsed") {
  const auto nested = [](std::size_t depth) {
    // Two levels are those of the document and of `expect`.
    return smallest(R"(, "expect": {"x": )" + std::string(depth - 2, '[') +
                    std::string(depth - 2, ']') + "}");
  };
  CHECK(run_text(nested(64)).exit_code != 3);
  for (const std::size_t depth : {std::size_t{65}, std::size_t{100'000}}) {
    const ProgramResult result = run_text(nested(depth));
    CHECK(result.exit_code == 3);
    CHECK(contains(result.err, "nested 65 deep, the limit is 64"));
  }
}

TEST_CASE("files are read up to 16 MiB") {
  std::string text = smallest();
  text.resize(kFileLimit - 1, ' ');
  CHECK(run_text(text).exit_code == 0);
  text += '\n';
  CHECK(run_text(text).exit_code == 0);
  text += ' ';
  const ProgramResult large = run_text(text);
  CHECK(large.exit_code == 3);
  CHECK(contains(large.err, "16777217 bytes, more than the limit of 16777216"));
}

TEST_CASE("a file may be full of one thing") {
  constexpr std::size_t kSize = kFileLimit / kScale;
  const std::string description = R"(, "description": ")" + std::string(kSize - 200, 'a') + "\"";
  CHECK(run_text(smallest(description)).exit_code == 0);
  CHECK(run_text(filled(smallest("\n"), "//\n", kSize)).exit_code == 0);
  check_refused({
      {std::string(kSize, '\n'), "the file is empty"},
      {std::string(kSize, '\0'), "limits.json:1:1: error: the file holds a NUL byte"},
      {"\"" + std::string(kSize - 1, '\\'), "forbidden character after backslash"},
      {"[1" + std::string(kSize - 3, '0') + "]", "is too large"},
      {"[1e" + std::string(kSize - 4, '9') + "]", "is too large"},
      {filled(smallest(), R"(, "a": 0)", kSize), "more duplicate keys are not shown"},
  });
}

TEST_CASE("a thousand mistakes are told, and the number of the others") {
  const auto number = [](int i) { return std::to_string(i); };
  constexpr int kMillion = 10 * kMany;
  const auto more = [](int count) {
    return fmt::format("{} more mistakes are not shown", count - 1000);
  };
  const std::string unknown_keys =
      list_of(kMillion, ',', '}', [](int i) { return fmt::format(R"("x{}": 0)", i); });
  std::string with_unknown_keys = smallest();
  with_unknown_keys.pop_back();
  const std::string long_name(kFileLimit / 2 / kScale, 'n');
  const std::string zeros = list_of(kMillion, '[', ']', [](int) { return "0"; });
  check_refused({
      {with_unknown_keys + unknown_keys, more(kMillion)},
      {scenario(list_of(kMany, '{', '}', [](int i) { return fmt::format(R"("p{}": [0])", i); })),
       more(kMany)},
      // Neither is the name said again for each element.
      {scenario(fmt::format(R"({{"{}": {}}})", long_name, zeros)), more(kMillion)},
      {scenario(R"({"w": [7, 8]})", "", "[4]",
                list_of(kMillion, '[', ']', [](int i) { return fmt::format(R"("d{}")", i); })),
       fmt::format("{} names, but shape has 1 dims", kMillion)},
      {scenario(R"({"w": [7, 8]})", "", list_of(kMillion, '[', ']', [](int) { return "1"; })),
       fmt::format("mesh of {} dims", kMillion)},
      {scenario(fmt::format(R"({{"w": {}}})", list_of(65, '[', ']', number))), "w"},
  });
}

TEST_CASE("a hundred thousand parameters or modules are run") {
  const std::string parameters =
      list_of(kMany, '{', '}', [](int i) { return fmt::format(R"("p{}": [7, 8])", i); });
  const auto patterns = [](const char* format) {
    return list_of(kMany, '[', ']', [&](int i) { return fmt::format(fmt::runtime(format), i); });
  };
  const auto with = [&](const char* key, const std::string& list) {
    return scenario(parameters, fmt::format(R"(, "fully_shard": {{"{}": {}}})", key, list));
  };
  CHECK(run_text(scenario(parameters)).exit_code == 0);
  CHECK(run_text(with("units", patterns(R"("p{}")"))).exit_code == 0);
  CHECK(run_text(with("replicate_params", patterns(R"("p{}")"))).exit_code == 0);
  check_refused({{with("units", patterns(R"("q{}")")), "more mistakes are not shown"}});

  const auto chain = [](const char* module) {
    const std::string modules = list_of(kMany, '[', ']', [&](int i) {
      return i == 0 ? R"({"type": "linear", "in_features": 2, "out_features": 2})" : module;
    });
    return fmt::format(R"({{"hpsim": 1, "mesh": {{"shape": [4], "mesh_dim_names": ["fsdp"]}}, )"
                       R"("model": {}}})",
                       modules);
  };
  CHECK(run_text(chain(R"({"type": "linear", "in_features": 2, "out_features": 2})")).exit_code ==
        0);
  CHECK(run_text(chain(R"({"type": "relu"})")).exit_code == 0);
}

TEST_CASE("patterns that would be compared for hours are refused") {
  constexpr int kNames = 300'000;  // for sanitizers too: what is refused is the product
  const std::string parameters =
      list_of(kNames, '{', '}', [](int i) { return fmt::format(R"("p{}": [1])", i); });
  const std::string stars =
      list_of(kNames, '[', ']', [](int i) { return fmt::format(R"("*{}")", i); });
  std::string long_pattern;
  while (long_pattern.size() < kFileLimit / 4)
    long_pattern += "a*";
  check_refused({
      {scenario(parameters, fmt::format(R"(, "fully_shard": {{"units": {}}})", stars)),
       "comparing the patterns up to this one with 300000 names takes too long"},
      {scenario(fmt::format(R"({{"{}": [1]}})", std::string(kFileLimit / 4, 'a')),
                fmt::format(R"(, "fully_shard": {{"replicate_params": ["{}"]}})", long_pattern)),
       "comparing the patterns up to this one with 1 names takes too long"},
  });
}

TEST_CASE("names may be of any script and length") {
  const std::vector<std::string> names = {"权重.偏置",
                                          "وزن",
                                          "😀👩‍👩‍👧",
                                          "e\xCC\x81",
                                          "вес",
                                          "q\"\\/~",
                                          std::string(std::size_t{1} << 16, 'n')};
  nlohmann::ordered_json parameters;
  for (const std::string& name : names)
    parameters[name] = {7, 8};
  const std::string text = scenario(parameters.dump(), R"(, "description": "权重 😀")");
  CHECK(run_text(text).exit_code == 0);
  const auto report = nlohmann::json::parse(run_text(text, {"--format", "json"}).out);
  REQUIRE(report.at("parameters").size() == names.size());
  for (std::size_t i = 0; i < names.size(); ++i)
    CHECK((report.at("parameters")[i].at("name") == names[i]));
  // The whole of a name of 1 MiB would be a long report.
  const std::string long_name =
      scenario(fmt::format(R"({{"{}": [7, 8]}})", std::string(std::size_t{1} << 20, 'n')));
  CHECK(run_text(long_name).exit_code == 0);
  check_refused({{scenario(fmt::format(R"({{"{}": [0]}})", std::string(std::size_t{1} << 20, 'n'))),
                  "/parameters/nnnnnnnnn"}});
}

TEST_CASE("names that would not print are refused, and do not print") {
  struct Row {
    const char* written;
    const char* err;
  };
  const Row rows[] = {
      {R"(a\u0000b)", "U+0000"},         {R"(\u001b[31mred)", "U+001B"},
      {R"(two\nlines)", "U+000A"},       {R"(\u007f)", "U+007F"},
      {R"(\u009b31m)", "U+009B"},        {R"(\ud800)", "surrogate"},
      {R"(\udc00x)", "surrogate"},       {"\xFF", "ill-formed UTF-8"},
      {"\xC0\xAF", "ill-formed UTF-8"},  {"\xED\xA0\x80", "ill-formed UTF-8"},
      {"\x1B[31m", "control character"}, {"a\nb", "not closed on its line"},
      {R"(\u12)", "invalid string"},
  };
  for (const Row& row : rows) {
    const std::string name = fmt::format("\"{}\"", row.written);
    for (const std::string& text :
         {scenario(fmt::format("{{{}: [7, 8]}}", name)), smallest(", \"name\": " + name),
          smallest(", \"description\": " + name),
          scenario(R"({"w": [7, 8]})", "", "[4]", fmt::format("[{}]", name))}) {
      const ProgramResult result = run_text(text);
      CAPTURE(row.err, text, result.err);
      CHECK(result.exit_code == 3);
      CHECK(contains(result.err, row.err));
      for (const char c : {'\0', '\x1B', '\x7F', '\r'})
        CHECK(result.err.find(c) == std::string::npos);
      CHECK_FALSE(contains(result.err, "\xC2\x9B"));
    }
  }
}

TEST_CASE("a byte order mark and CRLF change nothing, and lines are still counted") {
  std::string lines = smallest();
  for (std::size_t at = lines.find(", "); at != std::string::npos; at = lines.find(", ", at + 2))
    lines.replace(at, 2, ",\r\n");
  CHECK(run_text("\xEF\xBB\xBF" + lines).exit_code == 0);
  check_refused({
      {"\xEF\xBB\xBF{\r\n\"hpsim\": 1,\r\n \"mesh\": 3}\r\n", "limits.json:3:10: /mesh: "},
      {"\xEF\xBB\xBF", "the file is empty"},
      {"\xFE\xFF{}", "limits.json:1:1: "},
  });
}

TEST_CASE("parameters cut in many ways are refused together") {
  // 100 times 2^16 coordinates, of which the last hold less; and 200 times 10^5 units.
  const std::string rows =
      list_of(100, '{', '}', [](int i) { return fmt::format(R"("p{}": [65537, 8])", i); });
  const std::string uneven = R"json(, "placements": {"**": {"tp": "Shard(0)"}},
      "fully_shard": {"shard_placement": {"**": 1}})json";
  const std::string cells =
      list_of(200, '{', '}', [](int i) { return fmt::format(R"("p{}": [50000])", i); });
  const std::string units = list_of(100'000, '[', ']', [](int i) { return std::to_string(i % 2); });
  check_refused({
      {scenario(rows, uneven, "[4, 65536]", R"(["fsdp", "tp"])"), "parameters are cut unevenly"},
      {scenario(cells,
                fmt::format(R"(, "fully_shard": {{"shard_placement": {{"**": {{"dims": [0], )"
                            R"("local_units": {}}}}}}})",
                            units),
                "[100000]"),
       "more than 16777216 units"},
  });
}

TEST_CASE("objects of expect have as many keys as a report may have") {
  const auto with_keys = [](int count) {
    const auto key = [](int i) { return fmt::format(R"("x{}": 0)", i); };
    return smallest(R"(, "expect": )" + list_of(count, '{', '}', key));
  };
  CHECK(run_text(with_keys(1000)).exit_code == 1);
  check_refused({{with_keys(10 * kMany), "keys in one object"}});
}

TEST_CASE("a cut into many runs of units is verified in bounded time") {
  const std::string units = list_of(100'000, '[', ']', [](int i) { return std::to_string(i % 2); });
  CHECK(run_text(scenario(R"({"w": [50000]})",
                          fmt::format(R"(, "fully_shard": {{"shard_placement": {{"w": {{)"
                                      R"("dims": [0], "local_units": {}}}}}}})",
                                      units),
                          "[100000]"))
            .exit_code == 0);
}

TEST_CASE("steps beyond all memory are refused before they fill it") {
  check_refused({{scenario(R"({"w": [1]})",
                           R"(, "training": {"steps": 1125899906842624, "global_batch": 4})"),
                  "1125899906842624 steps of a model with 1 parameters and modules; the limit"}});
}

}  // namespace
}  // namespace hpsim
