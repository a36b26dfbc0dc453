#include "report/text_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "plan/rank_layout.h"
#include "plan/recomputation.h"
#include "report/table.h"

namespace hpsim {

std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", format_count(count), noun, count == 1 ? "" : "s");
}

std::string mesh_text(const Mesh& mesh) {
  std::vector<std::string> dims;
  for (int dim = 0; dim < mesh.num_dims(); ++dim)
    dims.push_back(fmt::format("{} {}", mesh.name(dim), mesh.size(dim)));
  return fmt::format("{}", fmt::join(dims, " x "));
}

std::string dims_text(const Mesh& mesh, const MeshDims& dims) {
  if (dims.size() == 1) return fmt::format("{} {}", mesh.name(dims[0]), mesh.size(dims));
  return fmt::format("({}) {}", mesh.names(dims), mesh.size(dims));
}

std::string step_text(const Step& step) {
  return fmt::format("{}{}{}", name_of(step.kind), step.is_async ? " async" : "",
                     step.is_recomputed ? " again" : "");
}

std::vector<std::string> recomputed_parts(const Plan& plan) {
  std::vector<std::string> names;
  const std::vector<ModelPart> parts = model_parts(plan.scenario.model);
  auto part = parts.begin();
  for (const RecomputedSpec& spec : plan.scenario.training.recomputed) {
    // Parts and what is computed again have the same order; of parts alike the outer one is named.
    part = std::find_if(part, parts.end(), [&](const ModelPart& each) {
      return each.first == spec.first && each.end == spec.end;
    });
    if (is_computed_again(plan, spec)) names.push_back(part->name);
  }
  return names;
}

