#include "scenario/fault_catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "scenario/faults/fault_tables.h"

namespace hpsim {
namespace {

std::vector<FaultKind> make_catalog() {
  std::vector<FaultKind> catalog;
  for (const auto& rows :
       {process_faults(), plan_faults(), exchange_faults(), engine_faults(), contents_faults()})
    catalog.insert(catalog.end(), rows.begin(), rows.end());
  return catalog;
}

}  // namespace

std::string_view name_of(FaultStage stage) {
  switch (stage) {
    case FaultStage::Process:
      return "process";
    case FaultStage::Plan:
      return "plan";
    case FaultStage::Run:
      return "run";
  }
  HPSIM_CHECK(false, "unknown stage {}", static_cast<int>(stage));
  return {};
}

std::string to_string(const CaughtAs& found) {
  return fmt::format("{} {}", name_of(found.check), name_of(found.code));
}

void add_once(std::vector<CaughtAs>& catches, const CaughtAs& found) {
  if (std::find(catches.begin(), catches.end(), found) == catches.end()) catches.push_back(found);
}

bool is_caught(const FaultKind& fault, const std::vector<CaughtAs>& found) {
  return std::any_of(found.begin(), found.end(), [&](const CaughtAs& each) {
    return std::find(fault.caught_by.begin(), fault.caught_by.end(), each) != fault.caught_by.end();
  });
}

std::span<const FaultKind> all_faults() {
  static const std::vector<FaultKind> catalog = make_catalog();
  return catalog;
}

const FaultKind& fault_kind(std::string_view name) {
  const auto faults = all_faults();
  const auto found = std::find_if(faults.begin(), faults.end(),
                                  [&](const FaultKind& kind) { return kind.name == name; });
  HPSIM_CHECK(found != faults.end(), "no fault is called {}", name);
  return *found;
}

}  // namespace hpsim
