#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "mesh/group.h"
#include "report/explain_report.h"
#include "report/json.h"
#include "report/report.h"
#include "report/table.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

constexpr std::size_t kMaxParameters = 12;
constexpr std::size_t kMaxRuns = 4;  // of a parameter told in few lines
constexpr std::int64_t kMaxMembers = 4;
constexpr std::size_t kMaxPlacement = 160;
constexpr std::size_t kLayoutColumns = 49;

/// What is said of one parameter.
class Section {
 public:
  Section(const Plan& plan, const ParameterFacts& facts, const TextStyle& style)
      : plan_(plan),
        mesh_(plan.mesh()),
        facts_(facts),
        parameter_(plan.parameter(facts.parameter)),
        bucket_(plan.bucket(parameter_.bucket)),
        style_(style) {
    for (int dim = 0; dim < mesh_.num_dims(); ++dim)
      dim_columns_ = std::max(dim_columns_, columns_of(dim_text(dim)));
  }

  [[nodiscard]] std::string in_detail(const std::optional<Rank>& rank) const {
    std::string text = title() + "\n" + picture_section(plan_, facts_, style_) + placements() +
                       groups() + gradient() + life(rank);
    if (rank) text += of_rank(*rank);
    return text;
  }

  [[nodiscard]] std::string in_short(const std::optional<Rank>& rank) const {
    const std::size_t columns = std::max<std::size_t>(dim_columns_, 8);
    std::string text = title();
    for (const DimFact& fact : facts_.dims) {
      text += labelled(dim_text(fact.mesh_dim), kIndent, columns,
                       fmt::format("{}: {}", placement_text(fact.mesh_dim), fact.rule));
    }
    text += labelled("parts", kIndent, columns, parts_text());
    text += labelled("gradient", kIndent, columns, reductions_text());
    if (rank) {
      text += labelled(fmt::format("rank {}", rank->value), kIndent, columns, held_text());
    }
    return text;
  }

