#include "report/text_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"

namespace hpsim {

std::string shard_rows_text(const std::vector<ShardRun>& runs) {
  constexpr std::int64_t kMaxListed = 8;
  const std::int64_t num_shards = runs.empty() ? 0 : runs.back().shards.end;
  std::vector<std::string> parts;
  for (const ShardRun& run : runs) {
    const std::int64_t count = run.shards.length();
    if (num_shards <= kMaxListed) {
      parts.insert(parts.end(), static_cast<std::size_t>(count), fmt::format("{}", run.rows));
    } else {
      parts.push_back(count == 1
                          ? format_count(run.rows)
                          : fmt::format("{} (x{})", format_count(run.rows), format_count(count)));
    }
  }
  return fmt::format("{}", fmt::join(parts, " "));
}

std::int64_t padding_rows(const ParameterReport& parameter) {
  if (parameter.padded_shape.empty()) return 0;
  return parameter.padded_shape[0] * parameter.sharded_group.size - parameter.global_shape[0];
}

std::vector<CollectiveKind> collective_kinds(const Report& report, std::int64_t step) {
  std::vector<CollectiveKind> kinds;
  for (const CollectiveReport& collective : report.collectives) {
    if (collective.step != step) continue;
    const CollectiveSpec& spec = collective.spec;
    const double scale = spec.prescale * spec.scale;
    auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const CollectiveKind& other) {
      return other.op == spec.op && other.dims == spec.dims && other.dtype == spec.dtype;
    });
    if (kind == kinds.end()) {
      kinds.push_back({.op = spec.op,
                       .dims = spec.dims,
                       .group_size = spec.group_size,
                       .dtype = spec.dtype,
                       .phase = collective.phase,
                       .scale = scale});
      kind = kinds.end() - 1;
    }
    ++kind->count;
    kind->bytes_in += spec.elems_in * size_bytes(spec.dtype);
    kind->bytes_out += spec.elems_out * size_bytes(spec.dtype);
    if (kind->scale && *kind->scale != scale) kind->scale.reset();
  }
  return kinds;
}

std::int64_t total_compared(const Report& report) {
  std::int64_t total = 0;
  for (const CheckResult& check : report.checks)
    total += check.compared;
  return total;
}

std::optional<WorstElement> worst_of(const Report& report) {
  std::optional<WorstElement> worst;
  for (const CheckResult& check : report.checks) {
    if (check.worst && (!worst || check.worst->ratio > worst->ratio)) worst = check.worst;
  }
  return worst;
}

std::string ratio_text(const Report& report, double ratio) {
  if (ratio == 0 && report.scenario && report.scenario->is_exact()) return "equal";
  return fmt::format("{:.2g}", ratio);
}

std::string tuple_text(const std::vector<std::int64_t>& values) {
  return fmt::format("({}{})", fmt::join(values, ", "), values.size() == 1 ? "," : "");
}

std::string place_of(const Finding& finding) {
  std::vector<std::string> parts;
  if (!finding.param.empty()) parts.push_back(finding.param);
  if (finding.rank && finding.coordinate.empty()) {
    parts.push_back(fmt::format("rank {}", *finding.rank));
  } else if (finding.rank) {
    parts.push_back(fmt::format("rank {} at {}", *finding.rank, tuple_text(finding.coordinate)));
  }
  if (finding.step) parts.push_back(fmt::format("step {}", *finding.step));
  if (!finding.index.empty()) parts.push_back("index " + tuple_text(finding.index));
  return fmt::format("{}{}{}", name_of(finding.check), parts.empty() ? "" : ": ",
                     fmt::join(parts, ", "));
}

}  // namespace hpsim
