#include <fmt/format.h>

#include <algorithm>

#include "layout/shard_cut.h"
#include "scenario/pattern_matcher.h"
#include "scenario/sections.h"
#include "scenario/type_expr.h"

namespace hpsim {
namespace {

/// Coordinates along TP and EP dims that may hold different sizes of one parameter.
constexpr std::int64_t kMaxUnevenCoordinates = 65536;
/// The same, of all parameters together.
constexpr std::int64_t kMaxUnevenInAll = std::int64_t{1} << 22;

/// Splits the fsdp_shard_dim "dp" into "dp.replicate" and "dp.shard": shard groups are consecutive
/// coordinates.
void split_shard_dim(std::int64_t shard_size, Scenario& scenario) {
  const int dim = *scenario.roles.fsdp_shard_dim;
  const auto at = static_cast<std::size_t>(dim);
  std::vector<std::int64_t> shape = scenario.mesh.shape();
  std::vector<std::string> names = scenario.mesh.names();
  shape.insert(shape.begin() + dim, shape[at] / shard_size);
  shape[at + 1] = shard_size;
  names.insert(names.begin() + dim, names[at] + ".replicate");
  names[at + 1] += ".shard";
  scenario.mesh = Mesh(std::move(shape), std::move(names), scenario.mesh.ranks());

  const auto moved = [dim](std::optional<int> other) {
    if (other && *other >= dim) ++*other;
    return other;
  };
  Roles& roles = scenario.roles;
  roles.fsdp_shard_dim = moved(roles.fsdp_shard_dim);
  roles.dp_replicate_dim = moved(roles.dp_replicate_dim);
  roles.tp_dim = moved(roles.tp_dim);
  roles.ep_dim = moved(roles.ep_dim);
  roles.shard_replicate_dim = dim;
  MeshDims data_dims;
  for (const int other : scenario.data.data_dims) {
    if (other == dim) data_dims.push_back(dim);
    data_dims.push_back(*moved(other));
  }
  scenario.data.data_dims = std::move(data_dims);
  for (auto& placements : scenario.placements)
    placements.insert(placements.begin() + dim, Replicate{});
}

void read_shard_size(const ObjectReader& fully_shard, Scenario& scenario) {
  const auto shard_size = fully_shard.integer("shard_size");
  if (!shard_size) return;
  const JsonCursor at = fully_shard.where("shard_size");
  Problems& problems = fully_shard.problems();
  if (!scenario.fully_shard.shards_parameters || !scenario.roles.fsdp_shard_dim) {
    problems.add(at, fmt::format("shard_size is {}, but parameters are not sharded", *shard_size),
                 "leave it out, or give a mesh dim the role fsdp_shard_dim");
    return;
  }
  const int dim = *scenario.roles.fsdp_shard_dim;
  const std::int64_t size = scenario.mesh.size(dim);
  const std::string name = scenario.mesh.name(dim);
  if (size % *shard_size != 0) {
    problems.add(at,
                 fmt::format("shard_size {} does not divide the {} ranks along {}", *shard_size,
                             size, in_quotes(name)),
                 fmt::format("write a divisor of {}, or leave it out", size));
    return;
  }
  if (*shard_size == size) return;
  for (const char* suffix : {".replicate", ".shard"}) {
    if (!scenario.mesh.find(name + suffix)) continue;
    problems.add(
        at,
        fmt::format("shard_size splits {} into {} and {}, but the mesh has such a dim",
                    in_quotes(name), in_quotes(name + ".replicate"), in_quotes(name + ".shard")),
        "rename that dim");
    return;
  }
  split_shard_dim(*shard_size, scenario);
}

/// `shard_placement`, checked against the parameters that it names.
class ShardPlacementReader {
 public:
  ShardPlacementReader(const ObjectReader& fully_shard, Scenario& scenario)
      : fully_shard_(fully_shard),
        problems_(fully_shard.problems()),
        scenario_(scenario),
        where_(scenario.parameters.size()) {}

  void read() {
    const auto members = fully_shard_.members("shard_placement");
    if (members.empty()) return;
    scenario_.fully_shard.shard_placements.resize(scenario_.parameters.size());
    PatternMatcher matcher(names_of(scenario_.parameters), "parameter", problems_);
    for (const auto& [pattern, at] : members) {
      for (const int p : matcher.matches_of(pattern, at))
        read_one(static_cast<std::size_t>(p), at);
    }
  }

  [[nodiscard]] const JsonCursor* where(std::size_t p) const {
    return where_[p] ? &*where_[p] : nullptr;
  }

