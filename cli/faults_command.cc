#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/suggest.h"
#include "commands.h"
#include "mutation/kill_matrix.h"
#include "report/json.h"
#include "report/table.h"
#include "scenario/fault_catalog.h"
#include "terminal.h"

namespace hpsim {
namespace {

std::vector<std::string> catches_of(const FaultKind& fault) {
  std::vector<std::string> texts;
  for (const CaughtAs& found : fault.caught_by)
    texts.push_back(to_string(found));
  return texts;
}

std::vector<std::string> aims_of(const FaultKind& fault) {
  std::vector<std::string> aims;
  if (fault.aims.params) aims.emplace_back("params");
  if (fault.aims.ranks) aims.emplace_back("ranks");
  if (fault.aims.unit) aims.emplace_back("unit");
  if (fault.aims.step) aims.emplace_back("step");
  if (fault.aims.seq) aims.emplace_back("seq");
  return aims;
}

nlohmann::ordered_json json_of(const FaultKind& fault) {
  nlohmann::ordered_json json = {{"name", fault.name},
                                 {"kind", fault.kind},
                                 {"stage", name_of(fault.stage)},
                                 {"breaks", fault.breaks},
                                 {"needs", fault.needs}};
  nlohmann::ordered_json catches = nlohmann::ordered_json::array();
  for (const CaughtAs& found : fault.caught_by)
    catches.push_back({{"check", name_of(found.check)}, {"code", name_of(found.code)}});
  json["caught_by"] = std::move(catches);
  json["reports"] = fault.reports;
  json["aims"] = aims_of(fault);
  return json;
}

std::string text_of(const FaultKind& fault, bool color) {
  Table table({{""}, {"", false, true}});
  const auto add = [&](const char* key, std::string value) {
    if (!value.empty()) table.add_row({{key, Ink::Dim}, {std::move(value)}});
  };
  add("kind", std::string(fault.kind));
  add("planted in", fmt::format("the {}", name_of(fault.stage)));
  add("breaks", std::string(fault.breaks));
  add("needs", std::string(fault.needs));
  add("found by", fmt::format("{}", fmt::join(catches_of(fault), ", or ")));
  add("stands for", std::string(fault.reports));
  add("aimed by", fmt::format("{}", fmt::join(aims_of(fault), ", ")));
  std::string example = fmt::format("\"faults\": [{{\"fault\": \"{}\"", fault.name);
  if (fault.stage == FaultStage::Process) example += ", \"ranks\": [0]";
  add("planted as", example + "}]");
  return fmt::format("{}\n{}", painted(fault.name, Ink::Bold, color), table.text(2, 1000, color));
}

/// \throws Error (Usage) if there is no such fault
const FaultKind& named_fault(const std::string& name) {
  std::vector<std::string_view> names;
  for (const FaultKind& fault : all_faults()) {
    if (fault.name == name) return fault;
    names.push_back(fault.name);
  }
  const auto near = suggest(name, names);
  throw Error(ErrorKind::Usage, fmt::format("no fault is named \"{}\"", name),
              near ? fmt::format("did you mean \"{}\"?", *near) : "hpsim faults lists all of them");
}

}  // namespace

int faults_command(const FaultsArguments& arguments) {
  const bool is_json = choose("--format", arguments.format, {"text", "json"}) == 1;
  const auto mode =
      static_cast<ColorMode>(choose("--color", arguments.color, {"auto", "always", "never"}));
  const bool color = wants_color(mode, STDOUT_FILENO);
  if (arguments.name) {
    const FaultKind& fault = named_fault(*arguments.name);
    write_stdout(is_json ? json_text(json_of(fault)) : text_of(fault, color));
    return 0;
  }
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  Table table({{"fault"}, {"kind"}, {"planted in"}, {"breaks"}, {"found by"}, {"stands for"}});
  for (const FaultKind& fault : all_faults()) {
    array.push_back(json_of(fault));
    table.add_row({{std::string(fault.name), Ink::Bold},
                   {std::string(fault.kind)},
                   {std::string(name_of(fault.stage))},
                   {std::string(fault.breaks)},
                   {fmt::format("{}", fmt::join(catches_of(fault), ", or "))},
                   {std::string(fault.reports), Ink::Dim}});
  }
  write_stdout(is_json ? json_text(array) : table.text(0, 1000, color));
  return 0;
}

}  // namespace hpsim