std::string recomputed_text(const std::vector<std::string>& parts, std::string_view rest) {
  constexpr std::size_t kMaxParts = 4;
  if (parts.empty())
    return "nothing is computed again in backward: it runs through none of the parts to checkpoint";
  const std::size_t shown = std::min(kMaxParts, parts.size());
  const std::size_t more = parts.size() - shown;
  return fmt::format(
      "computed again in backward{}: {}{}", rest,
      fmt::join(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
      more > 0 ? fmt::format(" and {} more", more) : "");
}

namespace {

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

/// "float32 derived", "float32, params bfloat16, reduce float32 derived"
std::string precision_text(const Scenario& scenario) {
  std::string text(name_of(scenario.numerics.dtype));
  const MixedPrecision& policy = scenario.fully_shard.mp_policy;
  if (policy.param_dtype) text += fmt::format(", params {}", name_of(*policy.param_dtype));
  if (policy.reduce_dtype) text += fmt::format(", reduce {}", name_of(*policy.reduce_dtype));
  if (policy.output_dtype) text += fmt::format(", outputs {}", name_of(*policy.output_dtype));
  return text + (scenario.is_exact() ? " exact" : " derived");
}

/// "2 steps of 8 samples", "1 step of 24 samples in 3 micro-batches"
std::string steps_text(const TrainingSpec& training) {
  std::string text = fmt::format("{} of {}", counted(training.steps, "step"),
                                 counted(training.global_batch, "sample"));
  if (training.micro_batches > 1)
    text += fmt::format(" in {} micro-batches", format_count(training.micro_batches));
  return text;
}

/// "clip 0.5", "clip 0.5 of the inf-norm"
std::string clip_text(const std::optional<ClipSpec>& clip) {
  if (!clip) return {};
  if (clip->norm_type == 2) return fmt::format("clip {}", clip->max_norm);
  return fmt::format("clip {} of the {}-norm", clip->max_norm, clip->norm_type);
}

}  // namespace

std::string header_text(const Scenario& scenario, std::string_view leader, const TextStyle& style) {
  std::string text = painted(scenario.name, Ink::Bold, style.color);
  const std::size_t used = columns_of(scenario.name) + 3;
  if (!scenario.description.empty() && used < kTextWidth) {
    text += painted(fmt::format(" · {}", elided(scenario.description, kTextWidth - used)), Ink::Dim,
                    style.color);
  }
  std::size_t used_columns = 0;
  for (const std::string& part :
       {std::string(leader), "mesh " + mesh_text(scenario.mesh),
        counted(scenario.mesh.num_ranks(), "rank"), precision_text(scenario),
        steps_text(scenario.training), optimizer_text(scenario.training.optimizer),
        clip_text(scenario.training.clip_grad_norm)}) {
    if (part.empty()) continue;
    const bool begins = used_columns == 0 || used_columns + columns_of(part) + 3 > kTextWidth;
    text += begins ? "\n" : " · ";
    used_columns = columns_of(part) + (begins ? 0 : used_columns + 3);
    text += part;
  }
  text += '\n';
  return text;
}

std::string wrapped(std::string_view text, std::size_t indent, std::size_t width) {
  std::string lines;
  std::string line;
  const auto end_line = [&] {
    if (!line.empty()) lines += std::string(indent, ' ') + line + '\n';
    line.clear();
  };
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (!line.empty() && indent + columns_of(line) + 1 + columns_of(word) > width) end_line();
    if (!line.empty() && !word.empty()) line += ' ';
    line += word;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  end_line();
  return lines;
}

std::string labelled(std::string_view label, std::size_t indent, std::size_t label_columns,
                     std::string_view text) {
  const std::size_t begin = indent + label_columns + 2;
  const std::string lines = wrapped(text, begin, kTextWidth);
  std::string head = std::string(indent, ' ').append(label);
  if (lines.empty()) return head + '\n';
  if (columns_of(label) > label_columns) return head + '\n' + lines;
  head.append(begin - columns_of(head), ' ');
  return head + lines.substr(begin);
}

std::string ranks_text(const std::vector<Rank>& ranks, std::int64_t total) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end].value == ranks[end - 1].value + 1)
      ++end;
    if (end - i >= 3) {
      parts.push_back(fmt::format("{}..{}", ranks[i].value, ranks[end - 1].value));
      i = end;
    } else {
      parts.push_back(fmt::format("{}", ranks[i++].value));
    }
  }
  if (static_cast<std::int64_t>(ranks.size()) < total) {
    parts.push_back(fmt::format("… ({})", format_count(total)));
  }
  return fmt::format("rank{} {}", total == 1 ? "" : "s", fmt::join(parts, ", "));
}

std::string shard_rows_text(const std::vector<ShardRun>& runs) {
  constexpr std::int64_t kMaxListed = 8;
  const std::int64_t num_shards = runs.empty() ? 0 : runs.back().shards.end;
  std::vector<std::string> parts;
  for (const ShardRun& run : runs) {
    const std::int64_t count = run.shards.length();
    if (num_shards <= kMaxListed) {
      parts.insert(parts.end(), static_cast<std::size_t>(count), fmt::format("{}", run.length));
    } else {
      parts.push_back(count == 1
                          ? format_count(run.length)
                          : fmt::format("{} (x{})", format_count(run.length), format_count(count)));
    }
  }
  return fmt::format("{}", fmt::join(parts, " "));
}

namespace {

/// Shapes that TP and EP leave of a parameter, each once.
std::vector<Shape> wholes_of(const Mesh& mesh, const PlannedParameter& parameter) {
  std::vector<Shape> wholes;
  for (const Coordinate& coordinate : telling_coordinates(mesh, parameter)) {
    Shape whole = held_shard(mesh, parameter, coordinate).whole.shape;
    if (std::find(wholes.begin(), wholes.end(), whole) == wholes.end()) {
      wholes.push_back(std::move(whole));
    }
  }
  return wholes;
}

/// Cells into what is told: elements if several dims are cut.
std::int64_t units_per_cell(const ShardCut& cut, const Shape& whole) {
  const std::int64_t cells = num_cells(cut, whole);
  return cut.dims.size() > 1 && cells > 0 ? num_elems(whole) / cells : 1;
}

}  // namespace

