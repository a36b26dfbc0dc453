#include "report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/units.h"
#include "report/table.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

constexpr std::size_t kIndent = 2;
constexpr std::size_t kMaxParameterLines = 12;
constexpr std::size_t kMaxStepLines = 6;

struct Badge {
  const char* word;
  Ink ink;
};

Badge badge_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::Pass:
      return {"PASS", Ink::Green};
    case Outcome::Fail:
      return {"FAIL", Ink::Red};
    case Outcome::Error:
      return {"ERROR", Ink::Red};
  }
  return {"", Ink::Plain};
}

std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", format_count(count), noun, count == 1 ? "" : "s");
}

std::string optimizer_text(const OptimizerSpec& optimizer) {
  switch (optimizer.kind) {
    case OptimizerSpec::Kind::Sgd:
      return fmt::format("sgd lr {:.6g}", optimizer.lr);
    case OptimizerSpec::Kind::Adam:
      return fmt::format("adam lr {:.6g}", optimizer.lr);
    case OptimizerSpec::Kind::AdamW:
      return fmt::format("adamw lr {:.6g}", optimizer.lr);
  }
  return {};
}

/// "fsdp 4" or "rep 2 x fsdp 4"
std::string mesh_text(const Mesh& mesh) {
  std::vector<std::string> dims;
  for (int dim = 0; dim < mesh.num_dims(); ++dim)
    dims.push_back(fmt::format("{} {}", mesh.name(dim), mesh.size(dim)));
  return fmt::format("{}", fmt::join(dims, " x "));
}

std::string header(const Report& report, const TextStyle& style) {
  const Scenario& scenario = *report.scenario;
  std::string text = painted(report.name, Ink::Bold, style.color);
  const std::size_t used = columns_of(report.name) + 3;
  if (!report.description.empty() && used < kTextWidth) {
    text += painted(fmt::format(" · {}", elided(report.description, kTextWidth - used)), Ink::Dim,
                    style.color);
  }
  text += fmt::format("\n{} · mesh {} · {} · {} {} · {} of {} · {}\n", report.backend,
                      mesh_text(scenario.mesh), counted(scenario.mesh.num_ranks(), "rank"),
                      name_of(scenario.numerics.dtype), scenario.is_exact() ? "exact" : "derived",
                      counted(scenario.training.steps, "step"),
                      counted(scenario.training.global_batch, "sample"),
                      optimizer_text(scenario.training.optimizer));
  return text;
}

/// "fsdp 4", "fsdp 4, copies rep 2", "copies rep, fsdp 8"
std::string groups_text(const Mesh& mesh, const ParameterReport& parameter) {
  std::vector<std::string> parts;
  if (parameter.sharded_group.size > 1) {
    parts.push_back(fmt::format("{} {}", mesh.names(parameter.sharded_group.dims),
                                parameter.sharded_group.size));
  }
  if (parameter.unsharded_group.size > 1) {
    parts.push_back(fmt::format("copies {} {}", mesh.names(parameter.unsharded_group.dims),
                                parameter.unsharded_group.size));
  }
  if (parameter.partial_group.size > 1) {
    parts.push_back(fmt::format("partial {} {}", mesh.names(parameter.partial_group.dims),
                                parameter.partial_group.size));
  }
  return parts.empty() ? "none" : fmt::format("{}", fmt::join(parts, ", "));
}

std::string parameters_section(const Report& report, const TextStyle& style) {
  Table table({{"parameter", false, true},
               {"shape"},
               {"placements", false, true},
               {"rows", false, true},
               {"pad", true},
               {"groups"}});
  const std::size_t count = report.parameters.size();
  const bool folds = !style.full && count > kMaxParameterLines;
  const std::size_t shown = folds ? kMaxParameterLines - 1 : count;
  for (std::size_t i = 0; i < shown; ++i) {
    const ParameterReport& parameter = report.parameters[i];
    table.add_row({{parameter.name},
                   {to_string(parameter.global_shape)},
                   {to_string(parameter.sharded)},
                   {shard_rows_text(parameter.runs)},
                   {fmt::format("{}", padding_rows(parameter))},
                   {groups_text(report.scenario->mesh, parameter)}});
  }
  if (folds) table.add_line(fmt::format("… {} more parameters", count - shown));
  return fmt::format("\n{}", table.text(kIndent, kTextWidth, style.color));
}