 private:
  void read_one(std::size_t p, const JsonCursor& at) {
    const ParameterSpec& spec = scenario_.parameters[p];
    const auto num_dims = static_cast<std::int64_t>(spec.shape.size());
    ShardPlacement placement;
    if (at.value->is_object()) {
      const ObjectReader reader(at, "ShardPlacement", problems_);
      const auto dims = reader.integers("dims");
      const auto units = reader.integers("local_units");
      if (!dims || !units || !count_units(reader, units->size())) return;
      if (!check_ragged(spec, reader, *dims, *units)) return;
      placement.dims.assign(dims->begin(), dims->end());
      placement.local_units = LocalUnits(*units);
    } else {
      const std::int64_t given = as_int64(*at.value).value_or(0);
      if (given < -num_dims || given >= num_dims) {
        problems_.add(
            at,
            fmt::format("tensor dim {}, but {} has {} dims", given, in_quotes(spec.name), num_dims),
            fmt::format("write a dim of 0..{}, or -{}..-1 from the end", num_dims - 1, num_dims));
        return;
      }
      placement.dims = {static_cast<int>(given < 0 ? given + num_dims : given)};
    }
    ShardPlacement& known = scenario_.fully_shard.shard_placements[p];
    if (where_[p] && known != placement) {
      problems_.add(at,
                    fmt::format("{} has another shard_placement at {}", in_quotes(spec.name),
                                where_[p]->pointer),
                    "keep one of the two");
      return;
    }
    where_[p] = at;
    known = std::move(placement);
  }

  /// A list of units is kept for every parameter that its pattern matches.
  bool count_units(const ObjectReader& reader, std::size_t num_units) {
    constexpr std::size_t kMostUnits = std::size_t{1} << 24;
    if (num_units_ > kMostUnits) return false;
    num_units_ += num_units;
    if (num_units_ <= kMostUnits) return true;
    problems_.add(
        reader.where("local_units"),
        fmt::format("more than {} units, counted for every parameter they cut", kMostUnits),
        "cut fewer parameters raggedly, or over fewer ranks");
    return false;
  }

  bool check_ragged(const ParameterSpec& spec, const ObjectReader& reader,
                    const std::vector<std::int64_t>& dims, const std::vector<std::int64_t>& units) {
    const std::size_t before = num_problems_;
    const auto complain = [&](std::string_view key, std::string message, std::string help) {
      problems_.add(reader.where(key), std::move(message), std::move(help));
      ++num_problems_;
    };
    for (std::size_t i = 0; i < dims.size(); ++i) {
      if (dims[i] == static_cast<std::int64_t>(i)) continue;
      complain("dims", fmt::format("dims are not the leading ones: {} at position {}", dims[i], i),
               "write [0], [0, 1], [0, 1, 2], ...");
      break;
    }
    if (dims.empty() || dims.size() > spec.shape.size()) {
      complain("dims",
               fmt::format("{} dims, but {} has {}", dims.size(), in_quotes(spec.name),
                           spec.shape.size()),
               fmt::format("list 1 to {} dims", spec.shape.size()));
    }
    constexpr std::int64_t kMost = std::int64_t{1} << 53;
    std::int64_t sum = 0;
    for (const std::int64_t unit : units)
      sum = std::min(kMost, sum + std::min(unit, kMost));
    if (sum == 0 || sum == kMost) {
      complain("local_units",
               sum == 0 ? std::string("the units sum to 0")
                        : fmt::format("the units sum to more than 2^53"),
               "at least one rank holds something, and fewer than 2^53 units are enough");
    }
    return num_problems_ == before;
  }

  const ObjectReader& fully_shard_;
  Problems& problems_;
  Scenario& scenario_;
  std::vector<std::optional<JsonCursor>> where_;  ///< per parameter
  std::size_t num_problems_ = 0;
  std::size_t num_units_ = 0;
};

/// Whether fully_shard can cut what TP and EP leave of a parameter, on every rank.
class CutCheck {
 public:
  CutCheck(const ObjectReader& file, const Scenario& scenario)
      : file_(file), fully_shard_(file.object("fully_shard", "FullyShard")), scenario_(scenario) {}