std::string shards_text(const Mesh& mesh, const PlannedParameter& parameter) {
  const ShardCut& cut = parameter.cut;
  std::vector<std::string> texts;
  for (const Shape& whole : wholes_of(mesh, parameter)) {
    std::vector<ShardRun> runs = shard_runs(cut, whole);
    for (ShardRun& run : runs)
      run.length *= units_per_cell(cut, whole);
    std::string text = shard_rows_text(runs);
    if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
  }
  std::string text = fmt::format("{}", fmt::join(texts, " | "));
  if (cut.dims.size() > 1) return text + " elements";
  return cut.is_by_rows() ? text : fmt::format("{} (dim {})", text, cut.dims[0]);
}

std::int64_t padding_of(const Mesh& mesh, const PlannedParameter& parameter) {
  const ShardCut& cut = parameter.cut;
  std::int64_t padding = 0;
  Coordinate coordinate(static_cast<std::size_t>(mesh.num_dims()), 0);
  const MeshDims dims = cutting_dims(parameter.unsharded);
  // Where nothing depends on the coordinate, one stands for all.
  const MeshDims varying = parameter.padded_elems.is_uniform() ? MeshDims{} : dims;
  do {
    const Shape whole = held_shard(mesh, parameter, coordinate).whole.shape;
    std::int64_t longest = 0;
    for (const ShardRun& run : shard_runs(cut, whole))
      longest = std::max(longest, run.length);
    padding += (longest * cut.num_shards - num_cells(cut, whole)) * units_per_cell(cut, whole);
  } while (advance(mesh, varying, coordinate));
  return varying.empty() ? padding * mesh.size(dims) : padding;
}

bool CollectiveKind::has(const CollectiveSpec& spec) const {
  return op == spec.op && dims == spec.dims && group_size == spec.group_size &&
         dtype == spec.dtype && takes_max == spec.takes_max;
}

bool CollectiveKind::is_like(const CollectiveKind& other) const {
  return op == other.op && dims == other.dims && group_size == other.group_size &&
         dtype == other.dtype && takes_max == other.takes_max;
}

std::vector<CollectiveKind> collective_kinds(const Report& report, std::int64_t step) {
  std::vector<CollectiveKind> kinds;
  // They are in order of steps.
  auto next = std::partition_point(report.collectives.begin(), report.collectives.end(),
                                   [step](const auto& each) { return each.step < step; });
  for (; next != report.collectives.end() && next->step == step; ++next) {
    const CollectiveReport& collective = *next;
    const CollectiveSpec& spec = collective.spec;
    const double scale = spec.prescale * spec.scale;
    auto kind = std::find_if(kinds.begin(), kinds.end(),
                             [&](const CollectiveKind& other) { return other.has(spec); });
    if (kind == kinds.end()) {
      kinds.push_back({.op = spec.op,
                       .dims = spec.dims,
                       .group_size = spec.group_size,
                       .dtype = spec.dtype,
                       .takes_max = spec.takes_max,
                       .phase = collective.phase,
                       .scale = scale});
      kind = kinds.end() - 1;
    }
    ++kind->count;
    kind->bytes_in += collective.elems_in().largest() * size_bytes(spec.dtype);
    kind->bytes_out += collective.elems_out().largest() * size_bytes(spec.dtype);
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

std::string left_out_text(const LeftOut& left_out) {
  std::vector<std::string> parts;
  if (left_out.errors > 0) parts.push_back(counted(left_out.errors, "error"));
  if (left_out.warnings > 0) parts.push_back(counted(left_out.warnings, "warning"));
  return fmt::format("and {} more findings of {}: {}", left_out.errors + left_out.warnings,
                     name_of(left_out.check), fmt::join(parts, ", "));
}

std::string source_of(const Report& report, const Finding& finding) {
  if (finding.line == 0) return report.file;
  return fmt::format("{}:{}:{}", report.file, finding.line, finding.column);
}

}  // namespace hpsim
