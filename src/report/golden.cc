#include "report/golden.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/check.h"
#include "report/ci_parts.h"
#include "report/golden_diff.h"
#include "report/golden_numbers.h"
#include "report/json.h"
#include "report/json_parts.h"
#include "report/report.h"

namespace hpsim {
namespace {

constexpr std::size_t kGoldenWidth = 160;
constexpr std::array<Phase, 3> kPhases = {Phase::Forward, Phase::Backward, Phase::Optimizer};

Json mesh_json(const Mesh& mesh) {
  Json json{{"shape", mesh.shape()}, {"mesh_dim_names", mesh.names()}};
  if (!mesh.ranks().empty()) json["ranks"] = mesh.ranks();
  return json;
}

/// The ranks of every group of more than one that the report speaks of.
Json all_groups_json(const Report& report, bool lists_ranks) {
  const Mesh& mesh = report.scenario->mesh;
  std::set<MeshDims> all;
  for (const PlannedParameter& parameter : report.parameters) {
    all.insert(parameter.sharded_group.dims);
    all.insert(parameter.unsharded_group.dims);
    all.insert(parameter.partial_group.dims);
  }
  for (const CollectiveReport& collective : report.collectives)
    all.insert(collective.spec.dims);
  Json json = Json::object();
  for (const MeshDims& dims : all) {
    if (mesh.size(dims) > 1) json[mesh.names(dims)] = groups_json(mesh, dims, lists_ranks);
  }
  return json;
}

/// As the report has it, but groups by their mesh dims: their ranks stand in "groups".
Json golden_parameter(const Scenario& scenario, const PlannedParameter& parameter,
                      bool lists_ranks) {
  const Mesh& mesh = scenario.mesh;
  Json json = parameter_json(scenario, parameter, lists_ranks);
  const auto group = [&mesh](const GroupInfo& info) -> Json {
    return {{"mesh_dims", names_of_dims(mesh, info.dims)}, {"size", info.size}};
  };
  json["sharded_group"] = group(parameter.sharded_group);
  json["unsharded_group"] = group(parameter.unsharded_group);
  json["partial_group"] = group(parameter.partial_group);
  for (const char* derived : {"shard_size", "dp_size", "rank_size"})
    json.erase(derived);
  return json;
}

/// Number of buckets by unit.
std::map<std::string, int> bucket_counts(const Report& report) {
  std::map<std::string, int> counts;
  for (const PayloadReport& payload : report.payloads)
    counts[payload.unit] += payload.activation.empty() && !payload.is_part ? 1 : 0;
  return counts;
}

/// A line per collective; params only where they are not all of the unit's.
Json golden_collective(const Report& report, const CollectiveReport& collective,
                       const std::map<std::string, int>& num_buckets, bool lists_ranks) {
  const Json full =
      collective_json(report.scenario->mesh, report.payloads, collective, lists_ranks);
  Json json{{"op", full["op"]}, {"unit", full["unit"]}};
  if (full.contains("activation")) json["activation"] = full["activation"];
  if (collective.is_recomputed) json["recomputed"] = true;
  const auto of_unit = num_buckets.find(full["unit"].get<std::string>());
  const bool shares_unit = of_unit != num_buckets.end() && of_unit->second > 1;
  const bool has_params = !full["params"].empty();
  const bool is_part = report.payloads.at(static_cast<std::size_t>(collective.payload)).is_part;
  if (has_params && (shares_unit || is_part || collective.partial >= 0))
    json["params"] = full["params"];
  if (collective.micro_batch > 0) json["micro_batch"] = collective.micro_batch;
  if (collective.overlap) {
    json["overlaps"] = full["overlaps"];
    json["completed_before"] = full["completed_before"];
  }
  json["mesh_dims"] = full["mesh_dims"];
  if (collective.spec.consecutive > 0) json["consecutive"] = collective.spec.consecutive;
  json["dtype"] = full["dtype"];
  if (collective.spec.takes_max) json["reduce_op"] = full["reduce_op"];
  if (!full["reduce_op"].is_null()) {
    if (full["prescale"] != 1) json["prescale"] = full["prescale"];
    json["scale"] = full["scale"];
  }
  json["elements"] = {full["elements_in"], full["elements_out"]};
  json["bytes"] = {full["bytes_in"], full["bytes_out"]};
  return json;
}

using Collectives = std::vector<const CollectiveReport*>;

bool do_the_same(const Collectives& a, const Collectives& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const CollectiveReport* x, const CollectiveReport* y) {
                      return x->phase == y->phase && x->micro_batch == y->micro_batch &&
                             x->payload == y->payload && x->partial == y->partial &&
                             x->is_recomputed == y->is_recomputed && x->spec == y->spec &&
                             x->overlap == y->overlap;
                    });
}

