#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "layout/tensor_layout.h"
#include "model/units.h"
#include "scenario/inactive.h"
#include "scenario/module_layouts.h"
#include "scenario/precision.h"

namespace hpsim {
namespace {

using Numbers = std::vector<std::int64_t>;

/// Nothing if two ascending lists have no number in common.
std::optional<std::int64_t> first_common(const Numbers& a, const Numbers& b) {
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    if (*i == *j) return *i;
    ++(*i < *j ? i : j);
  }
  return std::nullopt;
}

class InactiveCheck {
 public:
  InactiveCheck(const Scenario& scenario, const std::vector<InactivePart>& parts,
                Problems& problems)
      : scenario_(scenario), model_(scenario.model), parts_(parts), problems_(problems) {
    if (model_.is_elementwise()) return;
    features_ = features_along(model_);
    layouts_ = module_layouts(scenario);
    dtypes_ = module_dtypes(scenario);
  }

  void check() {
    for (const InactivePart& part : parts_) {
      if (!model_.is_elementwise() && !check_identity(part)) continue;
      check_sharing(part);
    }
    check_overlap();
  }

 private:
  [[nodiscard]] const ModuleSpec& module(int m) const {
    return model_.modules[static_cast<std::size_t>(m)];
  }

  /// It gives what is added to, whatever its modules make of it.
  [[nodiscard]] bool is_residual(const InactiveSpec& spec) const {
    const ModuleSpec& last = module(spec.end - 1);
    return last.type == ModuleType::Add && spec.end - 1 > spec.first &&
           last.inputs.at(1) == spec.first;
  }

  bool refuse(const InactivePart& part, std::string message, std::string help) {
    problems_.add(part.at, std::move(message), std::move(help));
    return false;
  }

  bool check_identity(const InactivePart& part) {
    const int first = part.spec.first;
    const int last = part.spec.end - 1;
    const std::string name = in_quotes(part.name);
    if (first == last && module(first).type == ModuleType::Add) {
      const std::string residual = part.name.substr(0, part.name.rfind('.'));
      return refuse(part, fmt::format("{} is the sum of a residual, no part of its own", name),
                    fmt::format("name the residual, {}: it then gives what is added to",
                                in_quotes(residual)));
    }
    for (int m = first; m <= last; ++m) {
      if (module(m).type != ModuleType::Embedding) continue;
      return refuse(part,
                    fmt::format("{} cannot be left out: {} takes tokens and gives features", name,
                                module(m).name == part.name ? "it" : in_quotes(module(m).name)),
                    "leave out a part that takes features");
    }
    const int input = inputs_of(model_, first).at(0);
    const std::int64_t taken = features_[static_cast<std::size_t>(input)];
    const std::int64_t given = features_[static_cast<std::size_t>(last) + 1];
    if (taken != given) {
      return refuse(part,
                    fmt::format("{} cannot be left out: it takes {} features and gives {}", name,
                                taken, given),
                    "its input must be able to stand for its output; leave out a part that keeps "
                    "the features");
    }
    return is_residual(part.spec) || (check_layout(part) && check_dtype(part));
  }

  bool check_layout(const InactivePart& part) {
    const auto& taken = layouts_[static_cast<std::size_t>(part.spec.first)].inputs.at(0);
    const auto& given = layouts_[static_cast<std::size_t>(part.spec.end) - 1].output;
    if (taken == given) return true;
    std::size_t dim = 0;
    while (taken[dim] == given[dim])
      ++dim;
    return refuse(part,
                  fmt::format("{} cannot be left out: along {} it takes {} and gives {}",
                              in_quotes(part.name), scenario_.mesh.name(static_cast<int>(dim)),
                              to_string(taken[dim]), to_string(given[dim])),
                  "leave out a whole residual, or parallelize the part so that it gives what it "
                  "takes");
  }

  bool check_dtype(const InactivePart& part) {
    const DType taken = dtypes_[static_cast<std::size_t>(part.spec.first)].inputs.at(0);
    const DType given = dtypes_[static_cast<std::size_t>(part.spec.end) - 1].output;
    if (taken == given) return true;
    return refuse(part,
                  fmt::format("{} cannot be left out: it takes {} and gives {}",
                              in_quotes(part.name), name_of(taken), name_of(given)),
                  "leave out a whole residual, or let the part give the dtype that it takes");
  }

  /// Data dims along which a module needs the samples of all ranks, or sends them to experts.
  [[nodiscard]] MeshDims shared_dims(int m) const {
    if (model_.is_elementwise()) return shared_data_dims(scenario_, m);
    const MeshDims split = split_dims(model_, layouts_[static_cast<std::size_t>(m)]);
    MeshDims shared;
    for (const int dim : scenario_.data.data_dims) {
      const bool is_shared = !contains(split, dim) || exchanges(m, dim);
      if (is_shared && scenario_.mesh.size(dim) > 1) shared.push_back(dim);
    }
    return shared;
  }

  [[nodiscard]] bool exchanges(int m, int dim) const {
    if (module(m).type != ModuleType::Experts) return false;
    int w1 = 0;
    while (scenario_.parameters[static_cast<std::size_t>(w1)].module != m)
      ++w1;
    return is_cut(placements_of(scenario_, w1)[static_cast<std::size_t>(dim)]);
  }

