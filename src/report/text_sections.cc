#include "report/text_sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/units.h"
#include "report/table.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

constexpr std::size_t kMaxParameterLines = 12;
constexpr std::size_t kMaxStepLines = 6;

/// "fsdp 4", "fsdp 4, copies rep 2", "copies rep, fsdp 8"
std::string groups_text(const Mesh& mesh, const PlannedParameter& parameter) {
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

std::string placements_text(const std::vector<Placement>& placements, Vocabulary vocabulary) {
  std::vector<std::string> parts;
  for (const Placement& placement : placements)
    parts.push_back(to_string(placement, vocabulary));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string number_at(const std::vector<double>& values, std::size_t i) {
  return i < values.size() ? fmt::format("{:.7g}", values[i]) : std::string();
}

std::string count_text(const Report& report, const CollectiveKind& kind) {
  std::int64_t least = kind.count;
  std::int64_t most = kind.count;
  for (std::int64_t step = 1; step < report.scenario->training.steps; ++step) {
    std::int64_t count = 0;
    for (const CollectiveKind& other : collective_kinds(report, step)) {
      if (other.is_like(kind)) count = other.count;
    }
    least = std::min(least, count);
    most = std::max(most, count);
  }
  return least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most);
}

std::string scale_text(const CollectiveKind& kind) {
  if (!is_reduction(kind.op)) return {};
  if (kind.takes_max) return "max";
  if (!kind.scale) return "sum, scales differ";
  return *kind.scale == 1 ? "sum" : "sum x " + format_factor(*kind.scale);
}

/// Short names of MemoryKind, in its order.
constexpr std::array<const char*, kNumMemoryKinds> kMemoryWords = {
    "shards",         "padding",   "unsharded parameters", "unsharded gradients",
    "reduce buffers", "gradients", "optimizer state",      "activations"};

constexpr std::size_t kPeakColumns = 36;  // of where the peak is, so that kinds have room

/// The peak of all memory and where it is, and the kinds that weigh most, as many as fit; each has
/// its peak at its own moment.
std::string memory_line(const Report& report) {
  std::vector<std::size_t> kinds;
  for (std::size_t kind = 0; kind < report.ledger.size(); ++kind) {
    if (report.ledger[kind].peak_bytes > 0) kinds.push_back(kind);
  }
  std::stable_sort(kinds.begin(), kinds.end(), [&report](std::size_t a, std::size_t b) {
    return report.ledger[a].peak_bytes > report.ledger[b].peak_bytes;
  });
  std::string line =
      fmt::format("  peak memory per rank {}", format_bytes(report.counters.peak_bytes));
  if (!report.peak_at.empty()) {
    line += fmt::format(" at {}", elided(report.peak_at, kPeakColumns));
    if (report.scenario->training.steps > 1) line += fmt::format(", step {}", report.peak_at_step);
  }
  const char* separator = ": ";
  for (const std::size_t kind : kinds) {
    const std::string part = fmt::format("{}{} {}", separator, kMemoryWords[kind],
                                         format_bytes(report.ledger[kind].peak_bytes));
    if (columns_of(line) + columns_of(part) > kTextWidth) break;
    line += part;
    separator = ", ";
  }
  return line + '\n';
}

/// What backward computes again, and how many of a step's collectives come again with it.
std::string recomputed_line(const Report& report) {
  if (report.scenario->training.recomputed.empty()) return {};
  const auto count = std::count_if(
      report.collectives.begin(), report.collectives.end(),
      [](const CollectiveReport& each) { return each.is_recomputed && each.step == 0; });
  std::string text = recomputed_text(report.recomputed, "");
  if (!report.recomputed.empty())
    text += fmt::format("; with {} of the collectives", count == 0 ? "none" : format_count(count));
  return wrapped(text, kIndent, kTextWidth);
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
    case CheckId::Precision:
    case CheckId::Expect:
      return CheckColumn::Run;
    case CheckId::LossParity:
    case CheckId::GradientParity:
    case CheckId::ParameterParity:
    case CheckId::OptimizerStateParity:
    case CheckId::GradNormParity:
    case CheckId::Routing:
      return CheckColumn::Baseline;
  }
  return CheckColumn::Run;
}

/// Of runs of several steps: where roundings have led after the last one.
std::string drift_line(const Report& report) {
  if (report.drift.size() < 2) return {};
  const StepDrift& last = report.drift.back();
  const std::string text = fmt::format(
      "after {} steps parameters are {:.1e} from those of a free training in float64 (relative "
      "2-norm), at most {:.1e}, in {}",
      report.drift.size(), last.relative, last.largest,
      report.parameters.at(static_cast<std::size_t>(last.parameter)).name);
  return labelled("drift", kIndent, 5, text);
}

}  // namespace

std::string parameters_section(const Report& report, const TextStyle& style) {
  Table table({{"parameter", false, true},
               {"shape"},
               {"placements", false, true},
               {"rows", false, true},
               {"pad", true},
               {"groups"}});
  const Mesh& mesh = report.scenario->mesh;
  const Vocabulary vocabulary = report.scenario->fully_shard.vocabulary;
  const std::size_t count = report.parameters.size();
  const bool folds = !style.full && count > kMaxParameterLines;
  const std::size_t shown = folds ? kMaxParameterLines - 1 : count;
  for (std::size_t i = 0; i < shown; ++i) {
    const PlannedParameter& parameter = report.parameters[i];
    table.add_row({{parameter.name},
                   {to_string(parameter.shape)},
                   {placements_text(parameter.sharded, vocabulary)},
                   {shards_text(mesh, parameter)},
                   {format_count(padding_of(mesh, parameter))},
                   {groups_text(mesh, parameter)}});
  }
  if (folds) table.add_line(fmt::format("… {} more parameters", count - shown));
  return fmt::format("\n{}", table.text(kIndent, kTextWidth, style.color));
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
  return fmt::format("\n{}{}", table.text(kIndent, kTextWidth, style.color), drift_line(report));
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
  return text + recomputed_line(report) + memory_line(report);
}

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

}  // namespace hpsim
