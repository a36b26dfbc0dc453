#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "mesh/group.h"
#include "report/explain_report.h"
#include "report/json.h"
#include "report/picture.h"
#include "report/table.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

constexpr std::int64_t kMaxDrawnParts = 64;
constexpr std::size_t kMaxDrawnBands = 16;
constexpr std::size_t kMaxLines = 16;
constexpr std::size_t kMaxLabel = 26;

/// "fsdp 0..2", "fsdp 3"
std::string interval_text(const Mesh& mesh, int dim, Interval interval) {
  if (interval.length() == 1) return fmt::format("{} {}", mesh.name(dim), interval.begin);
  return fmt::format("{} {}..{}", mesh.name(dim), interval.begin, interval.end - 1);
}

/// Where the parts of a run begin: "10 tp + 3 fsdp + 9".
std::string origin_text(const Mesh& mesh, const AxisCut& cut, const PartRun& run) {
  std::vector<std::string> terms;
  std::int64_t constant = run.first.begin;
  for (std::size_t i = 0; i < run.coordinates.size(); ++i) {
    if (run.coordinates[i].length() == 1) continue;
    constant -= run.strides[i] * run.coordinates[i].begin;
    terms.push_back(fmt::format("{} {}", run.strides[i], mesh.name(cut.mesh_dims[i])));
  }
  std::string text = fmt::format("{}", fmt::join(terms, " + "));
  if (constant != 0) text += fmt::format(" {} {}", constant > 0 ? "+" : "-", std::abs(constant));
  return text;
}

/// Draws, or lists, the parts of one parameter.
class PictureSection {
 public:
  PictureSection(const Plan& plan, const ParameterFacts& facts, const TextStyle& style)
      : mesh_(plan.mesh()),
        parameter_(plan.parameter(facts.parameter)),
        facts_(facts),
        style_(style),
        max_bands_(style.full ? static_cast<std::size_t>(kMaxDrawnParts) : kMaxDrawnBands) {}

  [[nodiscard]] std::string text() const {
    const bool is_flat = parameter_.shard_size() > 1 && parameter_.cut.dims.size() > 1;
    if (is_flat) return flat_title() + flat_picture() + flat_parts();
    if (facts_.cuts.empty()) {
      return line(fmt::format("whole on {}", holders(Coordinate(num_dims(), 0))));
    }
    std::string text = line(title());
    if (const auto picture = separable_picture()) return text + *picture + empty_parts();
    for (const AxisCut& cut : facts_.cuts) {
      if (facts_.cuts.size() > 1)
        text += line(noun_of_indices(parameter_.shape, cut.tensor_dim) + ":");
      text += runs(cut);
    }
    return text;
  }

 private:
  [[nodiscard]] std::size_t num_dims() const { return static_cast<std::size_t>(mesh_.num_dims()); }
  [[nodiscard]] static std::string line(const std::string& text) {
    return wrapped(text, kIndent, kTextWidth);
  }

  /// "rows cut over tp 2, then fsdp 4; columns cut over ep 2"
  [[nodiscard]] std::string title() const {
    std::vector<std::string> parts;
    for (const AxisCut& cut : facts_.cuts) {
      std::vector<std::string> dims;
      for (const int dim : cut.mesh_dims)
        dims.push_back(fmt::format("{} {}", mesh_.name(dim), mesh_.size(dim)));
      parts.push_back(fmt::format("{} cut over {}",
                                  noun_of_indices(parameter_.shape, cut.tensor_dim),
                                  fmt::join(dims, ", then ")));
    }
    return fmt::format("{}", fmt::join(parts, "; "));
  }

  /// The ranks that hold the part at `coordinate`.
  [[nodiscard]] std::string holders(const Coordinate& coordinate) const {
    const std::int64_t total = mesh_.size(facts_.rank.same_dims);
    if (mesh_.num_ranks() > kMaxListedRanks) return counted(total, "rank");
    const Rank first = mesh_.rank_at(coordinate);
    std::string text = ranks_text(group_of(mesh_, facts_.rank.same_dims, first), total);
    if (columns_of(text) <= kMaxLabel) return text;
    return ranks_text(group_of(mesh_, facts_.rank.same_dims, first, 3), total);
  }