 private:
  [[nodiscard]] std::int64_t width() const { return size_bytes(parameter_.dtype); }
  [[nodiscard]] const Step& step(int index) const {
    return plan_.steps[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] std::string dim_text(int dim) const {
    return fmt::format("{} {}", mesh_.name(dim), mesh_.size(dim));
  }
  [[nodiscard]] static std::string heading(const std::string& text) {
    return "\n" + wrapped(text, kIndent, kTextWidth);
  }

  /// "weight (7, 8) · 56 elements, 224 B · unit (root)"
  [[nodiscard]] std::string title() const {
    const std::int64_t elems = num_elems(parameter_.shape);
    std::string rest = fmt::format(" {} · {}, {} · unit {}", to_string(parameter_.shape),
                                   counted(elems, "element"), format_bytes(elems * width()),
                                   plan_.unit_name(bucket_));
    if (bucket_.parameters.size() > 1) {
      rest += fmt::format(
          ", fused with {}",
          counted(static_cast<std::int64_t>(bucket_.parameters.size()) - 1, "other parameter"));
    }
    const std::string name = painted(parameter_.name, Ink::Bold, style_.color);
    if (columns_of(parameter_.name + rest) <= kTextWidth) return name + rest + "\n";
    return name + "\n" + wrapped(rest, kIndent, kTextWidth);
  }

  /// "RaggedShard((0,), (2, 2, 2, 1)) -> Replicate", or one of them if they are the same.
  [[nodiscard]] std::string placement_text(int dim) const {
    const Vocabulary vocabulary = plan_.scenario.fully_shard.vocabulary;
    const auto at = static_cast<std::size_t>(dim);
    const std::string text = to_string(parameter_.sharded[at], vocabulary);
    const std::string sharded = style_.full ? text : elided(text, kMaxPlacement);
    if (parameter_.sharded[at] == parameter_.unsharded[at]) return sharded;
    return fmt::format("{} -> {}", sharded, to_string(parameter_.unsharded[at], vocabulary));
  }

  [[nodiscard]] std::string placements() const {
    std::string text = heading("placements: sharded -> in compute, and why");
    for (const DimFact& fact : facts_.dims) {
      text += labelled(dim_text(fact.mesh_dim), 2 * kIndent, dim_columns_,
                       placement_text(fact.mesh_dim));
      text += labelled("", 2 * kIndent, dim_columns_, fact.rule);
    }
    return text;
  }

  /// "all_gather (forward, backward), reduce_scatter (backward)", "all_gather (3 forward, 3
  /// backward)"
  [[nodiscard]] std::string sends_text(const std::vector<int>& steps) const {
    struct Sent {
      CollectiveOp op;
      std::vector<std::pair<std::string_view, std::int64_t>> phases;  ///< and how often there
    };
    std::vector<Sent> sent;
    for (const int index : steps) {
      const CollectiveOp op = step(index).collective->op;
      auto found =
          std::find_if(sent.begin(), sent.end(), [op](const Sent& each) { return each.op == op; });
      if (found == sent.end()) found = sent.insert(sent.end(), {op, {}});
      const std::string_view phase = name_of(step(index).phase);
      auto known = std::find_if(found->phases.begin(), found->phases.end(),
                                [phase](const auto& each) { return each.first == phase; });
      if (known == found->phases.end()) known = found->phases.insert(known, {phase, 0});
      ++known->second;
    }
    std::vector<std::string> parts;
    for (const Sent& each : sent) {
      std::vector<std::string> phases;
      for (const auto& [phase, count] : each.phases)
        phases.push_back(count == 1 ? std::string(phase) : fmt::format("{} {}", count, phase));
      parts.push_back(fmt::format("{} ({})", name_of(each.op), fmt::join(phases, ", ")));
    }
    return fmt::format("{}", fmt::join(parts, ", "));
  }

  [[nodiscard]] std::string groups() const {
    std::string text = heading("groups, and what is sent over them");
    for (const GroupFact& fact : facts_.groups) {
      std::string words;
      if (!fact.group.dims.empty()) {
        words = fmt::format("{}, {}: ", dims_text(mesh_, fact.group.dims),
                            counted(mesh_.num_ranks() / fact.group.size, "group"));
      }
      words += fact.steps.empty() ? "nothing" : sends_text(fact.steps);
      text += labelled(name_of(fact.kind), 2 * kIndent, 9, fmt::format("{}; {}", words, fact.why));
    }
    return text;
  }

  [[nodiscard]] std::string gradient() const {
    std::string text = heading("gradient, as backward computes it");
    for (const GradientFact& fact : facts_.gradient) {
      std::string words(name_of(fact.state));
      words += ": " + fact.why;
      if (averages(fact.steps)) {
        words += "; left so: all_reduce averages the weights instead";
      } else if (!fact.steps.empty()) {
        words += fmt::format("; {} adds it up", ops_text(fact.steps));
      }
      text += labelled(dim_text(fact.mesh_dim), 2 * kIndent, dim_columns_, words);
    }
    return text + labelled("k/F", 2 * kIndent, dim_columns_, scale_text());
  }

  [[nodiscard]] bool averages(const std::vector<int>& steps) const {
    return std::any_of(steps.begin(), steps.end(),
                       [&](int index) { return step(index).kind == StepKind::AverageWeights; });
  }

  [[nodiscard]] std::string ops_text(const std::vector<int>& steps) const {
    std::vector<std::string_view> ops;
    for (const int index : steps) {
      const std::string_view op = name_of(step(index).collective->op);
      if (std::find(ops.begin(), ops.end(), op) == ops.end()) ops.push_back(op);
    }
    return fmt::format("{}", fmt::join(ops, ", "));
  }

  /// "1/4: F = 4, number of data ranks; multiplies the output of step 7, reduce_scatter"
  [[nodiscard]] std::string scale_text() const {
    const ScaleFact& scale = facts_.scale;
    const auto applied = [&](int index, const char* to) {
      const StepKind kind = step(index).kind;
      if (kind == StepKind::ScaleGradient) {
        return fmt::format("step {}, {}", index, name_of(kind));
      }
      return fmt::format("the {} of step {}, {}", to, index, name_of(kind));
    };
    std::string text = fmt::format("{}: F = {}, {}", format_factor(scale.factor / scale.divisor),
                                   format_factor(scale.divisor), scale.why);
    if (scale.factor != 1) {
      text += fmt::format("; k = {}, gradient_scaling_factor", format_factor(scale.factor));
    }
    if (scale.factor_step >= 0 && scale.factor_step == scale.divisor_step &&
        step(scale.factor_step).kind == StepKind::ScaleGradient) {
      return text + fmt::format("; applied in {}", applied(scale.factor_step, ""));
    }
    const auto where = [&](int index, const char* end) {
      const bool is_local = step(index).kind == StepKind::ScaleGradient;
      return fmt::format("{} {}", is_local ? "in" : "to", applied(index, end));
    };
    if (scale.factor_step >= 0) {
      text += fmt::format("; k is applied {}", where(scale.factor_step, "input"));
    }
    if (scale.divisor_step >= 0) {
      text += fmt::format("; 1/F is applied {}", where(scale.divisor_step, "output"));
    }
    return text;
  }

  /// "shard, Partial(rep)", "whole"
  [[nodiscard]] std::string layout_name(const std::vector<Placement>& placements) const {
    if (placements.empty()) return "none";
    MeshDims partial;
    bool is_shard = parameter_.shard_size() > 1;
    for (int dim = 0; dim < mesh_.num_dims(); ++dim) {
      const auto at = static_cast<std::size_t>(dim);
      if (std::holds_alternative<Partial>(placements[at])) partial.push_back(dim);
      if (contains(parameter_.sharded_group.dims, dim)) {
        is_shard = is_shard && placements[at] == parameter_.sharded[at];
      }
    }
    std::string text = is_shard ? "shard" : "whole";
    if (!partial.empty()) text += fmt::format(" Partial({})", mesh_.names(partial));
    return text;
  }

  [[nodiscard]] std::string life(const std::optional<Rank>& rank) const {
    const std::int64_t holder = rank ? rank->value : mesh_.rank_at(facts_.rank.coordinate).value;
    std::string text = heading(fmt::format(
        "through optimizer step 0 on rank {} (whole: what compute sees; collectives carry padding)",
        holder));
    Table table({{"#", true}, {"step"}, {"of"}, {"what it is"}, {"bytes"}});
    for (const LifeStep& each : facts_.life) {
      const Step& s = step(each.step);
      const std::string before = layout_name(each.before);
      const std::string after = layout_name(each.after);
      std::string layout = before == after ? before : fmt::format("{} -> {}", before, after);
      const std::string second =
          columns_of(layout) > kLayoutColumns ? fmt::format("-> {}", after) : std::string();
      if (!second.empty()) layout = before;
      std::string bytes = format_bytes(each.bytes_before);
      if (each.bytes_before != each.bytes_after) {
        bytes += fmt::format(" -> {}", format_bytes(each.bytes_after));
      }
      table.add_row({{fmt::format("{}", each.step), Ink::Dim},
                     {step_text(s)},
                     {each.is_gradient ? "grad" : "param"},
                     {layout},
                     {bytes}});
      if (!second.empty()) table.add_row({{}, {}, {}, {second}, {}});
    }
    return text + table.text(2 * kIndent, kTextWidth, style_.color);
  }

  /// "(6, 0) + (1, 8): 8 elements, 32 B, + 8 of padding"
  [[nodiscard]] std::string held_text() const {
    const RankFact& rank = facts_.rank;
    std::string text =
        fmt::format("{}: {}, {}", to_string(rank.held.boxes), counted(rank.held.elems, "element"),
                    format_bytes(rank.held.elems * width()));
    if (rank.held.elems == 0) {
      text = fmt::format("nothing, at {}", to_string(rank.held.boxes));
    }
    if (rank.padding_elems > 0) {
      text += fmt::format(", and {} of padding", counted(rank.padding_elems, "element"));
    }
    return text;
  }

  /// Ranks along `dims` from this one's coordinate; of a large mesh where they sit, and the first.
  [[nodiscard]] std::string members(const MeshDims& dims, Rank rank) const {
    const std::int64_t size = mesh_.size(dims);
    if (style_.full || mesh_.num_ranks() <= kMaxListedRanks) {
      return ranks_text(group_of(mesh_, dims, rank), size);
    }
    std::vector<std::string> along;
    MeshDims fixed;
    for (int dim = 0; dim < mesh_.num_dims(); ++dim) {
      if (!contains(dims, dim)) {
        fixed.push_back(dim);
      } else {
        along.push_back(fmt::format("{} 0..{}", mesh_.name(dim), mesh_.size(dim) - 1));
      }
    }
    return fmt::format("{}{}{}: {}", fmt::join(along, ", "), fixed.empty() ? "" : " at ",
                       coordinate_text(mesh_, fixed, facts_.rank.coordinate),
                       ranks_text(group_of(mesh_, dims, rank, kMaxMembers), size));
  }

  [[nodiscard]] std::string of_rank(Rank rank) const {
    const RankFact& fact = facts_.rank;
    MeshDims all;
    for (int dim = 0; dim < mesh_.num_dims(); ++dim)
      all.push_back(dim);
    std::string text = heading(
        fmt::format("rank {} at {}", rank.value, coordinate_text(mesh_, all, fact.coordinate)));
    const auto add = [&text](std::string_view label, const std::string& words) {
      text += labelled(label, 2 * kIndent, 9, words);
    };
    add("holds", held_text());
    const std::int64_t slot = fact.held.elems + fact.padding_elems;
    add("slot", fmt::format("elements {} of the {} in its row of the bucket",
                            to_string(Interval{fact.offset_elems, fact.offset_elems + slot}),
                            format_count(fact.row_elems)));
    const std::int64_t same = mesh_.size(fact.same_dims);
    add("copies", same == 1 ? "no other rank holds the same"
                            : fmt::format("the same on {}", members(fact.same_dims, rank)));
    for (const GroupFact& group : facts_.groups) {
      if (group.steps.empty()) continue;
      // What is sent may span fewer dims than the group.
      MeshDims dims;
      for (const int index : group.steps)
        dims = union_of(dims, step(index).collective->dims);
      add(name_of(group.kind),
          fmt::format("{} among {}", ops_once(group.steps), members(dims, rank)));
    }
    return text;
  }

  /// Names of the operations, each once.
  [[nodiscard]] std::string ops_once(const std::vector<int>& steps) const {
    std::vector<std::string_view> ops;
    for (const int index : steps) {
      const auto op = name_of(step(index).collective->op);
      if (std::find(ops.begin(), ops.end(), op) == ops.end()) ops.push_back(op);
    }
    return fmt::format("{}", fmt::join(ops, ", "));
  }

  /// Runs of parts on one line.
  [[nodiscard]] std::string parts_text() const {
    if (parameter_.shard_size() > 1 && parameter_.cut.dims.size() > 1) {
      return shards_text(mesh_, parameter_);
    }
    if (facts_.cuts.empty()) return "whole on every rank";
    std::vector<std::string> texts;
    for (const AxisCut& cut : facts_.cuts) {
      std::vector<std::string> runs;
      for (const PartRun& run : cut.runs) {
        if (runs.size() == kMaxRuns) break;
        runs.push_back(run_text(mesh_, parameter_.shape, cut, run));
      }
      if (cut.runs.size() > runs.size()) {
        runs.push_back(fmt::format("… {} more runs", cut.runs.size() - runs.size()));
      }
      texts.push_back(fmt::format("{}", fmt::join(runs, "; ")));
    }
    return fmt::format("{}", fmt::join(texts, " | "));
  }

  /// "reduce_scatter over fsdp 4, all_reduce over rep 2; k/F = 1/8", "all_reduce of the weights
  /// ..."
  [[nodiscard]] std::string reductions_text() const {
    std::vector<std::string> parts;
    for (const LifeStep& each : facts_.life) {
      const Step& s = step(each.step);
      if (!s.collective || !is_reduction(s.collective->op)) continue;
      parts.push_back(fmt::format("{}{} over {}", name_of(s.collective->op),
                                  s.kind == StepKind::AverageWeights ? " of the weights" : "",
                                  dims_text(mesh_, s.collective->dims)));
    }
    return fmt::format(
        "{}; k/F = {}",
        parts.empty() ? "nothing is sent" : fmt::format("{}", fmt::join(parts, ", ")),
        format_factor(facts_.scale.factor / facts_.scale.divisor));
  }

  const Plan& plan_;
  const Mesh& mesh_;
  const ParameterFacts& facts_;
  const PlannedParameter& parameter_;
  const Bucket& bucket_;
  const TextStyle& style_;
  std::size_t dim_columns_ = 3;
};

}  // namespace

