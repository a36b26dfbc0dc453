#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/units.h"
#include "plan/step_text.h"
#include "report/plan_report.h"
#include "report/report.h"
#include "report/table.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

constexpr std::size_t kMaxRepeatLength = 16;  // steps of a block that repeats unit after unit
constexpr std::size_t kMinFolded = 4;         // lines that a fold must save
constexpr std::size_t kMaxLines = 60;
constexpr std::size_t kLinesAtEnd = 15;  // of a plan that is folded in the middle
constexpr std::size_t kMaxLayouts = 6;   // per rule
constexpr std::size_t kMaxLayoutColumns = 180;

/// "≤" where the number depends on the coordinate.
std::string_view at_most(const PerCoordinate& number) {
  return number.is_uniform() ? "" : "≤";
}

std::string elements_text(const CollectiveSpec& spec) {
  return fmt::format("{}{} -> {}{}", at_most(spec.elems_in), format_count(spec.elems_in.largest()),
                     at_most(spec.elems_out), format_count(spec.elems_out.largest()));
}

/// "64 -> 256 B", "768 B -> 3 KiB"
std::string bytes_text(const CollectiveSpec& spec) {
  const std::int64_t width = size_bytes(spec.dtype);
  std::string in = format_bytes(spec.elems_in.largest() * width);
  const std::string out = format_bytes(spec.elems_out.largest() * width);
  const std::size_t unit = in.find(' ');
  if (in.substr(unit) == out.substr(out.find(' '))) in.resize(unit);
  return fmt::format("{}{} -> {}{}", at_most(spec.elems_in), in, at_most(spec.elems_out), out);
}

/// Numbers the rules in the order of their first use, and below each the layouts it leads from and
/// to: "3" if there is one of these, else "3.1", "3.2".
class Footnotes {
 public:
  void add(const Why& why) {
    const auto [entry, is_new] = index_.try_emplace(std::string(why.rule), rules_.size());
    if (is_new) rules_.push_back({std::string(why.rule), {}});
    auto& layouts = rules_[entry->second].layouts;
    const std::pair layout(why.before, why.after);
    if (std::find(layouts.begin(), layouts.end(), layout) == layouts.end()) {
      layouts.push_back(layout);
    }
  }

  [[nodiscard]] std::string label(const Why& why) const {
    const std::size_t number = index_.at(std::string(why.rule));
    const auto& layouts = rules_[number].layouts;
    if (layouts.size() == 1) return fmt::format("{}", number + 1);
    const auto found = std::find(layouts.begin(), layouts.end(), std::pair(why.before, why.after));
    return fmt::format("{}.{}", number + 1, found - layouts.begin() + 1);
  }

  [[nodiscard]] std::string text(const TextStyle& style) const {
    std::string text;
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      const Rule& rule = rules_[i];
      text += labelled(fmt::format("{}", i + 1), kIndent, 2, rule.text);
      const bool folds = !style.full && rule.layouts.size() > kMaxLayouts;
      const std::size_t shown = folds ? kMaxLayouts - 1 : rule.layouts.size();
      for (std::size_t k = 0; k < shown; ++k) {
        const auto& [before, after] = rule.layouts[k];
        if (before.empty() && after.empty()) continue;
        const std::string label =
            rule.layouts.size() == 1 ? std::string() : fmt::format("{}.{}", i + 1, k + 1);
        text +=
            labelled(label, kIndent + 4, label.empty() ? 0 : 4,
                     fmt::format("{} -> {}", shortened(before, style), shortened(after, style)));
      }
      if (folds) {
        text += labelled(
            "", kIndent + 4, 4,
            fmt::format("… {} more layouts; --full lists them", rule.layouts.size() - shown));
      }
    }
    return text;
  }

 private:
  [[nodiscard]] static std::string shortened(const std::string& layout, const TextStyle& style) {
    return style.full ? layout : elided(layout, kMaxLayoutColumns);
  }

  struct Rule {
    std::string text;
    std::vector<std::pair<std::string, std::string>> layouts;
  };
  std::map<std::string, std::size_t> index_;
  std::vector<Rule> rules_;
};

/// A line of the table. `work` is all that it says but for whose step it is.
struct Line {
  std::string heading;  ///< of a phase that begins with it
  std::string index;
  std::string kind;
  std::string of;
  std::vector<std::string> work;
  std::string why;

  [[nodiscard]] bool does_the_same_as(const Line& other) const {
    return kind == other.kind && work == other.work && why == other.why && other.heading.empty();
  }
};