  [[nodiscard]] std::string band_text(const AxisCut& cut, const Band& band) const {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < cut.mesh_dims.size(); ++i)
      parts.push_back(fmt::format("{} {}", mesh_.name(cut.mesh_dims[i]), band.coordinates[i]));
    return fmt::format("{}", fmt::join(parts, ", "));
  }

  /// "2 rows", "1 row + 1 of padding"
  [[nodiscard]] std::string length_text(int tensor_dim, std::int64_t length,
                                        std::int64_t slot) const {
    std::string text = counted_indices(parameter_.shape, tensor_dim, length);
    if (slot > length) text += fmt::format(" + {} of padding", format_count(slot - length));
    return text;
  }

  /// The tensor with one or two dims cut; nothing if there are too many parts, or no room.
  [[nodiscard]] std::optional<std::string> separable_picture() const {
    if (facts_.cuts.size() > 2 || mesh_.size(parameter_.cut_dims()) > kMaxDrawnParts) {
      return std::nullopt;
    }
    std::vector<std::vector<Band>> bands;
    for (const AxisCut& cut : facts_.cuts) {
      bands.push_back(bands_of(cut));
      std::vector<Band>& held = bands.back();
      held.erase(std::remove_if(held.begin(), held.end(),
                                [](const Band& band) { return band.indices.empty(); }),
                 held.end());
    }
    const AxisCut& first = facts_.cuts[0];
    if (facts_.cuts.size() == 2) {
      return picture_of(&first, bands[0], &facts_.cuts[1], bands[1]);
    }
    const std::vector<Band> all = {{{0, 1}, {}, 0}};
    if (first.tensor_dim > 0) {
      if (auto picture = picture_of(nullptr, all, &first, bands[0])) return picture;
    }
    return picture_of(&first, bands[0], nullptr, all);
  }

  [[nodiscard]] std::optional<std::string> picture_of(const AxisCut* down,
                                                      const std::vector<Band>& row_bands,
                                                      const AxisCut* across,
                                                      const std::vector<Band>& column_bands) const {
    if (row_bands.size() > max_bands_ || column_bands.size() > kMaxDrawnBands) return std::nullopt;
    Picture picture;
    picture.numbers_rows = down != nullptr;
    picture.numbers_columns = across != nullptr;
    for (const Band& rows : row_bands) {
      Coordinate coordinate(num_dims(), 0);
      if (down != nullptr) {
        set(coordinate, *down, rows);
        picture.notes[rows.indices.begin] =
            fmt::format("{}: {}", band_text(*down, rows),
                        length_text(down->tensor_dim, rows.indices.length(), rows.slot));
      }
      for (const Band& columns : column_bands) {
        if (across != nullptr) set(coordinate, *across, columns);
        picture.tiles.push_back(
            {rows.indices, columns.indices, picture.tiles.size(), holders(coordinate)});
      }
    }
    if (across != nullptr) {
      for (const Band& columns : column_bands)
        picture.heads[columns.indices.begin] = band_text(*across, columns);
    }
    return drawn(picture, 2 * kIndent, kTextWidth);
  }

  static void set(Coordinate& coordinate, const AxisCut& cut, const Band& band) {
    for (std::size_t i = 0; i < cut.mesh_dims.size(); ++i)
      coordinate[static_cast<std::size_t>(cut.mesh_dims[i])] = band.coordinates[i];
  }

  /// Parts that the picture cannot show.
  [[nodiscard]] std::string empty_parts() const {
    std::string text;
    for (const AxisCut& cut : facts_.cuts) {
      for (const PartRun& run : cut.runs) {
        if (run.length() > 0) continue;
        text += wrapped(run_text(mesh_, parameter_.shape, cut, run), 2 * kIndent, kTextWidth);
      }
    }
    return text;
  }

  [[nodiscard]] std::string runs(const AxisCut& cut) const {
    std::string text;
    const bool folds = !style_.full && cut.runs.size() > kMaxLines;
    const std::size_t shown = folds ? kMaxLines - 1 : cut.runs.size();
    for (std::size_t i = 0; i < shown; ++i)
      text += wrapped(run_text(mesh_, parameter_.shape, cut, cut.runs[i]), 2 * kIndent, kTextWidth);
    if (folds) text += fmt::format("    … {} more runs of parts\n", cut.runs.size() - shown);
    return text;
  }

  // Several tensor dims cut together, in runs of their cells.

  [[nodiscard]] std::string flat_title() const {
    std::vector<std::string> dims;
    for (const int dim : parameter_.cut.dims)
      dims.push_back(fmt::format("{}", dim));
    const int mesh_dim = parameter_.sharded_group.dims.at(0);
    return line(fmt::format("cells of dims {} cut in runs over {} {}", fmt::join(dims, ", "),
                            mesh_.name(mesh_dim), mesh_.size(mesh_dim)));
  }

  [[nodiscard]] std::vector<Coordinate> flat_coordinates() const {
    const MeshDims dims = parameter_.cut_dims();
    if (mesh_.size(dims) > kMaxDrawnParts) return telling_coordinates(mesh_, parameter_);
    std::vector<Coordinate> coordinates;
    for (std::int64_t part = 0; part < mesh_.size(dims); ++part)
      coordinates.push_back(mesh_.coordinate_along(dims, part));
    return coordinates;
  }

  /// The boxes in the plane of the first two dims; empty if other dims are cut too.
  [[nodiscard]] std::string flat_picture() const {
    if (parameter_.cut.dims.size() != 2) return {};
    for (int dim = 2; dim < static_cast<int>(parameter_.shape.size()); ++dim) {
      if (!cutting_order(parameter_.unsharded, dim).empty()) return {};
    }
    if (mesh_.size(parameter_.cut_dims()) > kMaxDrawnParts) return {};
    Picture picture;
    std::size_t part = 0;
    for (const Coordinate& coordinate : flat_coordinates()) {
      for (const Box& box : held_shard(mesh_, parameter_, coordinate).boxes) {
        if (num_elems(box.shape) == 0) continue;
        picture.tiles.push_back({{box.offset[0], box.offset[0] + box.shape[0]},
                                 {box.offset[1], box.offset[1] + box.shape[1]},
                                 part,
                                 holders(coordinate)});
      }
      ++part;
    }
    return drawn(picture, 2 * kIndent, kTextWidth).value_or("");
  }

  [[nodiscard]] std::string flat_parts() const {
    const std::vector<Coordinate> coordinates = flat_coordinates();
    const bool folds = !style_.full && coordinates.size() > kMaxLines;
    const std::size_t shown = folds ? kMaxLines - 1 : coordinates.size();
    std::vector<std::string> labels;
    std::size_t label_columns = 0;
    for (std::size_t i = 0; i < shown; ++i) {
      labels.push_back(coordinate_text(mesh_, parameter_.cut_dims(), coordinates[i]));
      label_columns = std::max(label_columns, columns_of(labels.back()));
    }
    std::string text;
    for (std::size_t i = 0; i < shown; ++i) {
      const HeldShard held = held_shard(mesh_, parameter_, coordinates[i]);
      const std::int64_t padding = parameter_.padded_elems.at(mesh_, coordinates[i]) - held.elems;
      std::string words = counted(held.elems, "element");
      if (padding > 0) words += fmt::format(" + {} of padding", format_count(padding));
      if (held.elems > 0) words += fmt::format(": {}", to_string(held.boxes));
      text += labelled(labels[i], 2 * kIndent, label_columns, words);
    }
    if (folds) text += fmt::format("    … {} more parts\n", coordinates.size() - shown);
    return text;
  }

  const Mesh& mesh_;
  const PlannedParameter& parameter_;
  const ParameterFacts& facts_;
  const TextStyle& style_;
  std::size_t max_bands_;
};

}  // namespace

