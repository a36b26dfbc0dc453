#include <fmt/format.h>

#include <algorithm>

#include "layout/parse_placement.h"
#include "layout/tensor_layout.h"
#include "scenario/pattern_matcher.h"
#include "scenario/sections.h"

namespace hpsim {
namespace {

/// The style that the file calls so; nothing for styles that are not supported yet.
std::optional<ParallelStyle> style_of(std::string_view name) {
  for (const ParallelStyle style :
       {ParallelStyle::Replicate, ParallelStyle::Colwise, ParallelStyle::Rowwise}) {
    if (name_of(style) == name) return style;
  }
  return std::nullopt;
}

/// Reads `parallelize`, and `placements` of both places.
class ParallelismReader {
 public:
  ParallelismReader(const ObjectReader& scenario, const Mesh& mesh, const Roles& roles,
                    const ModelSpec& model)
      : scenario_(scenario),
        problems_(scenario.problems()),
        mesh_(mesh),
        roles_(roles),
        model_(model),
        parameters_(list_parameters(model)),
        placements_(parameters_.size()),
        where_(parameters_.size()) {
    for (auto& of_parameter : placements_)
      of_parameter.assign(static_cast<std::size_t>(mesh.num_dims()), Replicate{});
    for (auto& of_parameter : where_)
      of_parameter.resize(static_cast<std::size_t>(mesh.num_dims()));
    parameters_of_.resize(std::max(model.modules.size(), model.elementwise.size()));
    for (std::size_t p = 0; p < parameters_.size(); ++p)
      parameters_of_[static_cast<std::size_t>(parameters_[p].module)].push_back(p);
  }

  Parallelism read() {
    styles_.resize(parameters_of_.size(), ParallelStyle::Replicate);
    has_bad_style_.resize(parameters_of_.size());
    read_styles();
    int next = 0;  // parameters are in file order
    for (const auto& [name, at] : scenario_.members("parameters")) {
      const int p = next++;
      if (!at.value->is_object()) continue;
      const ObjectReader reader(at, "Elementwise", problems_);
      read_entries(reader.members("placements"), {p});
    }
    PatternMatcher matcher(names_of(parameters_), "parameter", problems_);
    for (const auto& [pattern, at] : scenario_.members("placements")) {
      const std::vector<int> matched = matcher.matches_of(pattern, at);
      if (!at.value->is_object()) continue;
      std::vector<std::pair<std::string, JsonCursor>> entries;
      for (const auto& [dim, value] : at.value->get_ref<const Json::object_t&>())
        entries.emplace_back(dim, at.member(dim, value));
      read_entries(entries, matched);
    }
    for (std::size_t p = 0; p < parameters_.size(); ++p)
      check_factors(p);
    for (std::size_t p = 0; p + 1 < parameters_.size(); ++p) {
      const ParameterSpec& bias = parameters_[p + 1];
      const bool is_known = !has_bad_style_[static_cast<std::size_t>(bias.module)];
      if (is_known && bias.kind == ParameterSpec::Kind::LinearBias) check_bias(p, p + 1);
    }
    return {std::move(placements_), std::move(styles_)};
  }

 private:
  /// Names of modules, or of elementwise parameters; a style cuts along tp_dim.
  void read_styles() {
    const auto patterns = scenario_.members("parallelize");
    if (patterns.empty()) return;
    if (!roles_.tp_dim) {
      problems_.add(
          scenario_.where("parallelize"), "parallelize cuts along tp_dim, but no mesh dim is that",
          fmt::format("say which of the mesh dims {} it is: \"roles\": {{\"tp_dim\": {}}}",
                      quoted_list(mesh_.names()), in_quotes(mesh_.names().back())));
    }
    PatternMatcher matcher(unit_names(model_), model_.is_elementwise() ? "parameter" : "module",
                           problems_);
    std::vector<std::optional<JsonCursor>> where(unit_names(model_).size());
    for (const auto& [pattern, at] : patterns) {
      const std::vector<int> matched = matcher.matches_of(pattern, at);
      if (!at.value->is_string()) continue;
      const std::optional<ParallelStyle> style = style_of(at.value->get_ref<const std::string&>());
      if (!style) {
        for (const int module : matched)
          has_bad_style_[static_cast<std::size_t>(module)] = true;
        continue;
      }
      bool takes_style = matched.empty() || *style == ParallelStyle::Replicate;
      for (const int module : matched) {
        if (parameters_of_[static_cast<std::size_t>(module)].empty()) continue;
        takes_style = true;
        auto& known = where[static_cast<std::size_t>(module)];
        if (known && known->value->get_ref<const std::string&>() != name_of(*style)) {
          problems_.add(at,
                        fmt::format("{} is {} here, but {} at {}",
                                    in_quotes(module_name(model_, module)), name_of(*style),
                                    known->value->get_ref<const std::string&>(), known->pointer),
                        "keep one of the two");
          continue;
        }
        known = at;
        if (roles_.tp_dim) apply(*style, module, at);
      }
      if (takes_style) continue;
      problems_.add(at,
                    fmt::format("{} takes no style: it has no parameters, and keeps the layout of "
                                "its input",
                                in_quotes(module_name(model_, matched.front()))),
                    "leave it out, or write \"replicate\"");
    }
  }