std::string number_at(const std::vector<double>& values, std::size_t i) {
  return i < values.size() ? fmt::format("{:.7g}", values[i]) : std::string();
}

std::string steps_section(const Report& report, const TextStyle& style) {
  if (report.losses.empty()) {
    return fmt::format("\n  {}\n",
                       painted("no numbers are computed: layouts, collectives, bytes and "
                               "memory are checked",
                               Ink::Dim, style.color));
  }
  Table table({{"step", true}, {"loss", true}, {"baseline loss", true}, {"grad norm", true}});
  const std::size_t count = report.losses.size();
  const bool folds = !style.full && count > kMaxStepLines;
  const std::size_t head = folds ? kMaxStepLines - 3 : count;
  const std::size_t tail = folds ? 2 : 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (folds && i == head) table.add_line(fmt::format("… {} more steps", count - head - tail));
    if (i >= head && i < count - tail) continue;
    table.add_row({{fmt::format("{}", i)},
                   {number_at(report.losses, i)},
                   {number_at(report.baseline_losses, i)},
                   {number_at(report.grad_norms, i)}});
  }
  return fmt::format("\n{}", table.text(kIndent, kTextWidth, style.color));
}

std::string count_text(const Report& report, const CollectiveKind& kind) {
  std::int64_t least = kind.count;
  std::int64_t most = kind.count;
  for (std::int64_t step = 1; step < report.scenario->training.steps; ++step) {
    std::int64_t count = 0;
    for (const CollectiveKind& other : collective_kinds(report, step)) {
      if (other.op == kind.op && other.dims == kind.dims && other.dtype == kind.dtype) {
        count = other.count;
      }
    }
    least = std::min(least, count);
    most = std::max(most, count);
  }
  return least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most);
}

std::string scale_text(const CollectiveKind& kind) {
  if (kind.op == CollectiveOp::AllGather) return {};
  if (!kind.scale) return "sum, scales differ";
  return *kind.scale == 1 ? "sum" : "sum x " + format_factor(*kind.scale);
}

/// Short names of MemoryKind, in its order.
constexpr std::array<const char*, kNumMemoryKinds> kMemoryWords = {
    "shards",         "padding",   "unsharded parameters", "unsharded gradients",
    "reduce buffers", "gradients", "optimizer state",      "activations"};

/// The peak of all memory, and the kinds that weigh most; each has its peak at its own moment.
std::string memory_line(const Report& report) {
  constexpr std::size_t kMaxKinds = 3;
  std::vector<std::size_t> kinds;
  for (std::size_t kind = 0; kind < report.ledger.size(); ++kind) {
    if (report.ledger[kind].peak_bytes > 0) kinds.push_back(kind);
  }
  const auto heavier = [&report](std::size_t a, std::size_t b) {
    return report.ledger[a].peak_bytes > report.ledger[b].peak_bytes;
  };
  std::stable_sort(kinds.begin(), kinds.end(), heavier);
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < std::min(kinds.size(), kMaxKinds); ++i) {
    parts.push_back(fmt::format("{} {}", kMemoryWords[kinds[i]],
                                format_bytes(report.ledger[kinds[i]].peak_bytes)));
  }
  return fmt::format("peak memory per rank {}: {}", format_bytes(report.counters.peak_bytes),
                     fmt::join(parts, ", "));
}

