#include "report/routing_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/units.h"
#include "report/json_parts.h"
#include "report/table.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

using Counts = std::vector<std::int64_t>;

/// The largest over the mean; 1: all alike, or all zero.
double imbalance_of(const Counts& counts) {
  const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (sum == 0) return 1;
  return static_cast<double>(*std::max_element(counts.begin(), counts.end())) *
         static_cast<double>(counts.size()) / static_cast<double>(sum);
}

/// Mesh dims along which ranks hold different positions.
MeshDims split_along(const Plan& plan, int module) {
  return split_dims(plan.scenario.model, plan.modules.at(static_cast<std::size_t>(module)).layout);
}

/// Of an optimizer step: one per micro-batch.
std::vector<std::int64_t> passes_of(const Scenario& scenario, std::int64_t step) {
  std::vector<std::int64_t> passes(static_cast<std::size_t>(scenario.training.micro_batches));
  std::iota(passes.begin(), passes.end(), step * scenario.training.micro_batches);
  return passes;
}

/// Positions that all ranks together route to each expert, copies of positions counted once.
Counts tokens_of(const Plan& plan, int module, int index, std::int64_t step, bool is_balanced,
                 const Routing& routing) {
  const auto num_experts = static_cast<std::size_t>(
      plan.scenario.model.modules.at(static_cast<std::size_t>(module)).num_experts);
  Counts tokens(num_experts, 0);
  Coordinate coordinate(static_cast<std::size_t>(plan.mesh().num_dims()), 0);
  // Balanced routing is the same in every exchange group.
  const MeshDims split = split_along(plan, module);
  const MeshDims group = is_balanced ? exchange_dims(plan, module) : split;
  const std::int64_t num_groups = plan.mesh().size(split) / plan.mesh().size(group);
  do {
    for (const std::int64_t pass : passes_of(plan.scenario, step)) {
      const RoutedCounts routed = routing(coordinate, pass, index);
      for (std::size_t expert = 0; expert < num_experts; ++expert)
        tokens[expert] += num_groups * routed.at(expert);
    }
  } while (advance(plan.mesh(), group, coordinate));
  return tokens;
}

Counts received_by(const Plan& plan, int module, std::int64_t step, const Routing& routing) {
  Counts received;
  if (plan.mesh().num_ranks() > kMaxRoutedRanks) return received;
  for (std::int64_t rank = 0; rank < plan.mesh().num_ranks(); ++rank) {
    const Coordinate coordinate = plan.mesh().coordinate_of(Rank{rank});
    received.push_back(0);
    for (const std::int64_t pass : passes_of(plan.scenario, step))
      received.back() += token_counts(plan, module, pass, coordinate, routing).num_received();
  }
  return received;
}

/// "3 0 5 2"; of many "20 each", or "0 to 5 each"
std::string counts_text(const Counts& counts, bool full) {
  constexpr std::size_t kMost = 8;
  if (counts.size() <= kMost || full) return fmt::format("{}", fmt::join(counts, " "));
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  if (*least == *most) return format_count(*least) + " each";
  return fmt::format("{} to {} each", format_count(*least), format_count(*most));
}

}  // namespace

std::vector<RoutingReport> routing_reports(const Plan& plan, const RunResult& run) {
  const std::vector<int> modules = experts_modules(plan.scenario.model);
  if (modules.empty()) return {};
  const Routing routing = run_routing(plan, run);
  const std::int64_t num_steps = run.has_numbers() ? plan.scenario.training.steps : 1;
  std::vector<RoutingReport> reports;
  for (std::int64_t step = 0; step < num_steps; ++step) {
    for (int index = 0; index < static_cast<int>(modules.size()); ++index) {
      const int module = modules[static_cast<std::size_t>(index)];
      RoutingReport& report = reports.emplace_back();
      report.module = module_name(plan.scenario.model, module);
      report.step = step;
      report.is_assumed = !run.has_numbers();
      report.tokens = tokens_of(plan, module, index, step, report.is_assumed, routing);
      report.imbalance = imbalance_of(report.tokens);
      report.received = received_by(plan, module, step, routing);
      report.rank_imbalance = imbalance_of(report.received);
    }
  }
  return reports;
}

nlohmann::ordered_json routing_json(const std::vector<RoutingReport>& routing) {
  return list_json(routing, [](const RoutingReport& report) {
    Json json{{"module", report.module},
              {"step", report.step},
              {"is_assumed", report.is_assumed},
              {"tokens", report.tokens},
              {"imbalance", number(report.imbalance)}};
    if (!report.received.empty()) {
      json["received"] = report.received;
      json["rank_imbalance"] = number(report.rank_imbalance);
    }
    return json;
  });
}

std::string routing_section(const Report& report, const TextStyle& style) {
  if (report.routing.empty()) return {};
  constexpr std::size_t kMaxLines = 12;
  const bool lists_ranks = !report.routing[0].received.empty();
  std::vector<Column> columns = {
      {"experts", false, true}, {"step"}, {"tokens of each expert", false, true}, {"max/mean"}};
  if (lists_ranks)
    columns.insert(columns.end(), {{"tokens that each rank gets", false, true}, {"max/mean"}});
  Table table(std::move(columns));
  const std::size_t count = report.routing.size();
  const bool folds = !style.full && count > kMaxLines;
  const std::size_t shown = folds ? kMaxLines - 1 : count;
  for (std::size_t i = 0; i < shown; ++i) {
    const RoutingReport& each = report.routing[i];
    std::vector<Cell> row = {{each.module},
                             {each.is_assumed ? "any" : fmt::format("{}", each.step)},
                             {counts_text(each.tokens, style.full)},
                             {fmt::format("{:.2f}", each.imbalance)}};
    if (lists_ranks) {
      row.push_back({counts_text(each.received, style.full)});
      row.push_back({fmt::format("{:.2f}", each.rank_imbalance)});
    }
    table.add_row(std::move(row));
  }
  if (folds)
    table.add_line(fmt::format("… {} more lines; --full tells all of them", count - shown));
  return "\n" + table.text(kIndent, kTextWidth, style.color);
}

}  // namespace hpsim