class PlanText {
 public:
  PlanText(const PlanReport& report, const PlanView& view, bool color)
      : report_(report), plan_(report.plan), view_(view), style_{color, view.full} {
    for (const Step& step : plan_.steps) {
      if (is_shown(step)) footnotes_.add(step.why);
      has_recomputed_ = has_recomputed_ || step.is_recomputed;
      if (!step.collective) continue;
      has_collectives_ = true;
      has_other_dtypes_ =
          has_other_dtypes_ || step.collective->dtype != plan_.scenario.numerics.dtype;
      has_routed_ = has_routed_ || step.collective->is_routed;
      has_uneven_ =
          has_uneven_ || (!step.collective->is_routed && !step.collective->elems_in.is_uniform());
    }
    buckets_of_unit_.assign(plan_.scenario.units.size(), 0);
    for (const Bucket& bucket : plan_.buckets)
      ++buckets_of_unit_[static_cast<std::size_t>(bucket.unit)];
    has_fused_ = std::any_of(plan_.buckets.begin(), plan_.buckets.end(),
                             [](const Bucket& bucket) { return bucket.parameters.size() > 1; });
  }

  [[nodiscard]] std::string text() const {
    return header_text(plan_.scenario, "plan", style_) + steps_line() + table() + "\n" +
           footnotes_.text(style_) + recomputed_line() + wire_lines() + memory_lines() + verdict();
  }

 private:
  [[nodiscard]] bool is_shown(const Step& step) const {
    return view_.step ? step.step == *view_.step : view_.full || step.step == 0;
  }

  /// Which optimizer steps are shown, and how the others differ.
  [[nodiscard]] std::string steps_line() const {
    const std::int64_t count = plan_.scenario.training.steps;
    if (count == 1) return "\n";
    std::string text = view_.step || !view_.full
                           ? fmt::format("optimizer step {} of {}", view_.step.value_or(0), count)
                           : fmt::format("all {} optimizer steps", count);
    const auto differences = step_differences(plan_);
    if (differences.empty()) {
      text += count == 2 ? "; both do the same" : "; all of them do the same";
    } else {
      std::vector<std::string> parts;
      for (const StepDifference& difference : differences) {
        if (parts.size() == 5) break;
        parts.push_back(
            fmt::format("step {} from its step {} on", difference.step, difference.position));
      }
      text += fmt::format("; other work than in step 0: {}{}", fmt::join(parts, ", "),
                          differences.size() > parts.size() ? ", …" : "");
    }
    if (!view_.full) text += " (--step T shows another, --full all)";
    return wrapped(text, 0, kTextWidth) + "\n";
  }

  /// Whose step it is: unit or module; of a unit with several buckets the parameters too.
  [[nodiscard]] std::string subject(const Step& step) const {
    if (step.redistribution >= 0) {
      return activation_text(
          plan_, plan_.redistributions.at(static_cast<std::size_t>(step.redistribution)));
    }
    if (step.module >= 0) return module_name(plan_.scenario.model, step.module);
    if (step.bucket < 0) return {};
    const Bucket& bucket = plan_.bucket(step.bucket);
    const std::string& unit = plan_.unit_name(bucket);
    const bool is_alone = buckets_of_unit_[static_cast<std::size_t>(bucket.unit)] == 1;
    const bool is_whole =
        step.row < 0 || plan_.gradient_row(step.row).parameters == bucket.parameters;
    if (is_alone && is_whole && step.partial < 0) return unit;
    const std::vector<int>& all =
        step.row < 0 ? bucket.parameters : plan_.gradient_row(step.row).parameters;
    Interval members{0, static_cast<std::int64_t>(all.size())};
    if (step.partial >= 0) {
      members =
          plan_.gradient_row(step.row).partials.at(static_cast<std::size_t>(step.partial)).members;
    }
    const int first = all.at(static_cast<std::size_t>(members.begin));
    const std::string& name = plan_.parameter(first).name;
    if (members.length() == 1) return fmt::format("{}: {}", unit, name);
    return fmt::format("{}: {}, … ({})", unit, name, members.length());
  }

  /// Of a redistribution what it does; of an unshard whether it is only begun; "forward ↻" of what
  /// is recomputed.
  [[nodiscard]] std::string kind_of(const Step& step) const {
    if (step.redistribution < 0 && !step.is_recomputed) return step_text(step);
    std::string_view kind = name_of(step.kind);
    if (step.redistribution >= 0) {
      const auto at = static_cast<std::size_t>(step.redistribution);
      kind = name_of(plan_.redistributions.at(at).transition.op);
    }
    return fmt::format("{}{}", kind, step.is_recomputed ? " ↻" : "");
  }