std::string collectives_section(const Report& report, const TextStyle& style) {
  std::string text = "\n";
  const std::vector<CollectiveKind> kinds = collective_kinds(report, 0);
  if (kinds.empty()) {
    text += painted("  no collectives: every group has one rank", Ink::Dim, style.color) + "\n";
  } else {
    Table table({{"collectives"},
                 {"per step", true},
                 {"over"},
                 {"bytes in", true},
                 {"bytes out", true},
                 {"on the wire"},
                 {"reduction"}});
    for (const CollectiveKind& kind : kinds) {
      table.add_row(
          {{std::string(name_of(kind.op))},
           {count_text(report, kind)},
           {fmt::format("{} {}", report.scenario->mesh.names(kind.dims), kind.group_size)},
           {format_bytes(kind.bytes_in)},
           {format_bytes(kind.bytes_out)},
           {std::string(name_of(kind.dtype))},
           {scale_text(kind)}});
    }
    text += table.text(kIndent, kTextWidth, style.color);
  }
  return text + std::string(kIndent, ' ') + memory_line(report) + "\n";
}

enum class CheckColumn { Plan, Run, Baseline };

CheckColumn column_of(CheckId id) {
  switch (id) {
    case CheckId::Coverage:
    case CheckId::SyncSet:
    case CheckId::Placements:
      return CheckColumn::Plan;
    case CheckId::PlanAgreement:
    case CheckId::ReplicaAgreement:
    case CheckId::Padding:
    case CheckId::Ledger:
    case CheckId::Expect:
      return CheckColumn::Run;
    case CheckId::LossParity:
    case CheckId::GradientParity:
    case CheckId::ParameterParity:
    case CheckId::OptimizerStateParity:
    case CheckId::GradNormParity:
      return CheckColumn::Baseline;
  }
  return CheckColumn::Run;
}

std::string ratio_text(const Report& report, double ratio) {
  if (ratio == 0 && report.scenario && report.scenario->is_exact()) return "equal";
  return fmt::format("{:.2g}", ratio);
}

/// Checks in three columns: of the plan, of the run, of the numbers against the baseline.
std::string checks_section(const Report& report, const TextStyle& style) {
  std::array<std::vector<CheckResult>, 3> columns;
  for (const CheckResult& check : report.checks)
    columns[static_cast<std::size_t>(column_of(check.id))].push_back(check);
  Table table({{"plan"},
               {"numbers", true},
               {"run"},
               {"numbers", true},
               {columns[2].empty() ? "" : "against the baseline"},
               {columns[2].empty() ? "" : "numbers", true},
               {columns[2].empty() ? "" : "err/bound", true}});
  std::size_t num_rows = 0;
  for (const auto& column : columns)
    num_rows = std::max(num_rows, column.size());
  for (std::size_t row = 0; row < num_rows; ++row) {
    std::vector<Cell> cells;
    for (const auto& column : columns) {
      if (row >= column.size()) {
        cells.insert(cells.end(), 2, Cell{});
        continue;
      }
      const CheckResult& check = column[row];
      const Ink ink = check.passed ? Ink::Green : Ink::Red;
      cells.push_back({fmt::format("{} {}", check.passed ? "✓" : "✗", name_of(check.id)), ink});
      cells.push_back({format_count(check.compared)});
    }
    if (row < columns[2].size() && columns[2][row].worst) {
      cells.push_back({ratio_text(report, columns[2][row].worst->ratio)});
    }
    table.add_row(std::move(cells));
  }
  return fmt::format("\n{}", table.text(kIndent, kTextWidth, style.color));
}

std::string notes_section(const Report& report, const TextStyle& style) {
  std::string text;
  for (const std::string& note : report.notes)
    text += std::string(kIndent, ' ') + painted("note: ", Ink::Yellow, style.color) + note + "\n";
  return text;
}

