#include <array>
#include <string_view>

#include "base/check.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/glob.h"
#include "base/interval.h"
#include "base/suggest.h"
#include "base/units.h"
#include "support/catch.h"

namespace hpsim {
namespace {

std::vector<std::int64_t> lengths(std::int64_t extent, std::int64_t count) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < count; ++i)
    result.push_back(shard_interval(extent, {i, count}).length());
  return result;
}

using Lengths = std::vector<std::int64_t>;

TEST_CASE("shard_interval, balanced: lengths differ by at most one") {
  using Intervals = std::vector<Interval>;
  const auto balanced = [](std::int64_t extent, std::int64_t count) {
    Intervals result;
    for (std::int64_t i = 0; i < count; ++i)
      result.push_back(shard_interval(extent, {i, count}, Chunking::Balanced));
    return result;
  };
  CHECK(balanced(7, 4) == Intervals{{0, 2}, {2, 4}, {4, 6}, {6, 7}});
  CHECK(balanced(6, 4) == Intervals{{0, 2}, {2, 4}, {4, 5}, {5, 6}});
  CHECK(balanced(5, 4) == Intervals{{0, 2}, {2, 3}, {3, 4}, {4, 5}});
  CHECK(balanced(9, 4) == Intervals{{0, 3}, {3, 5}, {5, 7}, {7, 9}});
  CHECK(balanced(10, 4) == Intervals{{0, 3}, {3, 6}, {6, 8}, {8, 10}});
  CHECK(balanced(2, 4) == Intervals{{0, 1}, {1, 2}, {2, 2}, {2, 2}});
  CHECK(balanced(0, 2) == Intervals{{0, 0}, {0, 0}});
}

TEST_CASE("shard_runs are the shards, in at most three runs") {
  using Runs = std::vector<ShardRun>;
  CHECK(shard_runs(7, 4) == Runs{{{0, 3}, 0, 2}, {{3, 4}, 6, 1}});
  CHECK(shard_runs(6, 4) == Runs{{{0, 3}, 0, 2}, {{3, 4}, 6, 0}});
  CHECK(shard_runs(6, 4, Chunking::Balanced) == Runs{{{0, 2}, 0, 2}, {{2, 4}, 4, 1}});
  CHECK(shard_runs(8, 4) == Runs{{{0, 4}, 0, 2}});
  CHECK(shard_runs(10, 6) == Runs{{{0, 5}, 0, 2}, {{5, 6}, 10, 0}});
  CHECK(shard_runs(9, 8) == Runs{{{0, 4}, 0, 2}, {{4, 5}, 8, 1}, {{5, 8}, 9, 0}});
  CHECK(shard_runs(0, 3) == Runs{{{0, 3}, 0, 0}});
  for (const Chunking chunking : {Chunking::Ceil, Chunking::Balanced}) {
    for (std::int64_t extent = 0; extent < 40; ++extent) {
      for (std::int64_t count = 1; count < 17; ++count) {
        const Runs runs = shard_runs(extent, count, chunking);
        CHECK(runs.size() <= 3);
        std::int64_t next = 0;
        for (const ShardRun& run : runs) {
          for (std::int64_t i = run.shards.begin; i < run.shards.end; ++i) {
            CHECK(i == next++);
            const std::int64_t begin = run.first + (i - run.shards.begin) * run.length;
            CHECK(shard_interval(extent, {i, count}, chunking) ==
                  Interval{begin, begin + run.length});
          }
        }
        CHECK(next == count);
      }
    }
  }
}

TEST_CASE("shard_interval follows the ceil rule of torch.chunk") {
  // The table of interval.h and of the PyTorch notes.
  CHECK(lengths(7, 4) == Lengths{2, 2, 2, 1});
  CHECK(lengths(6, 4) == Lengths{2, 2, 2, 0});
  CHECK(lengths(5, 4) == Lengths{2, 2, 1, 0});
  CHECK(lengths(9, 4) == Lengths{3, 3, 3, 0});
  CHECK(lengths(10, 4) == Lengths{3, 3, 3, 1});
  CHECK(lengths(17, 4) == Lengths{5, 5, 5, 2});
  CHECK(lengths(1, 4) == Lengths{1, 0, 0, 0});
  CHECK(lengths(2, 4) == Lengths{1, 1, 0, 0});
  CHECK(lengths(0, 2) == Lengths{0, 0});
  CHECK(lengths(5, 1) == Lengths{5});
  CHECK(lengths(9, 8) == Lengths{2, 2, 2, 2, 1, 0, 0, 0});
  CHECK(lengths(33, 8) == Lengths{5, 5, 5, 5, 5, 5, 3, 0});
  CHECK(shard_interval(5, {3, 4}) == Interval{5, 5});
  CHECK(shard_interval(2, {2, 4}) == Interval{2, 2});
  CHECK(shard_interval(512, {28, 30}) == Interval{504, 512});
  CHECK(shard_interval(512, {29, 30}) == Interval{512, 512});
}