  void apply(ParallelStyle style, int module, const JsonCursor& at) {
    styles_[static_cast<std::size_t>(module)] = style;
    if (style == ParallelStyle::Replicate) return;
    const auto dim = static_cast<std::size_t>(*roles_.tp_dim);
    for (const std::size_t p : parameters_of_[static_cast<std::size_t>(module)]) {
      const ParameterSpec& spec = parameters_[p];
      const bool is_bias = spec.kind == ParameterSpec::Kind::LinearBias;
      if (style == ParallelStyle::Rowwise && is_bias) continue;
      const int cut = style == ParallelStyle::Colwise ? 0 : 1;
      if (cut < static_cast<int>(spec.shape.size())) {
        placements_[p][dim] = Shard{cut};
        continue;
      }
      problems_.add(
          at, fmt::format("rowwise cuts tensor dim 1, but {} has one dim", in_quotes(spec.name)),
          "write \"colwise\", which cuts dim 0, or \"replicate\"");
    }
  }

  /// A bias goes with the output features of its weight, and is added once where these are sums.
  void check_bias(std::size_t weight, std::size_t bias) {
    for (int mesh_dim = 0; mesh_dim < mesh_.num_dims(); ++mesh_dim) {
      const auto at = static_cast<std::size_t>(mesh_dim);
      const Placement& of_weight = placements_[weight][at];
      const Placement& of_bias = placements_[bias][at];
      const bool cuts_output = cuts(of_weight, 0);
      const Placement wanted = cuts_output ? of_weight : Placement{Replicate{}};
      if (of_bias == wanted) continue;
      const JsonCursor* where = nullptr;
      for (const std::size_t p : {bias, weight}) {
        if (where == nullptr && where_[p][at]) where = &*where_[p][at];
      }
      const std::string why =
          cuts_output ? fmt::format("its output features are those of {}",
                                    in_quotes(parameters_[weight].name))
          : !is_cut(of_weight)
              ? fmt::format("{} is not cut there", in_quotes(parameters_[weight].name))
              : "it is added once to the sum of what the ranks compute";
      problems_.add(
          where == nullptr ? scenario_.where("placements") : *where,
          fmt::format("{} is {} along {}, but {} is {}", in_quotes(parameters_[weight].name),
                      to_string(of_weight), mesh_.name(mesh_dim), in_quotes(parameters_[bias].name),
                      to_string(of_bias)),
          fmt::format("write {}: {{{}: \"{}\"}}: {}", in_quotes(parameters_[bias].name),
                      in_quotes(mesh_.name(mesh_dim)), to_string(wanted), why));
    }
  }

  void read_entries(const std::vector<std::pair<std::string, JsonCursor>>& entries,
                    const std::vector<int>& parameters) {
    for (const auto& [name, at] : entries) {
      const std::optional<int> dim = mesh_dim(name, at);
      if (!dim || !at.value->is_string()) continue;
      const std::optional<Placement> placement =
          placement_of(at, at.value->get_ref<const std::string&>());
      if (!placement) continue;
      for (const int p : parameters)
        set(static_cast<std::size_t>(p), *dim, *placement, at);
    }
  }

  std::optional<int> mesh_dim(const std::string& name, const JsonCursor& at) {
    const std::optional<int> dim = mesh_.find(name);
    if (!dim) {
      problems_.add_at_key(at, fmt::format("no mesh dim has the name {}", in_quotes(name)),
                           fmt::format("the mesh dims are {}", quoted_list(mesh_.names())));
      return std::nullopt;
    }
    if (dim == roles_.tp_dim || dim == roles_.ep_dim) return dim;
    if (dim == roles_.fsdp_shard_dim || dim == roles_.dp_replicate_dim) {
      problems_.add_at_key(
          at,
          fmt::format("mesh dim {} is {}: fully_shard decides what it does to parameters",
                      in_quotes(name),
                      dim == roles_.fsdp_shard_dim ? "fsdp_shard_dim" : "dp_replicate_dim"),
          "placements are for tp_dim and ep_dim; fully_shard.shard_placement says which tensor dim "
          "fully_shard cuts");
    } else {
      problems_.add_at_key(
          at, fmt::format("mesh dim {} has no role: it holds copies", in_quotes(name)),
          fmt::format("give it one: \"roles\": {{\"tp_dim\": {}}}", in_quotes(name)));
    }
    return std::nullopt;
  }