/// Number and bytes per rank by phase, op, mesh dims and dtype; where ranks differ, the most.
Json totals_json(const Report& report, const Collectives& collectives) {
  struct Total {
    Phase phase;
    const CollectiveSpec* spec;
    std::int64_t count = 0;
    std::int64_t bytes_in = 0;
    std::int64_t bytes_out = 0;
  };
  std::vector<Total> totals;
  for (const CollectiveReport* collective : collectives) {
    const CollectiveSpec& spec = collective->spec;
    auto total = std::find_if(totals.begin(), totals.end(), [&](const Total& other) {
      return other.phase == collective->phase && other.spec->op == spec.op &&
             other.spec->dims == spec.dims && other.spec->dtype == spec.dtype &&
             other.spec->consecutive == spec.consecutive;
    });
    if (total == totals.end()) total = totals.insert(total, {collective->phase, &spec});
    ++total->count;
    total->bytes_in += spec.elems_in.largest() * size_bytes(spec.dtype);
    total->bytes_out += spec.elems_out.largest() * size_bytes(spec.dtype);
  }
  return list_json(totals, [&](const Total& total) -> Json {
    return {{"phase", name_of(total.phase)},
            {"op", name_of(total.spec->op)},
            {"mesh_dims", names_of_dims(report.scenario->mesh, total.spec->dims)},
            {"dtype", name_of(total.spec->dtype)},
            {"count", total.count},
            {"bytes_in", total.bytes_in},
            {"bytes_out", total.bytes_out}};
  });
}

/// Optimizer steps in runs that do the same.
Json collectives_json(const Report& report, bool lists_ranks) {
  std::vector<Collectives> by_step(static_cast<std::size_t>(report.scenario->training.steps));
  for (const CollectiveReport& collective : report.collectives)
    by_step.at(static_cast<std::size_t>(collective.step)).push_back(&collective);
  const std::map<std::string, int> num_buckets = bucket_counts(report);
  Json runs = Json::array();
  for (std::size_t first = 0; first < by_step.size();) {
    std::size_t last = first;
    while (last + 1 < by_step.size() && do_the_same(by_step[first], by_step[last + 1]))
      ++last;
    Json run{{"first_step", first}, {"last_step", last}};
    for (const Phase phase : kPhases) {
      Json list = Json::array();
      for (const CollectiveReport* collective : by_step[first]) {
        if (collective->phase == phase)
          list.push_back(golden_collective(report, *collective, num_buckets, lists_ranks));
      }
      run[std::string(name_of(phase))] = std::move(list);
    }
    run["totals"] = totals_json(report, by_step[first]);
    runs.push_back(std::move(run));
    first = last + 1;
  }
  return runs;
}

/// Of balanced routing where positions are routed: so it is the same on every backend.
Json memory_json(const Report& report) {
  const bool is_routed = !report.balanced_peaks.empty();
  Json json{{"peak_bytes", is_routed ? report.balanced_peaks[0] : report.counters.peak_bytes}};
  for (std::size_t kind = 0; kind < report.ledger.size(); ++kind) {
    json[std::string(name_of(static_cast<MemoryKind>(kind)))] =
        is_routed ? report.balanced_peaks.at(1 + kind) : report.ledger[kind].peak_bytes;
  }
  // Elsewhere the largest whole parameter comes on top of the shards.
  if (report.scenario->training.init_device == InitDevice::Meta) {
    json["init_peak_bytes"] = report.memory.init_peak_total;
  }
  json["pad_allocations"] = report.counters.pad_allocations;
  json["pad_copies"] = report.counters.pad_copies;
  return json;
}

Json warnings_json(const Report& report) {
  Json json = Json::array();
  for (const Finding& finding : report.findings) {
    if (finding.severity != Severity::Warning) continue;
    json.push_back({{"code", name_of(finding.code)}, {"param", finding.param}});
  }
  return json;
}

