#include "report/plan_report.h"

#include <algorithm>
#include <utility>

#include "plan/rank_layout.h"
#include "plan/step_text.h"
#include "plan/verify_plan.h"
#include "report/json.h"
#include "report/json_parts.h"
#include "trace/run_result.h"

namespace hpsim {
namespace {

/// The same but for the optimizer step that it is part of.
bool is_same_work(const Step& a, const Step& b) {
  return a.kind == b.kind && a.phase == b.phase && a.micro_batch == b.micro_batch &&
         a.bucket == b.bucket && a.module == b.module && a.is_async == b.is_async &&
         a.row == b.row && a.rows == b.rows && a.partial == b.partial &&
         a.redistribution == b.redistribution && a.is_recomputed == b.is_recomputed &&
         a.collective == b.collective && a.local_scale == b.local_scale &&
         a.why.before == b.why.before && a.why.after == b.why.after && a.why.rule == b.why.rule;
}

/// What collectives of a plan carry, and what runs beside them.
struct CollectiveTables {
  std::vector<PayloadReport> payloads;
  std::map<std::int64_t, Overlap> overlaps;
};

Json step_json(const PlanReport& report, const CollectiveTables& tables, std::size_t index,
               std::int64_t seq, bool lists_ranks) {
  const Plan& plan = report.plan;
  const std::vector<PayloadReport>& payloads = tables.payloads;
  const Step& step = plan.steps[index];
  Json json{{"index", index},
            {"kind", name_of(step.kind)},
            {"phase", name_of(step.phase)},
            {"step", step.step},
            {"micro_batch", step.micro_batch},
            {"unit", nullptr},
            {"params", Json::array()},
            {"module", nullptr}};
  if (step.is_recomputed) json["recomputed"] = true;
  if (step.bucket >= 0) {
    const PayloadReport& bucket = payloads[static_cast<std::size_t>(payload_of(plan, step))];
    json["unit"] = bucket.unit;
    std::vector<std::string> params = bucket.params;
    if (step.partial >= 0) {
      const Interval range = bucket.partials.at(static_cast<std::size_t>(step.partial));
      params.assign(bucket.params.begin() + range.begin, bucket.params.begin() + range.end);
    }
    json["params"] = params;
  }
  if (step.module >= 0) json["module"] = module_name(plan.scenario.model, step.module);
  if (step.redistribution >= 0) {
    const Redistribution& change =
        plan.redistributions.at(static_cast<std::size_t>(step.redistribution));
    json["redistribution"] = {
        {"op", name_of(change.transition.op)},
        {"activation", activation_text(plan, change)},
        {"mesh_dims", names_of_dims(plan.mesh(), change.transition.mesh_dims)}};
  }
  json["collective"] = nullptr;
  if (step.collective) {
    json["collective"] = collective_json(
        plan.mesh(), payloads, collective_report(plan, tables.overlaps, index, seq), lists_ranks);
  }
  if (step.is_async) json["async"] = true;
  json["local_scale"] =
      step.kind == StepKind::ScaleGradient ? number(step.local_scale) : Json(nullptr);
  const auto layout = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  if (!report.memory.events.empty()) {
    const MemoryProfile::Event& event = report.memory.events[index];
    json["peak_bytes"] = event.peak_total;
    json["live_bytes"] = event.total_after;
  }
  json["why"] = {{"before", layout(step.why.before)},
                 {"after", layout(step.why.after)},
                 {"rule", step.why.rule}};
  return json;
}

/// Of all optimizer steps, shown or not; null where the report has none.
Json memory_json(const PlanReport& report) {
  const std::int64_t peak = report.memory.peak_step();
  if (peak < 0) return nullptr;
  const auto at = static_cast<std::size_t>(peak);
  const Step& step = report.plan.steps[at];
  return {{"init", init_memory_json(report.memory)},
          {"peak",
           {{"bytes", report.memory.events[at].peak_total},
            {"plan_step", peak},
            {"at", step_text(report.plan, step)},
            {"step", step.step}}},
          {"live_at_end", report.memory.events.back().total_after}};
}

}  // namespace

PlanReport make_plan_report(Plan plan) {
  PlanReport report{.plan = plan};
  try {
    const VerifiedPlan verified = verify_plan(std::move(plan));
    report.passed = true;
    report.checks = verified.checks().results;
    report.findings = verified.checks().warnings;
    const double num_events =
        num_rank_classes(report.plan) * static_cast<double>(report.plan.steps.size());
    if (num_events <= static_cast<double>(ResultLayout::kMostEvents))
      report.memory = planned_profile(report.plan);
  } catch (const PlanRejected& rejected) {
    report.checks = rejected.checks().results;
    report.findings = rejected.findings();
    report.left_out = keep_told(report.findings);
    const std::vector<Finding>& warnings = rejected.checks().warnings;
    report.findings.insert(report.findings.end(), warnings.begin(), warnings.end());
  }
  return report;
}

std::vector<StepDifference> step_differences(const Plan& plan) {
  std::vector<StepDifference> differences;
  const auto& steps = plan.steps;
  const auto end_of = [&](std::size_t begin) {
    std::size_t end = begin;
    while (end < steps.size() && steps[end].step == steps[begin].step)
      ++end;
    return end;
  };
  const std::size_t first_end = end_of(0);
  for (std::size_t begin = first_end; begin < steps.size();) {
    const std::size_t end = end_of(begin);
    std::size_t i = 0;
    while (i < first_end && begin + i < end && is_same_work(steps[i], steps[begin + i]))
      ++i;
    if (i < first_end || begin + i < end) {
      differences.push_back({steps[begin].step, static_cast<std::int64_t>(i)});
    }
    begin = end;
  }
  return differences;
}

Json plan_json(const PlanReport& report, const PlanView& view) {
  const Plan& plan = report.plan;
  const Scenario& scenario = plan.scenario;
  const bool lists_ranks = view.full || plan.mesh().num_ranks() <= kMaxListedRanks;
  const CollectiveTables tables{payload_reports(plan), overlaps_of(plan)};
  Json differs = Json::array();
  for (const StepDifference& difference : step_differences(plan))
    differs.push_back(difference.step);
  Json json{
      {"plan", 1},
      {"hpsim_version", HPSIM_VERSION},
      {"scenario", {{"name", scenario.name}, {"file", scenario.file}, {"hash", scenario.hash}}},
      {"world_size", plan.mesh().num_ranks()},
      {"verdict", report.passed ? "pass" : "fail"},
      {"checks", list_json(report.checks, check_json)},
      {"findings", list_json(report.findings, finding_json)},
      {"optimizer_steps",
       {{"count", scenario.training.steps}, {"differ_from_first", std::move(differs)}}}};
  if (!report.left_out.empty())
    json["findings_left_out"] = list_json(report.left_out, left_out_json);
  json["memory"] = memory_json(report);
  json["steps"] = Json::array();
  std::int64_t seq = 0;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    const bool is_shown = view.step ? step.step == *view.step : view.full || step.step == 0;
    if (is_shown) json["steps"].push_back(step_json(report, tables, i, seq, lists_ranks));
    seq += step.collective ? 1 : 0;
  }
  return json;
}

}  // namespace hpsim