  /// A plain placement; the flag of uneven cuts says nothing about TP and EP, which cut by ceil.
  std::optional<Placement> placement_of(const JsonCursor& at, const std::string& text) {
    auto parsed = parse_placement(text);
    if (const auto* problem = std::get_if<PlacementProblem>(&parsed)) {
      problems_.add(at, fmt::format("{}: {}", in_quotes(text), problem->message), problem->help);
      return std::nullopt;
    }
    Placement placement = std::get<Placement>(std::move(parsed));
    if (auto* shard = std::get_if<Shard>(&placement)) shard->uneven = false;
    if (auto* shard = std::get_if<StridedShard>(&placement)) {
      if (shard->split_factor == 1) return Shard{shard->dim};
      shard->uneven = false;
    }
    if (std::holds_alternative<Partial>(placement)) {
      problems_.add(at, fmt::format("{}: a parameter is never Partial", in_quotes(text)),
                    "only gradients and activations are; write \"Replicate\" or \"Shard(0)\"");
      return std::nullopt;
    }
    if (std::holds_alternative<RaggedShard>(placement) ||
        std::holds_alternative<RaggedStridedShard>(placement)) {
      problems_.add(
          at,
          fmt::format("{}: tensor and expert parallelism cut by the ceil rule", in_quotes(text)),
          "write \"Shard(0)\"; ragged cuts are fully_shard.shard_placement");
      return std::nullopt;
    }
    return placement;
  }

  void set(std::size_t p, int dim, const Placement& placement, const JsonCursor& at) {
    const ParameterSpec& spec = parameters_[p];
    const auto num_dims = static_cast<int>(spec.shape.size());
    const std::vector<int> cut = cut_dims(placement);
    if (!cut.empty() && cut[0] >= num_dims) {
      problems_.add(
          at,
          fmt::format("tensor dim {}, but {} has {} dims", cut[0], in_quotes(spec.name), num_dims),
          fmt::format("write a dim of 0..{}", num_dims - 1));
      return;
    }
    auto& known = where_[p][static_cast<std::size_t>(dim)];
    Placement& entry = placements_[p][static_cast<std::size_t>(dim)];
    if (known && entry != placement) {
      problems_.add(
          at,
          fmt::format("{} is {} along {} here, but {} at {}", in_quotes(spec.name),
                      to_string(placement), mesh_.name(dim), to_string(entry), known->pointer),
          "keep one of the two");
      return;
    }
    known = at;
    entry = placement;
  }

  /// split_factor of a written StridedShard: the product of the sizes of the mesh dims that cut the
  /// tensor dim before it, all of them or those to its right.
  void check_factors(std::size_t p) {
    const auto& placements = placements_[p];
    for (int mesh_dim = 0; mesh_dim < mesh_.num_dims(); ++mesh_dim) {
      const auto* strided =
          std::get_if<StridedShard>(&placements[static_cast<std::size_t>(mesh_dim)]);
      if (strided == nullptr) continue;
      std::int64_t before = 1;
      std::int64_t before_right = 1;
      for (const int other : cutting_order(placements, strided->dim)) {
        if (other == mesh_dim) break;
        before *= mesh_.size(other);
        if (other > mesh_dim) before_right *= mesh_.size(other);
      }
      if (strided->split_factor == before || strided->split_factor == before_right) continue;
      const std::string good = before == 1
                                   ? fmt::format("Shard({})", strided->dim)
                                   : fmt::format("StridedShard({}, {})", strided->dim, before);
      const std::string others =
          before == 1 ? fmt::format("no mesh dim cuts tensor dim {} before it", strided->dim)
                      : fmt::format("the mesh dims that cut tensor dim {} before it have {} ranks",
                                    strided->dim, before);
      problems_.add(
          *where_[p][static_cast<std::size_t>(mesh_dim)],
          fmt::format("split_factor of {} along {} is {}, but {}", in_quotes(parameters_[p].name),
                      mesh_.name(mesh_dim), strided->split_factor, others),
          fmt::format("write \"{}\"", good));
    }
  }

  const ObjectReader& scenario_;
  Problems& problems_;
  const Mesh& mesh_;
  const Roles& roles_;
  const ModelSpec& model_;
  std::vector<ParameterSpec> parameters_;
  std::vector<std::vector<std::size_t>> parameters_of_;  ///< per module, or elementwise parameter
  std::vector<ParallelStyle> styles_;                    ///< likewise
  std::vector<bool> has_bad_style_;                      ///< likewise: one that is no style
  std::vector<std::vector<Placement>> placements_;
  std::vector<std::vector<std::optional<JsonCursor>>> where_;  ///< like placements_
};

}  // namespace

Parallelism read_parallelism(const ObjectReader& scenario, const Mesh& mesh, const Roles& roles,
                             const ModelSpec& model) {
  return ParallelismReader(scenario, mesh, roles, model).read();
}

}  // namespace hpsim
