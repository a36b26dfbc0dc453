#include "report/json.h"

#include "report/golden_report.h"
#include "report/json_parts.h"
#include "report/routing_report.h"

namespace hpsim {
namespace {

Json ledger_json(const std::vector<LedgerReport>& ledger) {
  Json json = Json::object();
  for (std::size_t kind = 0; kind < ledger.size(); ++kind) {
    json[std::string(name_of(static_cast<MemoryKind>(kind)))] = {
        {"peak", ledger[kind].peak_bytes}, {"after_step", ledger[kind].after_step_bytes}};
  }
  return json;
}

Json drift_json(const Report& report) {
  Json json = Json::array();
  for (std::size_t step = 0; step < report.drift.size(); ++step) {
    const StepDrift& drift = report.drift[step];
    json.push_back(
        {{"step", step},
         {"relative", number(drift.relative)},
         {"largest", number(drift.largest)},
         {"param", report.parameters.at(static_cast<std::size_t>(drift.parameter)).name}});
  }
  return json;
}

/// Memory per rank, maxima over ranks: while parameters are made, where it is highest, and around
/// every step of the plan.
Json memory_json(const Report& report) {
  const MemoryProfile& memory = report.memory;
  Json json{{"init", init_memory_json(memory)}, {"peak", nullptr}, {"events", Json::array()}};
  if (memory.events.empty()) {  // how much it is, is known all the same
    json["peak"] = {{"bytes", report.counters.peak_bytes},
                    {"plan_step", nullptr},
                    {"at", nullptr},
                    {"step", nullptr}};
    return json;
  }
  json["peak"] = {{"bytes", report.counters.peak_bytes},
                  {"plan_step", memory.peak_step()},
                  {"at", report.peak_at},
                  {"step", report.peak_at_step}};
  for (std::size_t i = 0; i < memory.events.size(); ++i) {
    const MemoryProfile::Event& event = memory.events[i];
    Json line{{"plan_step", i}, {"peak", event.peak_total}, {"live", event.total_after}};
    add_kinds(event.live_after, line);
    json["events"].push_back(std::move(line));
  }
  return json;
}

void add_run(const Report& report, bool full, Json& json) {
  const Mesh& mesh = report.scenario->mesh;
  const bool lists_ranks = full || mesh.num_ranks() <= kMaxListedRanks;
  json["parameters"] = list_json(report.parameters, [&](const PlannedParameter& parameter) {
    return parameter_json(*report.scenario, parameter, lists_ranks);
  });
  json["collectives"] = list_json(report.collectives, [&](const CollectiveReport& collective) {
    return collective_json(mesh, report.payloads, collective, lists_ranks);
  });
  json["losses"] = numbers(report.losses);
  json["baseline_losses"] = numbers(report.baseline_losses);
  json["grad_norms"] = numbers(report.grad_norms);
  if (!report.drift.empty()) json["drift"] = drift_json(report);
  json["counters"] = {{"pad_allocations", report.counters.pad_allocations},
                      {"pad_copies", report.counters.pad_copies},
                      {"peak_unsharded_bytes", report.counters.peak_unsharded_bytes},
                      {"peak_bytes", report.counters.peak_bytes}};
  json["ledger"] = ledger_json(report.ledger);
  json["memory"] = memory_json(report);
  if (!report.routing.empty()) json["routing"] = routing_json(report.routing);
  if (!report.digest.empty()) json["digest"] = report.digest;
}

/// The value on one line, with a blank after commas and colons.
std::string one_line(const Json& value) {
  if (!value.is_structured()) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  std::string text(1, value.is_object() ? '{' : '[');
  bool first = true;
  for (const auto& [key, item] : value.items()) {
    if (!first) text += ", ";
    first = false;
    if (value.is_object()) text += one_line(Json(key)) + ": ";
    text += one_line(item);
  }
  return text += value.is_object() ? '}' : ']';
}

/// Whether the value takes at most `width` columns on one line; looks no further than it must.
bool fits(const Json& value, std::size_t& width) {
  const auto take = [&width](std::size_t columns) {
    if (columns > width) return false;
    width -= columns;
    return true;
  };
  if (!value.is_structured()) return take(one_line(value).size());
  if (!take(2)) return false;
  for (const auto& [key, item] : value.items()) {
    const std::size_t separators = value.is_object() ? key.size() + 6 : 2;
    if (!take(separators) || !fits(item, width)) return false;
  }
  return true;
}

/// Whether an object of an array would share its line with the rest of the array.
bool has_objects_in_arrays(const Json& value) {
  if (!value.is_structured()) return false;
  for (const Json& item : value) {
    if ((value.is_array() && item.is_object()) || has_objects_in_arrays(item)) return true;
  }
  return false;
}

void append_text(const Json& value, const JsonStyle& style, std::size_t indent, std::size_t used,
                 std::string& text) {
  std::size_t left = style.width > indent + used ? style.width - indent - used : 0;
  const bool is_short = !value.is_structured() || value.empty() || fits(value, left);
  if (is_short && !(style.line_per_object && has_objects_in_arrays(value))) {
    text += one_line(value);
    return;
  }
  text += value.is_object() ? "{\n" : "[\n";
  bool first = true;
  for (const auto& [key, item] : value.items()) {
    if (!first) text += ",\n";
    first = false;
    text.append(indent + 2, ' ');
    std::string label;
    if (value.is_object()) label = one_line(Json(key)) + ": ";
    text += label;
    append_text(item, style, indent + 2, label.size() + 1, text);
  }
  text.append("\n").append(indent, ' ') += value.is_object() ? '}' : ']';
}

}  // namespace

Json comparable_json(const Report& report, bool full) {
  Json json{{"report", 1},
            {"hpsim_version", HPSIM_VERSION},
            {"scenario", {{"name", report.name}, {"file", report.file}, {"hash", report.hash}}},
            {"backend", report.backend}};
  if (report.scenario) json["world_size"] = report.scenario->mesh.num_ranks();
  json["verdict"] = name_of(report.outcome);
  json["exit_code"] = report.exit_code;
  json["checks"] = list_json(report.checks, check_json);
  json["findings"] = list_json(report.findings, finding_json);
  if (!report.left_out.empty())
    json["findings_left_out"] = list_json(report.left_out, left_out_json);
  json["warnings"] = Json::array();
  for (const Finding& finding : report.findings) {
    if (finding.severity == Severity::Warning) json["warnings"].push_back(finding_json(finding));
  }
  json["notes"] = report.notes;
  json["diagnostics"] = list_json(report.diagnostics, diagnostic_json);
  if (report.has_run) add_run(report, full, json);
  if (report.golden) json["golden"] = golden_comparison_json(*report.golden);
  if (!report.budget.empty()) json["budget"] = budget_json(report.budget);
  return json;
}

Json report_json(const Report& report, bool full) {
  Json json = comparable_json(report, full);
  json["timing"] = {{"start_s", report.timing.start_s},
                    {"connect_s", report.timing.connect_s},
                    {"run_s", report.timing.run_s},
                    {"verify_s", report.timing.verify_s},
                    {"total_s", report.timing.total_s}};
  json["meta"] = Json::object();
  for (const auto& [key, value] : report.meta)
    json["meta"][key] = value;
  return json;
}

std::string json_text(const Json& value, const JsonStyle& style) {
  std::string text;
  append_text(value, style, 0, 0, text);
  return text += '\n';
}

}  // namespace hpsim