TEST_CASE("shards tile the extent, and all full shards have the padded length") {
  for (std::int64_t extent = 0; extent < 70; ++extent) {
    for (std::int64_t count = 1; count < 20; ++count) {
      const std::int64_t padded = padded_shard_length(extent, count);
      CHECK(padded * count >= extent);
      CHECK(padded * count - extent < std::max<std::int64_t>(count, 1));
      std::int64_t end = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const Interval shard = shard_interval(extent, {i, count});
        CHECK(shard.begin == end);
        CHECK(shard.length() <= padded);
        if (shard.end < extent) CHECK(shard.length() == padded);
        end = shard.end;
      }
      CHECK(end == extent);
    }
  }
}

TEST_CASE("the largest extents do not overflow") {
  const std::int64_t extent = INT64_MAX;
  CHECK(shard_interval(extent, {1, 2}).end == extent);
  CHECK(shard_interval(extent, {0, 2}).length() + shard_interval(extent, {1, 2}).length() ==
        extent);
}

TEST_CASE("a shard outside its count is a bug") {
  CHECK_THROWS_AS(shard_interval(4, {4, 4}), InternalError);
  CHECK_THROWS_AS(shard_interval(4, {-1, 4}), InternalError);
  CHECK_THROWS_AS(shard_interval(-1, {0, 4}), InternalError);
}

TEST_CASE("intersect keeps the place of an empty result inside both") {
  CHECK(intersect({0, 4}, {2, 6}) == Interval{2, 4});
  CHECK(intersect({0, 2}, {4, 6}).empty());
  CHECK(intersect({3, 3}, {0, 6}) == Interval{3, 3});
}

TEST_CASE("glob: one star stays within a component, two cross") {
  CHECK(glob_matches("*.weight", "l0.weight"));
  CHECK_FALSE(glob_matches("*.weight", "blocks.l0.weight"));
  CHECK(glob_matches("**.weight", "blocks.l0.weight"));
  CHECK(glob_matches("**.weight", "l0.weight"));
  CHECK(glob_matches("l*", "l0"));
  CHECK(glob_matches("l*", "l"));
  CHECK_FALSE(glob_matches("l*", "l0.weight"));
  CHECK(glob_matches("**", ""));
  CHECK(glob_matches("**", "a.b"));
  CHECK_FALSE(glob_matches("", "a"));
  CHECK(glob_matches("a*b*c", "axxbyyc"));
  CHECK_FALSE(glob_matches("a*b*c", "axxbyy"));
  CHECK(glob_matches("参数.*", "参数.权重"));
}

TEST_CASE("an index of names finds what each pattern matches") {
  const std::vector<std::string> names = {"l1.weight", "l0.weight", "l0.bias", "l", "a*b", "l0"};
  GlobIndex index(names);
  const char* patterns[] = {"l0.weight", "l0", "l", "l*", "l0*", "l0**", "*.weight", "**.bias",
                            "**",        "",   "x", "x*", "*x",  "a*b",  "l0.w*t",   "l0.weight*"};
  for (const char* pattern : patterns) {
    std::vector<int> expected;
    for (int i = 0; i < static_cast<int>(names.size()); ++i) {
      if (glob_matches(pattern, names[static_cast<std::size_t>(i)])) expected.push_back(i);
    }
    CAPTURE(pattern);
    CHECK(index.matches_of(pattern) == expected);
  }
  CHECK(index.matches_of("l0*") == std::vector<int>{5});
  CHECK_FALSE(index.has_given_up());
}