std::string run_text(const Mesh& mesh, const Shape& shape, const AxisCut& cut, const PartRun& run) {
  std::vector<std::string> coordinates;
  for (std::size_t i = 0; i < cut.mesh_dims.size(); ++i)
    coordinates.push_back(interval_text(mesh, cut.mesh_dims[i], run.coordinates[i]));
  std::string text = fmt::format("{}: ", fmt::join(coordinates, ", "));
  const char* each = run.num_parts() > 1 ? " each" : "";
  if (run.length() == 0) {
    text += "no " + noun_of_indices(shape, cut.tensor_dim, true);
    if (run.slot == 0) return text;
    return text +
           fmt::format(", a slot of {}{}", counted_indices(shape, cut.tensor_dim, run.slot), each);
  }
  text += counted_indices(shape, cut.tensor_dim, run.length());
  if (run.slot > run.length()) {
    text += fmt::format(" + {} of padding", format_count(run.slot - run.length()));
  }
  text += each;
  if (run.is_contiguous()) {
    return text + ", " + to_string(Interval{run.first.begin, run.last().end});
  }
  return text + fmt::format(", from {} on", origin_text(mesh, cut, run));
}

std::string coordinate_text(const Mesh& mesh, const MeshDims& dims, const Coordinate& coordinate) {
  std::vector<std::string> parts;
  for (const int dim : dims) {
    parts.push_back(
        fmt::format("{} {}", mesh.name(dim), coordinate.at(static_cast<std::size_t>(dim))));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string picture_section(const Plan& plan, const ParameterFacts& facts, const TextStyle& style) {
  return PictureSection(plan, facts, style).text();
}

}  // namespace hpsim