  void check(int p, const JsonCursor* at) {
    const auto index = static_cast<std::size_t>(p);
    const ParameterSpec& spec = scenario_.parameters[index];
    const std::vector<Placement> placements = placements_of(scenario_, p);
    const MeshDims placed = cutting_dims(placements);
    const Mesh& mesh = scenario_.mesh;
    Coordinate first(static_cast<std::size_t>(mesh.num_dims()), 0);
    Coordinate last = first;
    for (const int dim : placed)
      last[static_cast<std::size_t>(dim)] = mesh.size(dim) - 1;
    const TensorLayout layout{spec.shape, placements};
    const bool is_uneven =
        local_box(layout, mesh, first).shape != local_box(layout, mesh, last).shape;
    if (is_uneven && mesh.size(placed) > kMaxUnevenCoordinates) {
      file_.problems().add(
          file_.where(file_.has("placements") ? "placements" : "parameters"),
          fmt::format("{} is cut unevenly over {} ranks of tensor and expert parallelism",
                      in_quotes(spec.name), mesh.size(placed)),
          fmt::format("up to {} may hold different sizes; make the cut even",
                      kMaxUnevenCoordinates));
      return;
    }
    if (is_uneven && !count_uneven(spec, mesh.size(placed))) return;
    if (at == nullptr || !is_sharded(scenario_, p)) return;
    const std::int64_t num_shards = mesh.size(*scenario_.roles.fsdp_shard_dim);
    const ShardCut cut = shard_cut_of(scenario_, p, num_shards);
    do {
      const Shape whole = local_box(layout, mesh, first).shape;
      if (!check_whole(spec, cut, *at, whole, is_uneven)) return;
    } while (is_uneven && advance(mesh, placed, first));
  }

 private:
  bool count_uneven(const ParameterSpec& spec, std::int64_t num_coordinates) {
    if (num_uneven_ > kMaxUnevenInAll) return false;
    num_uneven_ += num_coordinates;
    if (num_uneven_ <= kMaxUnevenInAll) return true;
    file_.problems().add(
        file_.where(file_.has("placements") ? "placements" : "parameters"),
        fmt::format("up to {}, parameters are cut unevenly over {} ranks of tensor and expert "
                    "parallelism, added up",
                    in_quotes(spec.name), num_uneven_),
        fmt::format("up to {} may hold different sizes; make cuts even", kMaxUnevenInAll));
    return false;
  }

  bool check_whole(const ParameterSpec& spec, const ShardCut& cut, const JsonCursor& at,
                   const Shape& whole, bool is_uneven) const {
    const std::int64_t num_shards = cut.num_shards;
    const std::int64_t cells = num_cells(cut, whole);
    const std::string left = whole == spec.shape
                                 ? std::string()
                                 : fmt::format(" ({}{} are left by tensor and expert parallelism)",
                                               is_uneven ? "on some ranks " : "", to_string(whole));
    if (!cut.is_ragged()) {
      if (cut.is_by_rows() || cells % num_shards == 0) return true;
      fully_shard_.problems().add(
          at,
          fmt::format("dim {} of {}, {} long{}, does not divide into {} shards", cut.dims[0],
                      in_quotes(spec.name), cells, left, num_shards),
          "fully_shard cuts only tensor dim 0 unevenly (PyTorch: NotImplementedError); cut dim 0, "
          "or put the parameter into replicate_params");
      return false;
    }
    if (cut.local_units.size() != num_shards) {
      fully_shard_.problems().add(
          at,
          fmt::format("{} local_units, but {} shards along {}", cut.local_units.size(), num_shards,
                      in_quotes(scenario_.mesh.name(*scenario_.roles.fsdp_shard_dim))),
          fmt::format("list {} units, one per rank", num_shards));
      return false;
    }
    if (cells % cut.local_units.sum() != 0) {
      fully_shard_.problems().add(
          at,
          fmt::format("the units sum to {}, which does not divide the {} cells of dims 0..{} of "
                      "{}{}",
                      cut.local_units.sum(), cells, cut.dims.size() - 1, in_quotes(spec.name),
                      left),
          "choose units whose sum divides the cells");
      return false;
    }
    return true;
  }

  const ObjectReader& file_;
  ObjectReader fully_shard_;
  const Scenario& scenario_;
  std::int64_t num_uneven_ = 0;
};

}  // namespace

void read_cuts(const ObjectReader& scenario, Scenario& result) {
  const ObjectReader fully_shard = scenario.object("fully_shard", "FullyShard");
  read_shard_size(fully_shard, result);
  ShardPlacementReader reader(fully_shard, result);
  reader.read();
  if (!scenario.problems().empty()) return;
  CutCheck check(scenario, result);
  for (int p = 0; p < static_cast<int>(result.parameters.size()); ++p)
    check.check(p, reader.where(static_cast<std::size_t>(p)));
}

}  // namespace hpsim