TEST_CASE("an index gives up where comparing would take hours") {
  // 3 * 10^5 times 2 * 10^4 bytes are more than 2^32 steps; a name that begins otherwise is none.
  const std::vector<std::string> names = {std::string(300'000, 'a'), "b"};
  std::string pattern;
  for (int i = 0; i < 10'000; ++i)
    pattern += "a*";
  GlobIndex index(names);
  CHECK(index.matches_of("b" + pattern).empty());
  CHECK_FALSE(index.has_given_up());
  CHECK(index.matches_of(pattern).empty());
  CHECK(index.has_given_up());
  CHECK(index.matches_of("b").empty());
}

TEST_CASE("suggest finds what was probably meant, and nothing for strangers") {
  constexpr std::array<std::string_view, 3> kWords = {"mesh", "fsdp", "parameters"};
  CHECK(suggest("mehs", kWords) == "mesh");
  CHECK(suggest("fsdb", kWords) == "fsdp");
  CHECK(suggest("paramters", kWords) == "parameters");
  CHECK_FALSE(suggest("xyz", kWords).has_value());
  CHECK_FALSE(suggest("mesh", {}).has_value());
}

TEST_CASE("diagnostics print place, claim and way out") {
  const Diagnostic full{.file = "a.json",
                        .line = 3,
                        .column = 12,
                        .pointer = "/mesh/ranks",
                        .message = "6 ranks listed, but shape multiplies to 2 * 4 = 8",
                        .help = "list 8 ranks"};
  CHECK(to_string(full) ==
        "a.json:3:12: /mesh/ranks: error: 6 ranks listed, but shape multiplies to 2 * 4 = 8\n"
        "  help: list 8 ranks");
  CHECK(to_string(Diagnostic{.severity = Severity::Warning, .message = "m"}) == "warning: m");
  CHECK(to_string(Diagnostic{.file = "a.json", .message = "m"}) == "a.json: error: m");
  CHECK(to_string(Diagnostic{
            .pointer = "/a\n\x1b[31m", .message = "b\nc\x7F", .help = "\xC2\x9B\xC2\xA0"}) ==
        "/a\\u000a\\u001b[31m: error: b\nc\\u007f\n  help: \\u009b\xC2\xA0");
  const Error error(ErrorKind::Usage, {full, full});
  CHECK(std::string(error.what()) == to_string(full) + "\n" + to_string(full));
  CHECK(exit_code_of(ErrorKind::Usage) == 2);
  CHECK(exit_code_of(ErrorKind::InvalidScenario) == 3);
  CHECK(exit_code_of(ErrorKind::RankFailure) == 6);
  CHECK(exit_code_of(ErrorKind::Environment) == 7);
}

TEST_CASE("a failed check names its place below the source root") {
  try {
    HPSIM_CHECK(1 == 2, "{} is not {}", 1, 2);
    FAIL("no exception");
  } catch (const InternalError& error) {
    CHECK(std::string(error.what()).find("1 is not 2 (1 == 2)") != std::string::npos);
  }
}

TEST_CASE("dtypes have the sizes and roundoffs of IEEE 754 and bfloat16") {
  CHECK(size_bytes(DType::Float64) == 8);
  CHECK(size_bytes(DType::Float32) == 4);
  CHECK(size_bytes(DType::BFloat16) == 2);
  CHECK(size_bytes(DType::Float16) == 2);
  CHECK(unit_roundoff(DType::Float64) == 0x1p-53);
  CHECK(unit_roundoff(DType::Float32) == 0x1p-24);
  for (const DType dtype : {DType::Float64, DType::Float32, DType::BFloat16, DType::Float16}) {
    CHECK(parse_dtype(name_of(dtype)) == dtype);
  }
  CHECK_FALSE(parse_dtype("float8").has_value());
}

TEST_CASE("numbers for people") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1024) == "1 KiB");
  CHECK(format_bytes(1536) == "1.5 KiB");
  CHECK(format_bytes(1023 * 1024) == "1023 KiB");
  CHECK(format_bytes(4194304) == "4 MiB");
  CHECK(format_bytes(1047552 * 1024 - 1) == "1023 MiB");
  CHECK(format_seconds(0.0000021) == "2.1 us");
  CHECK(format_seconds(0.0421) == "42.1 ms");
  CHECK(format_seconds(3.2) == "3.20 s");
  CHECK(format_count(0) == "0");
  CHECK(format_count(999) == "999");
  CHECK(format_count(1234567) == "1,234,567");
  CHECK(format_count(-1234) == "-1,234");
}

}  // namespace
}  // namespace hpsim
