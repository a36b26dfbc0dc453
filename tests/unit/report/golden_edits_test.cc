// Whatever is edited in a golden, the comparison finds it, says so in one line, and survives it.

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "baseline/eigen_baseline.h"
#include "exec/executor.h"
#include "plan/build_plan.h"
#include "report/golden.h"
#include "report/report.h"
#include "scenario/parse.h"
#include "support/catch.h"
#include "verify/compare_runs.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;

Report report_on(const std::string& file) {
  std::ifstream in(std::string(HPSIM_SOURCE_DIR) + "/scenarios/" + file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const Scenario scenario = parse_scenario(text, file);
  const VerifiedPlan plan = verify_plan(build_plan(scenario));
  const RunResult run = make_executor(Backend::Local)->run(plan, {});
  const ReferenceRun reference = run_baseline(scenario, states_before_steps(*plan, run));
  return make_report(plan, run, reference, compare_runs(plan, run, reference));
}

/// Calls `visit` with the pointer of every value below the root.
void for_each_value(const Json& value, const Json::json_pointer& at,
                    const std::function<void(const Json::json_pointer&, const Json&)>& visit) {
  if (!at.empty()) visit(at, value);
  if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i)
      for_each_value(value[i], at / i, visit);
  } else if (value.is_object()) {
    for (const auto& [key, item] : value.items())
      for_each_value(item, at / key, visit);
  }
}

/// Other values than `value`, of its own kind and of all others.
std::vector<Json> others(const Json& value) {
  std::vector<Json> all = {nullptr,
                           true,
                           -1,
                           1e300,
                           "",
                           "Shard(7)",
                           Json::array(),
                           Json::object(),
                           Json::array({1, Json::array()})};
  if (value.is_number()) all.push_back(value.get<double>() + 1);
  if (value.is_string()) all.push_back(value.get<std::string>() + "x");
  if (value.is_array() && !value.empty()) {
    all.push_back(value);
    all.back().push_back(value.back());
    all.push_back(value);
    all.back().erase(0);
  }
  all.erase(std::remove(all.begin(), all.end(), value), all.end());
  return all;
}

const std::vector<std::string> kFiles = {
    "fsdp/a2_uneven_7x8_over_4.json", "fsdp/a4_uneven_5x3_over_4.json",
    "fsdp/ragged_cells_2x64_over_4.json", "hsdp/b3_uneven_5x3_on_2x2.json",
    "training/prefetch_gathers_once.json"};

TEST_CASE("every edit of a value is found") {
  for (const std::string& file : kFiles) {
    const Report report = report_on(file);
    const Json golden = make_golden(report);
    REQUIRE(compare_golden("g", golden_text(golden), report).state == GoldenState::Same);
    std::int64_t num_edits = 0;
    for_each_value(
        golden, Json::json_pointer(), [&](const Json::json_pointer& at, const Json& value) {
          for (const Json& other : others(value)) {
            Json edited = golden;
            edited[at] = other;
            ++num_edits;
            const GoldenComparison found = compare_golden("g", golden_text(edited), report);
            if (found.state != GoldenState::Same && !found.differences.empty()) continue;
            CAPTURE(file, at.to_string(), other.dump());
            CHECK(found.state != GoldenState::Same);
          }
        });
    CHECK(num_edits > 300);
  }
}

TEST_CASE("every key and element that is removed or added is found") {
  for (const std::string& file : kFiles) {
    const Report report = report_on(file);
    const Json golden = make_golden(report);
    for_each_value(
        golden, Json::json_pointer(), [&](const Json::json_pointer& at, const Json& value) {
          Json without = golden;
          Json& parent = without[at.parent_pointer()];
          if (parent.is_array()) {
            parent.erase(std::stoul(at.back()));
          } else {
            parent.erase(at.back());
          }
          Json with = golden;
          if (value.is_object()) with[at]["extra"] = 1;
          for (const Json& edited : {without, with}) {
            if (edited == golden) continue;
            const GoldenComparison found = compare_golden("g", golden_text(edited), report);
            CAPTURE(file, at.to_string());
            CHECK(found.state != GoldenState::Same);
            for (const GoldenDifference& difference : found.differences) {
              CHECK_FALSE(difference.message.empty());
              CHECK(difference.message.find('\n') == std::string::npos);
              CHECK_FALSE(difference.section.empty());
            }
          }
        });
  }
}

TEST_CASE("the order of keys says nothing, the order of elements does") {
  const Report report = report_on(kFiles[0]);
  const nlohmann::json sorted = nlohmann::json::parse(make_golden(report).dump());
  CHECK(compare_golden("g", sorted.dump(), report).state == GoldenState::Same);
}

}  // namespace
}  // namespace hpsim