  [[nodiscard]] Line line(std::size_t index) const {
    const Step& step = plan_.steps[index];
    Line line{.index = fmt::format("{}", index),
              .kind = kind_of(step),
              .of = subject(step),
              .why = footnotes_.label(step.why)};
    line.work.resize(5);
    if (step.kind == StepKind::ScaleGradient) line.work[4] = format_factor(step.local_scale);
    if (step.redistribution >= 0) {
      const auto at = static_cast<std::size_t>(step.redistribution);
      line.work[0] = dims_text(plan_.mesh(), plan_.redistributions.at(at).transition.mesh_dims);
    }
    if (!step.collective) return line;
    const CollectiveSpec& spec = *step.collective;
    line.work[0] = dims_text(plan_.mesh(), spec.dims);
    if (spec.consecutive > 0) line.work[0] += fmt::format(" by {}", spec.consecutive);
    line.work[1] = format_count(plan_.mesh().num_ranks() / spec.group_size);
    line.work[2] = elements_text(spec);
    const DType usual = plan_.scenario.numerics.dtype;
    if (spec.dtype != usual) line.work[2] += fmt::format(" {}", name_of(spec.dtype));
    line.work[3] = bytes_text(spec);
    if (is_reduction(spec.op)) {
      line.work[4] = format_factor(spec.scale);
      if (spec.prescale != 1) {
        line.work[4] = fmt::format("{} in, {}", format_factor(spec.prescale), line.work[4]);
      }
    }
    return line;
  }

  /// "forward", "step 1 forward", "backward of micro-batch 0"
  [[nodiscard]] std::string heading(const Step& step) const {
    std::string text(name_of(step.phase));
    const bool shows_all = !view_.step && view_.full && plan_.scenario.training.steps > 1;
    if (shows_all) text = fmt::format("step {} {}", step.step, text);
    const bool has_several = plan_.scenario.training.micro_batches > 1;
    if (has_several && step.phase != Phase::Optimizer)
      text += fmt::format(" of micro-batch {}", step.micro_batch);
    return text;
  }

