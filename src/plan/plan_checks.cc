#include "plan/plan_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "layout/coverage.h"
#include "plan/outcome_recorder.h"
#include "plan/parameter_replay.h"
#include "plan/rank_layout.h"
#include "plan/well_formed.h"

namespace hpsim {
namespace {

/// Tensor dims whose extents a cut of TP, EP or fully_shard changes, dim by dim.
class CoverageCheck {
 public:
  CoverageCheck(const Plan& plan, OutcomeRecorder& recorder) : plan_(plan), recorder_(recorder) {}

  void check(const PlannedParameter& parameter) {
    std::set<Shape> wholes = {parameter.shape};
    for (int dim = 0; dim < static_cast<int>(parameter.shape.size()); ++dim) {
      for (const int mesh_dim : cutting_order(parameter.unsharded, dim))
        wholes = cut(parameter, wholes, dim, mesh_dim);
    }
    for (const Shape& whole : wholes) {
      const auto runs = shard_runs(parameter.cut, whole);
      tile(parameter, num_cells(parameter.cut, whole), parameter.cut.num_shards, runs);
      check_slots(parameter, whole, runs);
    }
  }

 private:
  /// The shapes that cutting tensor dim `dim` of `wholes` over `mesh_dim` leaves, each once.
  std::set<Shape> cut(const PlannedParameter& parameter, const std::set<Shape>& wholes, int dim,
                      int mesh_dim) {
    const auto at = static_cast<std::size_t>(dim);
    std::set<Shape> parts;
    for (const Shape& whole : wholes) {
      const std::int64_t count = plan_.mesh().size(mesh_dim);
      const auto runs = shard_runs(whole[at], count);
      tile(parameter, whole[at], count, runs);
      for (const ShardRun& run : runs) {
        Shape part = whole;
        part[at] = run.length;
        parts.insert(std::move(part));
      }
    }
    return parts;
  }

  void tile(const PlannedParameter& parameter, std::int64_t extent, std::int64_t count,
            const std::vector<ShardRun>& runs) {
    recorder_.count(static_cast<std::int64_t>(runs.size()));
    recorder_.append(tiling_findings(extent, count, runs, parameter.name));
  }

  void check_slots(const PlannedParameter& parameter, const Shape& whole,
                   const std::vector<ShardRun>& runs) {
    const std::int64_t slot = num_elems(padded_shape(parameter.cut, whole));
    for (const ShardRun& run : runs) {
      recorder_.count();
      const std::int64_t elems = shard_elems(parameter.cut, whole, run.shards.begin);
      if (elems <= slot) continue;
      recorder_.add(FindingCode::PaddingExposed, parameter.name,
                    fmt::format("shard {} of \"{}\" has {} elements, its slot {}", run.shards.begin,
                                parameter.name, elems, slot));
    }
  }