std::string explain_text(const Plan& plan, const ExplainView& view, bool color) {
  const TextStyle style{color, view.full};
  const Explainer explainer(plan);
  const Mesh& mesh = plan.mesh();
  const Coordinate coordinate = view.rank
                                    ? mesh.coordinate_of(*view.rank)
                                    : Coordinate(static_cast<std::size_t>(mesh.num_dims()), 0);
  std::string text = header_text(plan.scenario, "explain", style);
  if (!view.in_detail) text += activations_text(plan, style);
  const bool folds = !view.full && view.parameters.size() > kMaxParameters;
  const std::size_t shown = folds ? kMaxParameters - 1 : view.parameters.size();
  for (std::size_t i = 0; i < shown; ++i) {
    const ParameterFacts facts = explainer.explain(view.parameters[i], coordinate);
    const Section section(plan, facts, style);
    text += "\n";
    text += view.in_detail ? section.in_detail(view.rank) : section.in_short(view.rank);
  }
  if (folds) {
    text += "\n" +
            painted(fmt::format("… {} more parameters; --full tells all of them",
                                view.parameters.size() - shown),
                    Ink::Dim, color) +
            "\n";
  }
  if (!view.in_detail) {
    text += "\n" +
            painted("--param NAME draws a parameter and tells all about it", Ink::Dim, color) +
            "\n";
  }
  return text;
}

}  // namespace hpsim