/// Whether brackets are nested deeper than those of any golden: what takes the value apart calls
/// itself for each.
bool is_too_deep(std::string_view text) {
  constexpr int kMaxDepth = 64;
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    if (c == '\\' && in_string) ++i;
    if (in_string) continue;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > kMaxDepth) return true;
  }
  return false;
}

/// Discarded if it is no JSON, or nested too deep.
Json parsed(std::string_view text, bool ignores_comments = false) {
  if (is_too_deep(text)) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, false, ignores_comments);
}

bool is_golden(const Json& json) {
  return member(json, "golden").is_number_integer() && member(json, "parameters").is_array() &&
         member(json, "collectives").is_array();
}

}  // namespace

bool is_golden_text(std::string_view text) {
  return is_golden(parsed(text));
}

bool is_foreign_json(std::string_view text) {
  const Json json = parsed(text, true);
  return !json.is_discarded() && !is_golden(json);
}

std::string_view name_of(GoldenState state) {
  switch (state) {
    case GoldenState::Same:
      return "same";
    case GoldenState::Differs:
      return "differs";
    case GoldenState::Missing:
      return "missing";
    case GoldenState::Unreadable:
      return "unreadable";
  }
  HPSIM_CHECK(false, "unknown state {}", static_cast<int>(state));
  return {};
}

Json make_golden(const Report& report) {
  HPSIM_CHECK(report.has_run && report.scenario, "a golden of what has not run");
  const Scenario& scenario = *report.scenario;
  const bool lists_ranks = scenario.mesh.num_ranks() <= kMaxListedRanks;
  Json golden{{"golden", 1},
              {"name", report.name},
              {"mesh", mesh_json(scenario.mesh)},
              {"numerics",
               {{"dtype", name_of(scenario.numerics.dtype)},
                {"mode", scenario.is_exact() ? "exact" : "derived"}}},
              {"steps", scenario.training.steps},
              {"groups", all_groups_json(report, lists_ranks)}};
  golden["parameters"] = list_json(report.parameters, [&](const PlannedParameter& parameter) {
    return golden_parameter(scenario, parameter, lists_ranks);
  });
  golden["units"] = Json::array();
  for (const PayloadReport& payload : report.payloads) {
    if (!payload.activation.empty() || payload.is_part) continue;
    golden["units"].push_back({{"unit", payload.unit}, {"params", payload.params}});
  }
  golden["collectives"] = collectives_json(report, lists_ranks);
  golden["memory"] = memory_json(report);
  golden["warnings"] = warnings_json(report);
  add_golden_numbers(report, golden);
  return golden;
}

std::string golden_text(const Json& golden) {
  return json_text(golden, {.width = kGoldenWidth, .line_per_object = true});
}

GoldenComparison compare_golden(const std::string& file, std::string_view text,
                                const Report& report) {
  GoldenComparison comparison;
  comparison.file = file;
  const Json golden = parsed(text);
  const auto unreadable = [&](const char* why) {
    comparison.state = GoldenState::Unreadable;
    comparison.differences.push_back({.section = "golden", .message = why});
    return comparison;
  };
  if (golden.is_discarded()) return unreadable("the golden is no JSON, or nested too deep");
  if (!golden.is_object() || !golden.contains("golden"))
    return unreadable("the file is no golden: it has no key \"golden\"");
  if (golden["golden"] != 1)
    return unreadable("the golden has another form than this version of hpsim writes");
  Json now = make_golden(report);
  for (const Json& warning : warnings_of_numbers(golden, report)) {
    now["warnings"].push_back(warning);
    comparison.not_compared.push_back("warning " + brief(member(warning, "code")));
  }
  diff_goldens(golden, now, report, comparison);
  if (!comparison.differences.empty()) comparison.state = GoldenState::Differs;
  for (GoldenDifference& difference : comparison.differences) {
    difference.section = printable_line(difference.section);
    difference.message = printable_line(difference.message);
  }
  return comparison;
}

std::string updated_golden(std::string_view text, const Report& report) {
  Json golden = make_golden(report);
  const Json before = parsed(text);
  if (before.is_object()) {
    for (const Json& warning : warnings_of_numbers(before, report))
      golden["warnings"].push_back(warning);
    keep_numbers_that_hold(before, report, golden);
  }
  return golden_text(golden);
}

}  // namespace hpsim
