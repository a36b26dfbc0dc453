#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "layout/parse_placement.h"
#include "layout/tensor_layout.h"
#include "scenario/locate.h"
#include "scenario/parallel_styles.h"
#include "scenario/pattern_matcher.h"
#include "scenario/sections.h"

namespace hpsim {
namespace {

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
        styles_(read_styles(scenario, mesh, roles, model)),
        placements_(parameters_.size()),
        where_(parameters_.size()) {
    for (auto& of_parameter : placements_)
      of_parameter.assign(static_cast<std::size_t>(mesh.num_dims()), Replicate{});
    for (auto& of_parameter : where_)
      of_parameter.resize(static_cast<std::size_t>(mesh.num_dims()));
    weights_.resize(model.modules.size());
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      const ParameterSpec& spec = parameters_[p];
      if (is_matrix(spec)) weights_[static_cast<std::size_t>(spec.module)] = p;
    }
    for (std::size_t m = 0; m < model.modules.size(); ++m) {
      const int owner = model.modules[m].tied_to;
      if (owner >= 0) weights_[m] = weights_[static_cast<std::size_t>(owner)];
    }
  }

  Parallelism read() {
    for (std::size_t p = 0; p < parameters_.size(); ++p)
      apply_style(p);
    int next = 0;  // parameters are in file order
    for (const auto& [name, at] : scenario_.members("parameters")) {
      const int p = next++;
      if (!at.is_object()) continue;
      const ObjectReader reader(at, "Elementwise", problems_);
      read_entries(reader.members("placements"), {p});
    }
    PatternMatcher matcher(names_of(parameters_), "parameter", problems_);
    for (const auto& [pattern, at] : scenario_.members("placements")) {
      const std::vector<int> matched = matcher.matches_of(pattern, at);
      if (!at.is_object()) continue;
      read_entries(at.members(), matched);
    }
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      check_factors(p);
      if (parameters_[p].kind != ParameterSpec::Kind::Elementwise) spell_out(p);
    }
    for (std::size_t m = 0; m < model_.modules.size(); ++m) {
      if (model_.modules[m].tied_to >= 0) check_tie(m);
      if (model_.modules[m].type == ModuleType::AttentionCore) check_heads(m);
      if (model_.modules[m].type == ModuleType::Experts) check_experts(m);
    }
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      const auto module = static_cast<std::size_t>(parameters_[p].module);
      const bool is_bias = parameters_[p].kind == ParameterSpec::Kind::LinearBias;
      if (is_bias && !styles_[module].is_bad) check_bias(weights_[module], p);
    }
    std::vector<ParallelStyle> styles;
    for (const StyleChoice& choice : styles_)
      styles.push_back(choice.style);
    return {std::move(placements_), std::move(styles)};
  }

 private:
  static bool is_matrix(const ParameterSpec& spec) {
    return spec.kind == ParameterSpec::Kind::LinearWeight ||
           spec.kind == ParameterSpec::Kind::EmbeddingWeight;
  }

  /// A style cuts along tp_dim, the style of experts along ep_dim.
  void apply_style(std::size_t p) {
    const ParameterSpec& spec = parameters_[p];
    const StyleChoice& choice = styles_[static_cast<std::size_t>(spec.module)];
    const std::optional<int> cut = dim_cut_by(choice.style, spec.kind);
    if (!cut) return;
    if (*cut < static_cast<int>(spec.shape.size())) {
      const int dim = choice.style == ParallelStyle::Expert ? *roles_.ep_dim : *roles_.tp_dim;
      placements_[p][static_cast<std::size_t>(dim)] = Shard{*cut};
      return;
    }
    problems_.add(
        *choice.at,
        fmt::format("rowwise cuts tensor dim 1, but {} has one dim", in_quotes(spec.name)),
        "write \"colwise\", which cuts dim 0, or \"replicate\"");
  }

  /// Modules that share a weight must cut it alike, unless `placements` says how it is cut.
  void check_tie(std::size_t m) {
    const std::size_t weight = weights_[m];
    const auto owner = static_cast<std::size_t>(model_.modules[m].tied_to);
    const StyleChoice& of_owner = styles_[owner];
    StyleChoice& choice = styles_[m];
    if (!roles_.tp_dim || of_owner.is_bad || choice.is_bad) return;
    if (where_[weight][static_cast<std::size_t>(*roles_.tp_dim)]) return;
    const auto owned = dim_cut_by(of_owner.style, parameters_[weight].kind);
    const auto cut = dim_cut_by(choice.style, ParameterSpec::Kind::LinearWeight);
    if (owned == cut) return;
    choice.is_bad = true;
    const auto says = [](const StyleChoice& from, const std::optional<int>& dim) {
      return dim ? fmt::format("{} cuts dim {} of it", name_of(from.style), *dim)
                 : fmt::format("{} leaves it whole", name_of(from.style));
    };
    const ParallelStyle wanted = !owned        ? ParallelStyle::Replicate
                                 : *owned == 0 ? ParallelStyle::Colwise
                                               : ParallelStyle::Rowwise;
    problems_.add(
        choice.at ? *choice.at : *of_owner.at,
        fmt::format("{} and {} share {}: for the first {}, for the second {}",
                    in_quotes(model_.modules[owner].name), in_quotes(model_.modules[m].name),
                    in_quotes(parameters_[weight].name), says(of_owner, owned), says(choice, cut)),
        fmt::format("cut it alike: write {}: \"{}\"", in_quotes(model_.modules[m].name),
                    name_of(wanted)));
  }

  /// Attention is cut between heads.
  void check_heads(std::size_t core) {
    const ModuleSpec& spec = model_.modules[core];
    const std::vector<int> inputs = inputs_of(model_, static_cast<int>(core));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto projection = static_cast<std::size_t>(inputs[i] - 1);
      const std::size_t weight = weights_[projection];
      const MeshDims dims = cutting_order(placements_[weight], 0);
      const std::int64_t num_heads = i == 0 ? spec.heads : spec.kv_heads;
      if (dims.empty() || num_heads % mesh_.size(dims) == 0) continue;
      const JsonCursor module =
          scenario_.at().below(module_pointer(model_, static_cast<int>(core)));
      const ObjectReader attention(module, "Module", problems_);
      for (const char* key : {"dim", "heads", "kv_heads"}) {
        if (attention.is_bad(key)) return;
      }
      const JsonCursor* where = nullptr;
      for (const int dim : dims) {
        const auto& at = where_[weight][static_cast<std::size_t>(dim)];
        if (at) where = &*at;
      }
      if (where == nullptr) where = &*styles_[projection].at;
      if (!told_heads_.insert(where->value).second) return;
      problems_.add(
          *where,
          fmt::format("the {} {} of {} do not divide over {} ranks along {}: {} remain", num_heads,
                      i == 0 ? "heads" : "kv_heads",
                      in_quotes(std::string_view(spec.name).substr(0, spec.name.rfind('.'))),
                      mesh_.size(dims), names_of_dims(dims), num_heads % mesh_.size(dims)),
          fmt::format("attention is cut between heads: {} must be a multiple of {}",
                      i == 0 ? "heads" : "kv_heads", mesh_.size(dims)));
      return;
    }
  }

  /// Experts are cut between experts, or all inside: w1 and w3 by rows, w2 by columns.
  void check_experts(std::size_t module) {
    std::size_t w1 = 0;
    while (parameters_[w1].module != static_cast<int>(module))
      ++w1;
    if (styles_[module].is_bad) return;
    for (int mesh_dim = 0; mesh_dim < mesh_.num_dims(); ++mesh_dim) {
      const auto at = static_cast<std::size_t>(mesh_dim);
      const Placement& inwards = placements_[w1][at];
      if (cuts(inwards, 2)) {
        tell_expert_cut(w1, w1, at, "experts take all features of a position",
                        "cut dim 0, the experts, or dim 1, which is hidden");
        return;
      }
      Placement outwards = inwards;
      if (cuts(inwards, 1)) {
        if (auto* shard = std::get_if<Shard>(&outwards)) shard->dim = 2;
        if (auto* shard = std::get_if<StridedShard>(&outwards)) shard->dim = 2;
      }
      for (const std::size_t p : {w1 + 2, w1 + 1}) {
        const Placement& wanted = p == w1 + 1 ? outwards : inwards;
        if (placements_[p][at] == wanted) continue;
        tell_expert_cut(
            w1, p, at,
            fmt::format("{} is {} there{}", in_quotes(parameters_[w1].name), to_string(inwards),
                        cuts(inwards, 1) ? ": hidden is dim 1 of w1 and w3, dim 2 of w2" : ""),
            fmt::format("write {}: {{{}: \"{}\"}}", in_quotes(parameters_[p].name),
                        in_quotes(mesh_.name(mesh_dim)), to_string(wanted)));
        return;
      }
    }
    check_number_of_experts(module, w1);
  }

  void tell_expert_cut(std::size_t w1, std::size_t p, std::size_t mesh_dim, const std::string& why,
                       const std::string& help) {
    const JsonCursor* where = nullptr;
    for (const std::size_t q : {p, w1}) {
      if (where == nullptr && where_[q][mesh_dim]) where = &*where_[q][mesh_dim];
    }
    const StyleChoice& style = styles_[static_cast<std::size_t>(parameters_[p].module)];
    if (where == nullptr && style.at) where = &*style.at;
    problems_.add(where == nullptr ? scenario_.where("placements") : *where,
                  fmt::format("{} is {} along {}, but {}", in_quotes(parameters_[p].name),
                              to_string(placements_[p][mesh_dim]),
                              mesh_.name(static_cast<int>(mesh_dim)), why),
                  help);
  }

  void check_number_of_experts(std::size_t module, std::size_t w1) {
    const ModuleSpec& spec = model_.modules[module];
    const MeshDims dims = cutting_order(placements_[w1], 0);
    const std::int64_t num_ranks = mesh_.size(dims);
    if (dims.empty() || spec.num_experts % num_ranks == 0) return;
    const JsonCursor at_module =
        scenario_.at().below(module_pointer(model_, static_cast<int>(module)));
    const ObjectReader moe(at_module, "Module", problems_);
    if (moe.is_bad("experts") || !moe.has("experts")) return;  // told already
    const JsonCursor* where = nullptr;
    for (const int dim : dims) {
      const auto& at = where_[w1][static_cast<std::size_t>(dim)];
      if (at) where = &*at;
    }
    if (where == nullptr) where = &*styles_[module].at;
    if (!told_heads_.insert(where->value).second) return;
    problems_.add(
        *where,
        fmt::format("the number of experts of {}, {}, does not divide over {} ranks along {}",
                    in_quotes(std::string_view(spec.name).substr(0, spec.name.rfind('.'))),
                    spec.num_experts, num_ranks, names_of_dims(dims)),
        fmt::format("write a multiple of {} experts, or make the mesh dim smaller", num_ranks));
  }

  /// `"tp"`, or `"tp", "ep"`
  [[nodiscard]] std::string names_of_dims(const MeshDims& dims) const {
    std::vector<std::string> names;
    for (const int dim : dims)
      names.push_back(mesh_.name(dim));
    return quoted_list(names);
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
      if (!dim || !at.is_string()) continue;
      const std::optional<Placement> placement = placement_of(at, at.string());
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
    const bool is_norm =
        spec.kind == ParameterSpec::Kind::NormWeight || spec.kind == ParameterSpec::Kind::NormBias;
    if (is_norm && !cut.empty()) {
      problems_.add(at,
                    fmt::format("{} is {} here, but a norm needs all features",
                                in_quotes(spec.name), to_string(placement)),
                    "write \"Replicate\"; \"sequence_parallel\" in parallelize cuts the sequence");
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

  /// The same cuts in one spelling, so that layouts of activations and of biases can be compared:
  /// plain where mesh order is the order of the cuts, else with all ranks that cut before as
  /// factor.
  void spell_out(std::size_t p) {
    std::vector<Placement>& placements = placements_[p];
    for (int tensor_dim = 0; tensor_dim < static_cast<int>(parameters_[p].shape.size());
         ++tensor_dim) {
      const MeshDims order = cutting_order(placements, tensor_dim);
      const bool is_plain = std::is_sorted(order.begin(), order.end());
      std::int64_t before = 1;
      for (const int mesh_dim : order) {
        Placement& placement = placements[static_cast<std::size_t>(mesh_dim)];
        placement = Shard{tensor_dim};
        if (!is_plain && before > 1) placement = StridedShard{tensor_dim, before};
        before *= mesh_.size(mesh_dim);
      }
    }
  }

  const ObjectReader& scenario_;
  Problems& problems_;
  const Mesh& mesh_;
  const Roles& roles_;
  const ModelSpec& model_;
  std::vector<ParameterSpec> parameters_;
  std::vector<std::size_t> weights_;  ///< per module with a weight matrix, its own or a tied one
  std::vector<StyleChoice> styles_;   ///< per module, or elementwise parameter
  std::vector<std::vector<Placement>> placements_;
  std::vector<std::vector<std::optional<JsonCursor>>> where_;  ///< like placements_
  std::set<const Json*> told_heads_;  ///< places where heads or experts do not divide
};

}  // namespace

Parallelism read_parallelism(const ObjectReader& scenario, const Mesh& mesh, const Roles& roles,
                             const ModelSpec& model) {
  return ParallelismReader(scenario, mesh, roles, model).read();
}

}  // namespace hpsim