  [[nodiscard]] std::vector<Line> lines() const {
    std::vector<Line> lines;
    const Step* before = nullptr;
    for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
      const Step& step = plan_.steps[i];
      if (!is_shown(step)) continue;
      lines.push_back(line(i));
      if (before == nullptr || before->phase != step.phase || before->step != step.step)
        lines.back().heading = heading(step);
      before = &step;
    }
    return lines;
  }

  /// How often the block of `length` lines at `begin` comes in a row.
  [[nodiscard]] static std::size_t repeats(const std::vector<Line>& lines, std::size_t begin,
                                           std::size_t length) {
    std::size_t end = begin + length;
    while (end < lines.size() && lines[end - length].does_the_same_as(lines[end]))
      ++end;
    return (end - begin) / length;
  }

  [[nodiscard]] std::string table() const {
    Table table({{"#", true},
                 {"step"},
                 {"of", false, true},
                 {"over"},
                 {"groups", true},
                 {"elements"},
                 {"bytes"},
                 {"scale"},
                 {"why"}});
    const std::vector<Line> lines = this->lines();
    std::vector<std::vector<Cell>> rows;  // one cell: a line of its own
    for (std::size_t i = 0; i < lines.size();) {
      std::size_t length = 1;
      std::size_t count = 1;
      for (std::size_t tried = 1; !view_.full && tried <= kMaxRepeatLength; ++tried) {
        const std::size_t found = repeats(lines, i, tried);
        if ((found - 1) * tried >= kMinFolded && found * tried > count * length) {
          length = tried;
          count = found;
        }
      }
      for (std::size_t k = i; k < i + length; ++k) {
        const Line& line = lines[k];
        if (!line.heading.empty()) rows.push_back({{line.heading}});
        std::vector<Cell> row = {{line.index, Ink::Dim}, {line.kind}, {line.of}};
        for (const std::string& cell : line.work)
          row.push_back({cell});
        row.push_back({line.why, Ink::Dim});
        rows.push_back(std::move(row));
      }
      if (count > 1) rows.push_back({{repeat_text(lines, i, length, count)}});
      i += length * count;
    }
    fold(rows);
    for (std::vector<Cell>& row : rows) {
      if (row.size() == 1) {
        table.add_line(std::move(row[0].text));
      } else {
        table.add_row(std::move(row));
      }
    }
    return table.text(kIndent, kTextWidth, style_.color);
  }

  /// "… the same 3 steps for 98 more: l1 to l98 (3 to 296)", "... for 1 more: l1 (3 to 5)"
  [[nodiscard]] static std::string repeat_text(const std::vector<Line>& lines, std::size_t begin,
                                               std::size_t length, std::size_t count) {
    const Line& first = lines[begin + length];
    const Line& last = lines[begin + length * (count - 1)];
    constexpr std::size_t kNameColumns = 24;  // of each, so that the line is not too long
    const std::string to =
        first.of == last.of ? std::string() : " to " + elided(last.of, kNameColumns);
    return fmt::format("… the same{} for {} more: {}{} ({} to {})",
                       length == 1 ? std::string() : fmt::format(" {} steps", length), count - 1,
                       elided(first.of, kNameColumns), to, first.index,
                       lines[begin + length * count - 1].index);
  }

  /// Leaves out the middle of what is still too long.
  void fold(std::vector<std::vector<Cell>>& rows) const {
    if (view_.full || rows.size() <= kMaxLines) return;
    const auto first = rows.begin() + static_cast<std::ptrdiff_t>(kMaxLines - kLinesAtEnd - 1);
    const auto last = rows.end() - static_cast<std::ptrdiff_t>(kLinesAtEnd);
    const std::string text = fmt::format("… {} more lines; --full shows all", last - first);
    rows.insert(rows.erase(first, last), std::vector<Cell>{Cell{text}});
  }

  [[nodiscard]] std::string recomputed_line() const {
    return has_recomputed_ ? "\n↻: a step of forward that comes again in backward.\n" : "";
  }

  [[nodiscard]] std::string wire_lines() const {
    if (!has_collectives_) return {};
    std::string text =
        "Elements and bytes are per rank; scale multiplies what comes out, or what goes in";
    const auto usual = name_of(plan_.scenario.numerics.dtype);
    text += has_other_dtypes_
                ? fmt::format("; collectives carry {} where no other type stands", usual)
                : fmt::format("; all collectives carry {}", usual);
    if (has_fused_) {
      text += "; layouts are those of one parameter of the unit, hpsim explain tells each";
    }
    if (has_uneven_) {
      text += "; ≤: tensor parallelism leaves ranks different sizes, --format json lists them";
    }
    if (has_routed_) text += "; experts are taken to get equal numbers of positions";
    return "\n" + wrapped(text + ".", 0, kTextWidth);
  }

  /// No column of the table: blocks that are folded into one have the same steps, but not the same
  /// memory.
  [[nodiscard]] std::string memory_lines() const {
    const MemoryProfile& memory = report_.memory;
    const std::int64_t peak = memory.peak_step();
    if (peak < 0) {
      if (!report_.passed) return {};
      return "\n" + wrapped(
                        "Memory per rank: ranks hold too many different sets of shards to tell "
                        "it here; hpsim run --backend symbolic tells peaks.",
                        0, kTextWidth);
    }
    const auto at = static_cast<std::size_t>(peak);
    const Step& step = plan_.steps[at];
    // The number may be of an optimizer step that is not listed.
    const std::string when = plan_.scenario.training.steps > 1
                                 ? fmt::format(" of optimizer step {}", step.step)
                                 : std::string();
    return "\n" +
           wrapped(
               fmt::format("Memory per rank: {} while parameters are made, at most {} in "
                           "step {}, {}{}; {} are left at the end.",
                           format_bytes(memory.init_peak_total),
                           format_bytes(memory.events[at].peak_total), peak, step_text(plan_, step),
                           when, format_bytes(memory.events.back().total_after)),
               0, kTextWidth);
  }

  [[nodiscard]] std::string verdict() const {
    std::string checks;
    std::int64_t compared = 0;
    std::vector<std::string_view> failed;
    for (const CheckResult& check : report_.checks) {
      checks +=
          fmt::format("{}{} {}", checks.empty() ? "" : "    ",
                      painted(fmt::format("{} {}", check.passed ? "✓" : "✗", name_of(check.id)),
                              check.passed ? Ink::Green : Ink::Red, style_.color),
                      format_count(check.compared));
      compared += check.compared;
      if (!check.passed) failed.push_back(name_of(check.id));
    }
    const std::string badge = painted(report_.passed ? "PASS" : "FAIL",
                                      report_.passed ? Ink::Green : Ink::Red, style_.color);
    const std::string failures =
        failed.empty() ? std::string()
                       : fmt::format(", {} failed: {}", failed.size(), fmt::join(failed, ", "));
    Report findings;
    findings.findings = report_.findings;
    findings.left_out = report_.left_out;
    return fmt::format("\n  {}\n\n{}  {}{}, {} compared; nothing has run\n", checks, badge,
                       counted(static_cast<std::int64_t>(report_.checks.size()), "check"), failures,
                       counted(compared, "fact")) +
           findings_text(findings, style_);
  }

  const PlanReport& report_;
  const Plan& plan_;
  const PlanView& view_;
  TextStyle style_;
  Footnotes footnotes_;
  bool has_collectives_ = false;
  bool has_other_dtypes_ = false;
  bool has_routed_ = false;
  bool has_recomputed_ = false;
  std::vector<std::int64_t> buckets_of_unit_;
  bool has_uneven_ = false;
  bool has_fused_ = false;
};

}  // namespace

std::string plan_text(const PlanReport& report, const PlanView& view, bool color) {
  return PlanText(report, view, color).text();
}

}  // namespace hpsim