  const Plan& plan_;
  OutcomeRecorder& recorder_;
};

/// "rep 0, fsdp 3"
std::string coordinate_text(const Mesh& mesh, const Coordinate& coordinate) {
  std::string text;
  for (int dim = 0; dim < mesh.num_dims(); ++dim) {
    text += fmt::format("{}{} {}", dim == 0 ? "" : ", ", mesh.name(dim),
                        coordinate.at(static_cast<std::size_t>(dim)));
  }
  return text;
}

/// \pre they differ somewhere
Coordinate first_difference(const Mesh& mesh, const PerCoordinate& a, const PerCoordinate& b) {
  const MeshDims dims = union_of(a.dims(), b.dims());
  Coordinate coordinate(static_cast<std::size_t>(mesh.num_dims()), 0);
  while (a.at(mesh, coordinate) == b.at(mesh, coordinate) && advance(mesh, dims, coordinate)) {
  }
  return coordinate;
}

/// Slots of a bucket lie end to end, each as large as the padded shard of its parameter.
void check_row(const Plan& plan, const Bucket& bucket, OutcomeRecorder& recorder) {
  const Mesh& mesh = plan.mesh();
  PerCoordinate end_of_last;
  for (const int p : bucket.parameters) {
    const PlannedParameter& parameter = plan.parameter(p);
    recorder.count();
    if (parameter.offset_elems != end_of_last) {
      const Coordinate at = first_difference(mesh, parameter.offset_elems, end_of_last);
      const std::int64_t got = parameter.offset_elems.at(mesh, at);
      const std::int64_t wanted = end_of_last.at(mesh, at);
      recorder.add(FindingCode::OffsetWrong, parameter.name,
                   fmt::format("slot of \"{}\" begins at {} at ({}), the one before it ends at {}",
                               parameter.name, got, coordinate_text(mesh, at), wanted));
      recorder.with_numbers(static_cast<double>(wanted), static_cast<double>(got));
    }
    // Wherever TP leaves another size, and wherever the plan says that slots have one.
    std::vector<Coordinate> coordinates = telling_wholes(mesh, parameter);
    Coordinate coordinate(static_cast<std::size_t>(mesh.num_dims()), 0);
    while (advance(mesh, parameter.padded_elems.dims(), coordinate))
      coordinates.push_back(coordinate);
    for (const Coordinate& each : coordinates) {
      recorder.count();
      const std::int64_t wanted = num_elems(padded_shape_at(mesh, parameter, each));
      const std::int64_t got = parameter.padded_elems.at(mesh, each);
      if (got == wanted) continue;
      recorder.add(got < wanted ? FindingCode::PaddingExposed : FindingCode::CommShape,
                   parameter.name,
                   fmt::format("slot of \"{}\" has {} elements at ({}), its largest shard {}",
                               parameter.name, got, coordinate_text(mesh, each), wanted));
      recorder.with_numbers(static_cast<double>(wanted), static_cast<double>(got));
      break;
    }
    end_of_last = parameter.offset_elems.plus(mesh, parameter.padded_elems);
  }
  if (end_of_last != bucket.row_elems) {
    recorder.add(FindingCode::OffsetWrong, std::string(),
                 fmt::format("slots of unit \"{}\" end at {}, its row has {} elements",
                             plan.unit_name(bucket), to_string(mesh, end_of_last),
                             to_string(mesh, bucket.row_elems)));
  }
}

/// Slots of a gradient row lie end to end as those of its bucket, without what has no gradient.
void check_row(const Plan& plan, const GradientRow& row, OutcomeRecorder& recorder) {
  const Mesh& mesh = plan.mesh();
  PerCoordinate end_of_last;
  const std::vector<int>& all = plan.bucket(row.bucket).parameters;
  auto next = all.begin();
  for (std::size_t i = 0; i < row.parameters.size(); ++i) {
    const PlannedParameter& parameter = plan.parameter(row.parameters[i]);
    recorder.count();
    if (row.offsets.at(i) != end_of_last) {
      recorder.add(FindingCode::OffsetWrong, parameter.name,
                   fmt::format("slot of the gradient of \"{}\" begins at {}, the one before it "
                               "ends at {}",
                               parameter.name, to_string(mesh, row.offsets[i]),
                               to_string(mesh, end_of_last)));
    }
    next = std::find(next, all.end(), row.parameters[i]);
    if (next == all.end()) {
      recorder.add(
          FindingCode::OffsetWrong, parameter.name,
          fmt::format("the gradient of \"{}\" is in a row of unit \"{}\", out of the "
                      "order of its {} parameters",
                      parameter.name, plan.unit_name(plan.bucket(row.bucket)), all.size()));
    }
    end_of_last = row.offsets[i].plus(mesh, parameter.padded_elems);
  }
  if (end_of_last == row.row_elems) return;
  recorder.add(FindingCode::OffsetWrong, std::string(),
               fmt::format("slots of gradients of unit \"{}\" end at {}, their row has {} elements",
                           plan.unit_name(plan.bucket(row.bucket)), to_string(mesh, end_of_last),
                           to_string(mesh, row.row_elems)));
}

/// "balanced chunks of dims (0) over 4", "local units (1, 2) of dims (0)"
std::string cut_text(const ShardCut& cut) {
  if (cut.num_shards == 1) return "not cut";
  if (cut.is_ragged()) {
    return fmt::format("cut in local units {} of dims ({})", to_string(cut.local_units),
                       fmt::join(cut.dims, ", "));
  }
  return fmt::format("cut in {} chunks of dims ({}) over {}",
                     cut.chunking == Chunking::Ceil ? "ceil" : "balanced",
                     fmt::join(cut.dims, ", "), cut.num_shards);
}

int index_of(const Plan& plan, const PlannedParameter& parameter) {
  return static_cast<int>(&parameter - plan.parameters.data());
}

/// In what fully_shard does not cut a parameter as the scenario asks for, if anything.
std::optional<std::string> other_cut_than_asked(const Plan& plan,
                                                const PlannedParameter& parameter) {
  const Scenario& scenario = plan.scenario;
  const int p = index_of(plan, parameter);
  MeshDims dims;
  ShardCut wanted;
  if (is_sharded(scenario, p)) {
    dims = {*scenario.roles.fsdp_shard_dim};
    wanted = shard_cut_of(scenario, p, plan.mesh().size(dims));
  }
  if (parameter.cut == wanted && parameter.sharded_group.dims == dims) return std::nullopt;
  return fmt::format("\"{}\" is {}, over ({}), the scenario asks for: {}, over ({})",
                     parameter.name, cut_text(parameter.cut),
                     plan.mesh().names(parameter.sharded_group.dims), cut_text(wanted),
                     plan.mesh().names(dims));
}

/// The placement of fully_shard's mesh dim that the cut of a parameter asks for.
Placement placement_of_cut(const Plan& plan, const PlannedParameter& parameter) {
  return fully_shard_placement(parameter.cut, {parameter.shape, parameter.unsharded}, plan.mesh(),
                               plan.scenario.fully_shard.vocabulary);
}

/// Whether placements are those of its cut; along other mesh dims, of unsharded parameters.
bool is_placed_by_cut(const Plan& plan, const PlannedParameter& parameter) {
  std::vector<Placement> wanted = parameter.unsharded;
  if (!parameter.sharded_group.dims.empty()) {
    wanted.at(static_cast<std::size_t>(parameter.sharded_group.dims[0])) =
        placement_of_cut(plan, parameter);
  }
  return parameter.sharded == wanted;
}

/// Placements that imply the same rows as those of the cut, or none.
std::string wrong_placement(const Plan& plan, const PlannedParameter& parameter) {
  std::vector<Placement> wanted = parameter.unsharded;
  if (!parameter.sharded_group.dims.empty()) {
    wanted.at(static_cast<std::size_t>(parameter.sharded_group.dims[0])) =
        placement_of_cut(plan, parameter);
  }
  const Vocabulary vocabulary = plan.scenario.fully_shard.vocabulary;
  return fmt::format("\"{}\" is {}, its cut asks for {}", parameter.name,
                     to_string(parameter.sharded, vocabulary), to_string(wanted, vocabulary));
}

/// What a vocabulary cannot say about a parameter, empty if nothing.
std::string inexpressible(const Plan& plan, const PlannedParameter& parameter) {
  const Vocabulary vocabulary = plan.scenario.fully_shard.vocabulary;
  if (vocabulary == Vocabulary::Ragged || parameter.sharded_group.dims.empty()) return {};
  const ShardCut& cut = parameter.cut;
  const auto mesh_dim = static_cast<std::size_t>(parameter.sharded_group.dims[0]);
  if (cut.is_ragged()) {
    if (vocabulary == Vocabulary::Torch) return "PyTorch has no ragged shards";
    if (std::holds_alternative<RaggedStridedShard>(parameter.sharded.at(mesh_dim))) {
      return "HyperParallel has no RaggedStridedShard";
    }
    return {};
  }
  if (vocabulary != Vocabulary::UnevenFlag) return {};
  bool some_even = false;
  bool some_uneven = false;
  for (const Coordinate& coordinate : telling_coordinates(plan.mesh(), parameter)) {
    const Box whole = local_box({parameter.shape, parameter.unsharded}, plan.mesh(), coordinate);
    (is_even(cut, whole.shape) ? some_even : some_uneven) = true;
  }
  if (!some_even || !some_uneven) return {};
  return "ranks to which TP leaves a number of rows that divides would not set the flag";
}

/// Rows of a parameter cut over `count` ranks by the ceil rule that rank `index` has.
Interval ceil_rows(std::int64_t rows, std::int64_t count, std::int64_t index) {
  const std::int64_t chunk = (rows + count - 1) / count;
  return {std::min(index * chunk, rows), std::min((index + 1) * chunk, rows)};
}

/// Between forward and backward PyTorch registers a DTensor that says Shard(0) over k ranks, while
/// they hold runs of padded shards: where rows are uneven its rows are not those that are held.
/// Empty where they are.
std::string post_forward_difference(const Plan& plan, const PlannedParameter& parameter) {
  const std::int64_t parts = plan.bucket(parameter.bucket).post_forward_size;
  if (parts == 0 || !parameter.cut.is_by_rows()) return {};
  for (const Coordinate& coordinate : telling_wholes(plan.mesh(), parameter)) {
    const Shape whole =
        local_box({parameter.shape, parameter.unsharded}, plan.mesh(), coordinate).shape;
    const std::int64_t per_part = parameter.shard_size() / parts;
    for (std::int64_t part = 0; part < parts; ++part) {
      const Interval held = {shard_cells(parameter.cut, {whole[0]}, part * per_part).begin,
                             shard_cells(parameter.cut, {whole[0]}, (part + 1) * per_part - 1).end};
      const Interval said = ceil_rows(whole[0], parts, part);
      if (held == said || (held.empty() && said.empty())) continue;
      return fmt::format(
          "between forward and backward part {} of {} holds rows {} to {} of \"{}\", "
          "where Shard(0) over {} ranks says {} to {}",
          part, parts, held.begin, held.end, parameter.name, parts, said.begin, said.end);
    }
  }
  return {};
}

}  // namespace

PlanCheckOutcome check_coverage(const Plan& plan) {
  OutcomeRecorder recorder(CheckId::Coverage);
  CoverageCheck coverage(plan, recorder);
  for (const PlannedParameter& parameter : plan.parameters)
    coverage.check(parameter);
  for (const Bucket& bucket : plan.buckets)
    check_row(plan, bucket, recorder);
  for (const GradientRow& row : plan.gradient_rows)
    check_row(plan, row, recorder);
  return recorder.take();
}

PlanCheckOutcome check_placements(const Plan& plan) {
  OutcomeRecorder recorder(CheckId::Placements);
  const Mesh& mesh = plan.mesh();
  const Vocabulary vocabulary = plan.scenario.fully_shard.vocabulary;
  for (const PlannedParameter& parameter : plan.parameters) {
    const std::string missing = inexpressible(plan, parameter);
    const TensorLayout sharded{parameter.shape, parameter.sharded};  // its units may be many
    std::optional<std::string> difference;
    const std::optional<std::string> other_cut = other_cut_than_asked(plan, parameter);
    const bool is_by_cut = is_placed_by_cut(plan, parameter);
    for (const Coordinate& coordinate : telling_coordinates(mesh, parameter)) {
      recorder.count();
      if (!is_by_cut && !has_boxes(sharded, mesh, coordinate)) continue;
      const auto implied = local_boxes(sharded, mesh, coordinate);
      const auto held = held_shard(mesh, parameter, coordinate).boxes;
      if (implied == held || difference) continue;
      difference =
          fmt::format("\"{}\" at ({}): {} implies {}, the cut gives {}", parameter.name,
                      fmt::join(coordinate, ", "), to_string(parameter.sharded, vocabulary),
                      to_string(implied), to_string(held));
    }
    // Only balanced chunks and given units are beyond what the vocabularies say.
    const bool is_beyond = vocabulary != Vocabulary::Ragged &&
                           (parameter.cut.chunking == Chunking::Balanced || !missing.empty());
    if (other_cut) {
      recorder.add(FindingCode::OffsetWrong, parameter.name, *other_cut);
    } else if (!is_by_cut) {
      recorder.add(FindingCode::OffsetWrong, parameter.name,
                   difference ? *difference : wrong_placement(plan, parameter));
    } else if (difference && !is_beyond) {
      recorder.add(FindingCode::OffsetWrong, parameter.name, *difference);
    } else if (difference || !missing.empty()) {
      recorder.warn(
          FindingCode::SpecDisagrees, parameter.name,
          fmt::format("vocabulary {} cannot express the layout of \"{}\": {}", name_of(vocabulary),
                      parameter.name, difference ? *difference : missing));
    }
    const std::string post_forward =
        vocabulary == Vocabulary::Torch ? post_forward_difference(plan, parameter) : std::string();
    if (!post_forward.empty()) {
      recorder.warn(
          FindingCode::SpecDisagrees, parameter.name,
          fmt::format("vocabulary {} cannot express it: {}", name_of(vocabulary), post_forward));
    }
    for (int dim = 0; dim < mesh.num_dims(); ++dim) {
      recorder.count();
      const auto at = static_cast<std::size_t>(dim);
      const Placement wanted = contains(parameter.sharded_group.dims, dim) ? Placement{Replicate{}}
                                                                           : parameter.sharded[at];
      if (parameter.unsharded[at] != wanted) {
        recorder.add(FindingCode::OffsetWrong, parameter.name,
                     fmt::format("unsharded \"{}\" is {} along {}, expected {}", parameter.name,
                                 to_string(parameter.unsharded[at], vocabulary), mesh.name(dim),
                                 to_string(wanted, vocabulary)));
      }
    }
  }
  ParameterReplay replay(plan);
  for (const Step& step : plan.steps) {
    for (ParameterReplay::Fault& fault : replay.take(step)) {
      recorder.add(fault.code, plan.parameter(fault.parameter).name, std::move(fault.message));
      recorder.at_step(step.step);
    }
  }
  recorder.count(replay.compared());
  return recorder.take();
}

}  // namespace hpsim