  void check_sharing(const InactivePart& part) {
    MeshDims told;
    for (int m = part.spec.first; m < part.spec.end; ++m) {
      for (const int dim : shared_dims(m)) {
        if (contains(told, dim) || leaves_out_together(part.spec, dim)) continue;
        told.push_back(dim);
        tell_sharing(part, m, dim);
      }
    }
  }

  /// Whether, with a data rank, all are listed that differ along `dim` alone.
  [[nodiscard]] bool leaves_out_together(const InactiveSpec& spec, int dim) const {
    return !first_apart(spec, dim);
  }

  /// A data rank some of whose neighbours along `dim` are not listed.
  [[nodiscard]] std::optional<std::int64_t> first_apart(const InactiveSpec& spec, int dim) const {
    const MeshDims& data_dims = scenario_.data.data_dims;
    std::map<std::int64_t, std::int64_t> num_listed;  // by data rank with coordinate 0 along dim
    for (const std::int64_t rank : spec.data_ranks) {
      Coordinate coordinate = scenario_.mesh.coordinate_along(data_dims, rank);
      coordinate[static_cast<std::size_t>(dim)] = 0;
      ++num_listed[scenario_.mesh.index_along(data_dims, coordinate)];
    }
    for (const auto& [rank, count] : num_listed) {
      if (count < scenario_.mesh.size(dim)) return rank;
    }
    return std::nullopt;
  }

  void tell_sharing(const InactivePart& part, int m, int dim) {
    const MeshDims& data_dims = scenario_.data.data_dims;
    Coordinate coordinate =
        scenario_.mesh.coordinate_along(data_dims, *first_apart(part.spec, dim));
    Numbers out;
    Numbers in;
    std::int64_t num_out = 0;
    for (std::int64_t i = 0; i < scenario_.mesh.size(dim) && in.size() < 9; ++i) {
      coordinate[static_cast<std::size_t>(dim)] = i;
      const std::int64_t rank = scenario_.mesh.index_along(data_dims, coordinate);
      const Numbers& listed = part.spec.data_ranks;
      const bool is_out = std::binary_search(listed.begin(), listed.end(), rank);
      (is_out ? out : in).push_back(ranks_of_data_rank(scenario_, rank, 1).front());
      num_out += is_out ? 1 : 0;
    }
    const std::string name = in_quotes(module_name(model_, m));
    problems_.add(
        part.ranks,
        fmt::format("{} leaves out {}, {} does not, but along {} {}",
                    num_out == 1 ? fmt::format("rank {}", first_of(out, num_out))
                                 : fmt::format("ranks {}", first_of(out, num_out)),
                    in_quotes(part.name), first_of(in, static_cast<std::int64_t>(in.size())),
                    in_quotes(scenario_.mesh.name(dim)),
                    model_.is_elementwise() || !exchanges(m, dim)
                        ? fmt::format("ranks compute {} with the samples of all of them", name)
                        : fmt::format("ranks exchange positions for the experts of {}", name)),
        fmt::format("list all ranks along {} in one entry, or none",
                    in_quotes(scenario_.mesh.name(dim))));
  }

  /// Parts lie in one another or apart: in order, those around the next one are on a stack.
  void check_overlap() {
    std::vector<std::size_t> order(parts_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const InactiveSpec& left = parts_[a].spec;
      const InactiveSpec& right = parts_[b].spec;
      // Of two that hold the same modules, the outer one has the shorter name.
      return std::tuple(left.first, -left.end, parts_[a].name.size()) <
             std::tuple(right.first, -right.end, parts_[b].name.size());
    });
    std::vector<std::size_t> around;
    for (const std::size_t next : order) {
      while (!around.empty() && parts_[around.back()].spec.end <= parts_[next].spec.first)
        around.pop_back();
      for (const std::size_t outer : around) {
        if (tell_overlap(parts_[outer], parts_[next])) break;
      }
      around.push_back(next);
    }
  }

  /// Whether there is a pass in which both are left out.
  bool tell_overlap(const InactivePart& outer, const InactivePart& inner) {
    const auto step = first_common(outer.spec.steps, inner.spec.steps);
    const auto pass = first_common(outer.spec.micro_batches, inner.spec.micro_batches);
    const auto rank = first_common(outer.spec.data_ranks, inner.spec.data_ranks);
    if (!step || !pass || !rank) return false;
    const std::string why = outer.name == inner.name
                                ? fmt::format("{} is left out twice", in_quotes(inner.name))
                                : fmt::format("{} is left out, and so is {} around it",
                                              in_quotes(inner.name), in_quotes(outer.name));
    problems_.add(inner.at,
                  fmt::format("{}: on rank {} in step {}, micro-batch {}, at {} too", why,
                              ranks_of_data_rank(scenario_, *rank, 1).front(), *step, *pass,
                              outer.at.pointer),
                  "keep one of the two, or let them name other ranks, steps or micro-batches");
    return true;
  }

  const Scenario& scenario_;
  const ModelSpec& model_;
  const std::vector<InactivePart>& parts_;
  Problems& problems_;
  std::vector<std::int64_t> features_;  ///< per activation
  std::vector<ModuleLayout> layouts_;
  std::vector<ModuleDTypes> dtypes_;
};

}  // namespace

void check_inactive(const Scenario& scenario, const std::vector<InactivePart>& parts,
                    Problems& problems) {
  if (!parts.empty()) InactiveCheck(scenario, parts, problems).check();
}

}  // namespace hpsim
