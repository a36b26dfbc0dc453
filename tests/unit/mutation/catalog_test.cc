// What must hold of every row of the catalogue of faults.

#include <algorithm>
#include <regex>
#include <set>
#include <string>

#include "engine/faults/engine_fault.h"
#include "plan/faults/plan_faults.h"
#include "scenario/fault_catalog.h"
#include "support/catch.h"

namespace hpsim {
namespace {

TEST_CASE("names of faults are unique, and words of lower case") {
  const std::regex words("[a-z][a-z0-9]*(_[a-z0-9]+)*");
  std::set<std::string_view> names;
  for (const FaultKind& fault : all_faults()) {
    CAPTURE(fault.name);
    CHECK(names.insert(fault.name).second);
    CHECK(std::regex_match(std::string(fault.name), words));
  }
  CHECK(names.size() >= 3);
}

/// One claim: lower case but for names, no full stop.
bool is_sentence(std::string_view text) {
  return text.size() > 10 && text.front() != ' ' && text.back() != '.' && text.back() != ' ';
}

/// "pytorch/pytorch#154888, verl#7493", or a commit, "hyper-parallel 4f0ba61"; empty: no public
/// report.
bool are_reports(std::string_view text) {
  static const std::string one = R"([\w.-]+(/[\w.-]+)?(#\d+| [0-9a-f]{7}))";
  static const std::regex list("(" + one + "(, " + one + ")*)?");
  return std::regex_match(std::string(text), list);
}

TEST_CASE("texts of faults are told from what is no text") {
  CHECK(is_sentence("ranks die of SIGKILL"));
  CHECK_FALSE(is_sentence(""));
  CHECK_FALSE(is_sentence("ranks die of SIGKILL."));
  CHECK(are_reports(""));
  CHECK(are_reports("pytorch/pytorch#154888, verl#7493"));
  CHECK(are_reports("hyper-parallel 4f0ba61"));
  CHECK_FALSE(are_reports("B01"));
  CHECK_FALSE(are_reports("verl#7493, "));
  CHECK_FALSE(are_reports("verl#7493,"));
  CHECK_FALSE(are_reports("verl#7493 verl#7494"));
}

TEST_CASE("every fault says what it breaks, and which of its own checks must find it") {
  for (const FaultKind& fault : all_faults()) {
    CAPTURE(fault.name);
    CHECK_FALSE(fault.kind.empty());
    CHECK(is_sentence(fault.breaks));
    CHECK((fault.needs.empty() || fault.needs.back() != '.'));
    CHECK(are_reports(fault.reports));
    CHECK_FALSE(fault.caught_by.empty());
    std::vector<CaughtAs> once;
    for (const CaughtAs& each : fault.caught_by) {
      add_once(once, each);
      CHECK(each.code != FindingCode::FaultMissed);
    }
    CHECK(once == fault.caught_by);
  }
}

/// How a fault of that name is carried out: by so many operators.
int num_operators(std::string_view name) {
  return (find_plan_fault(name) != nullptr ? 1 : 0) + (find_engine_fault(name) != nullptr ? 1 : 0);
}

TEST_CASE("every fault is carried out where its stage says") {
  for (const FaultKind& fault : all_faults()) {
    CAPTURE(fault.name);
    switch (fault.stage) {
      case FaultStage::Process:
        CHECK(num_operators(fault.name) == 0);
        CHECK(fault.aims.ranks);
        break;
      case FaultStage::Plan:
        CHECK(find_plan_fault(fault.name) != nullptr);
        CHECK(find_engine_fault(fault.name) == nullptr);
        break;
      case FaultStage::Run:
        // Most in one way; what is another plan may need an engine that goes along with it.
        CHECK(num_operators(fault.name) >= 1);
        break;
    }
  }
}

}  // namespace
}  // namespace hpsim