/// "35.9 ms: start 0.1, connect 18.1, run 16.6, verify 0.4": the parts in the unit of the total.
std::string timing_text(const Timing& timing) {
  const bool seconds = timing.total_s >= 1;
  const double unit = seconds ? 1 : 1e3;
  std::vector<std::string> parts;
  const auto add = [&](const char* name, double part_s) {
    if (part_s > 0)
      parts.push_back(fmt::format("{} {:.{}f}", name, part_s * unit, seconds ? 2 : 1));
  };
  add("start", timing.start_s);
  add("connect", timing.connect_s);
  add("run", timing.run_s);
  add("verify", timing.verify_s);
  return fmt::format("{:.{}f} {}{}{}", timing.total_s * unit, seconds ? 2 : 1, seconds ? "s" : "ms",
                     parts.empty() ? "" : ": ", fmt::join(parts, ", "));
}

std::string worst_text(const Report& report) {
  const std::optional<WorstElement> worst = worst_of(report);
  if (!worst) return {};
  if (ratio_text(report, worst->ratio) == "equal") return ", all equal";
  return fmt::format(", worst err/bound {:.2g}", worst->ratio);
}

std::string verdict_line(const Report& report, const TextStyle& style) {
  const Badge badge = badge_of(report.outcome);
  return fmt::format("\n{}  {}, {} compared{}\n      {}\n",
                     painted(badge.word, badge.ink, style.color),
                     counted(static_cast<std::int64_t>(report.checks.size()), "check"),
                     counted(total_compared(report), "number"), worst_text(report),
                     painted(timing_text(report.timing), Ink::Dim, style.color));
}

}  // namespace

std::string report_text(const Report& report, const TextStyle& style) {
  std::string text;
  if (report.scenario) text += header(report, style);
  if (report.has_run) {
    text += parameters_section(report, style);
    text += steps_section(report, style);
    text += collectives_section(report, style);
  }
  if (!report.checks.empty()) text += checks_section(report, style);
  text += notes_section(report, style);
  if (report.outcome != Outcome::Error) text += verdict_line(report, style);
  return text + findings_text(report, style);
}

std::string list_heading(std::size_t file_columns, const TextStyle& style) {
  return painted(fmt::format("       {:{}}  {:>6}  {:>10}  {:>9}  {:>8}", "scenario", file_columns,
                             "ranks", "compared", "err/bound", "time"),
                 Ink::Dim, style.color)
      .append("\n");
}

std::string report_line(const Report& report, std::size_t file_columns, const TextStyle& style) {
  const Badge badge = badge_of(report.outcome);
  std::string line = painted(fmt::format("{:5}", badge.word), badge.ink, style.color);
  line.append("  ").append(report.file);
  const std::size_t used = columns_of(report.file);
  if (used < file_columns) line.append(file_columns - used, ' ');
  if (report.outcome == Outcome::Error) return line + fmt::format("  exit {}\n", report.exit_code);
  const std::optional<WorstElement> worst = worst_of(report);
  return line + fmt::format("  {:>6}  {:>10}  {:>9}  {:>8}\n", report.scenario->mesh.num_ranks(),
                            format_count(total_compared(report)),
                            worst ? ratio_text(report, worst->ratio) : std::string(),
                            format_seconds(report.timing.total_s));
}

std::string summary_text(const std::vector<Report>& reports, std::size_t num_not_run,
                         double total_s, const TextStyle& style) {
  std::array<std::size_t, 3> counts{};
  for (const Report& report : reports)
    ++counts[static_cast<std::size_t>(report.outcome)];
  const bool all_passed = counts[0] == reports.size() && num_not_run == 0;
  std::string claims = fmt::format("{} passed", counts[0]);
  if (counts[1] > 0) claims += fmt::format(", {} failed", counts[1]);
  if (counts[2] > 0) claims += fmt::format(", {} ended in an error", counts[2]);
  if (num_not_run > 0) claims += fmt::format(", {} not run", num_not_run);
  return fmt::format(
      "\n{} of {} on {} · {}\n", painted(claims, all_passed ? Ink::Green : Ink::Red, style.color),
      reports.size() + num_not_run,
      reports.empty() ? std::string("nothing") : reports.front().backend, format_seconds(total_s));
}

}  // namespace hpsim
