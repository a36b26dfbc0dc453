#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "plan/explain.h"

namespace hpsim {
namespace {

/// "tp 2", "tp 2 x ep 4"
std::string sizes_text(const Mesh& mesh, const MeshDims& dims) {
  std::vector<std::string> parts;
  for (const int dim : dims)
    parts.push_back(fmt::format("{} {}", mesh.name(dim), mesh.size(dim)));
  return fmt::format("{}", fmt::join(parts, " x "));
}

/// Words the rules of one parameter.
class Rules {
 public:
  Rules(const Plan& plan, int p)
      : scenario_(plan.scenario), mesh_(plan.mesh()), p_(p), parameter_(plan.parameter(p)) {
    PlannedParameter uncut = parameter_;
    uncut.sharded_group = {};
    uncut.cut = {};
    left_by_others_ = axis_cuts(mesh_, uncut);
  }

  [[nodiscard]] std::string rule(int mesh_dim) const {
    if (contains(cutting_dims(parameter_.unsharded), mesh_dim)) return placed_rule(mesh_dim);
    if (contains(parameter_.sharded_group.dims, mesh_dim)) return fully_shard_rule(mesh_dim);
    if (is_ignored(scenario_, p_)) {
      return "not cut: in ignored_params, fully_shard leaves it alone";
    }
    if (scenario_.roles.fsdp_shard_dim == mesh_dim) return not_sharded_rule();
    return copies_rule(mesh_dim);
  }

 private:
  [[nodiscard]] const Placement& placement(int mesh_dim) const {
    return parameter_.sharded.at(static_cast<std::size_t>(mesh_dim));
  }
  [[nodiscard]] std::int64_t extent(int tensor_dim) const {
    return parameter_.shape.at(static_cast<std::size_t>(tensor_dim));
  }
  [[nodiscard]] std::string counted(int tensor_dim, std::int64_t count) const {
    return counted_indices(parameter_.shape, tensor_dim, count);
  }

  /// Mesh dims of more than one rank that cut `tensor_dim` before `mesh_dim` does.
  [[nodiscard]] MeshDims cut_before(int mesh_dim, int tensor_dim) const {
    MeshDims before;
    for (const int dim : cutting_order(parameter_.sharded, tensor_dim)) {
      if (dim == mesh_dim) break;
      if (mesh_.size(dim) > 1) before.push_back(dim);
    }
    return before;
  }

  /// Lengths that TP and EP leave of a tensor dim, each once, descending.
  [[nodiscard]] std::vector<std::int64_t> lengths_left(int tensor_dim) const {
    for (const AxisCut& cut : left_by_others_) {
      if (cut.tensor_dim != tensor_dim) continue;
      std::vector<std::int64_t> lengths;
      for (const PartRun& run : cut.runs)
        lengths.push_back(run.length());
      std::sort(lengths.rbegin(), lengths.rend());
      lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
      return lengths;
    }
    return {extent(tensor_dim)};
  }

  /// What of the scenario places it there: its module's style, or placements.
  [[nodiscard]] std::string source_of(int mesh_dim) const {
    const ParameterSpec& spec = scenario_.parameters[static_cast<std::size_t>(p_)];
    if (!scenario_.styles.empty() && scenario_.roles.tp_dim == mesh_dim) {
      const ParallelStyle style = scenario_.styles[static_cast<std::size_t>(spec.module)];
      // Rows of an embedding are its vocabulary, its input features.
      const bool is_embedding = spec.kind == ParameterSpec::Kind::EmbeddingWeight;
      const bool cuts_output = cuts(placement(mesh_dim), is_embedding ? 1 : 0);
      const bool is_rowwise = style == ParallelStyle::Rowwise || style == ParallelStyle::RowwiseSp;
      const bool is_of_style =
          style == ParallelStyle::Colwise ? cuts_output : is_rowwise && !cuts_output;
      if (is_of_style) return fmt::format("style {} of its module", name_of(style));
    }
    const bool is_of_experts =
        !scenario_.styles.empty() && scenario_.roles.ep_dim == mesh_dim &&
        scenario_.styles[static_cast<std::size_t>(spec.module)] == ParallelStyle::Expert;
    if (is_of_experts && cuts(placement(mesh_dim), 0)) return "style expert of its module";
    return "as the scenario's placements say";
  }

  [[nodiscard]] std::string placed_rule(int mesh_dim) const {
    const int tensor_dim = cut_dims(placement(mesh_dim)).at(0);
    const bool is_tp = scenario_.roles.tp_dim == mesh_dim;
    std::string text = fmt::format("{}, role {} (multi-dim RFC 2.1.1)", source_of(mesh_dim),
                                   is_tp ? "tp_dim" : "ep_dim");
    const std::int64_t size = mesh_.size(mesh_dim);
    const MeshDims before = cut_before(mesh_dim, tensor_dim);
    if (size == 1) return text + ": one rank, nothing is cut";
    if (!before.empty()) return text + fmt::format("; cuts what {} leaves", mesh_.names(before));
    const std::int64_t whole = extent(tensor_dim);
    const std::int64_t chunk = padded_shard_length(whole, size);
    if (whole % size == 0) {
      return text + fmt::format(": {} % {} == 0, {} each", whole, size, counted(tensor_dim, chunk));
    }
    return text + fmt::format(": {} % {} != 0, ceil rule, chunks of {} (torch.chunk)", whole, size,
                              counted(tensor_dim, chunk));
  }

  [[nodiscard]] std::string fully_shard_rule(int mesh_dim) const {
    const ShardCut& cut = parameter_.cut;
    std::string text;
    if (mesh_.size(mesh_dim) == 1) {
      return "role fsdp_shard_dim (multi-dim RFC 2.1.1): one rank, nothing is cut";
    }
    text = cut.is_ragged() ? units_rule() : chunk_rule(mesh_dim);
    if (needs_whole_copy(parameter_)) {
      text += "; no rows of dim 0: chunked and concatenated around collectives (ragged RFC 6.4)";
    }
    if (split_factor_of(placement(mesh_dim)) == 1) return text;
    MeshDims others;
    for (const int tensor_dim : cut.dims)
      others = union_of(others, cut_before(mesh_dim, tensor_dim));
    return text + fmt::format(
                      "; split_factor {} = {}, which cut{} the same tensor dim first "
                      "(ragged RFC 6.4)",
                      split_factor_of(placement(mesh_dim)), sizes_text(mesh_, others),
                      others.size() == 1 ? "s" : "");
  }

  [[nodiscard]] std::string units_rule() const {
    const ShardCut& cut = parameter_.cut;
    std::string what;
    if (cut.dims.size() == 1) {
      what = noun_of_indices(parameter_.shape, cut.dims[0]);
    } else {
      std::vector<std::string> dims;
      for (const int dim : cut.dims)
        dims.push_back(fmt::format("{}", dim));
      what = fmt::format("cells of dims {}", fmt::join(dims, ", "));
    }
    return fmt::format("shard_placement cuts the {} into {} units and gives each rank those listed",
                       what, cut.local_units.sum());
  }

  [[nodiscard]] std::string chunk_rule(int mesh_dim) const {
    const int tensor_dim = parameter_.cut.dims.at(0);
    const std::int64_t size = mesh_.size(mesh_dim);
    const std::vector<std::int64_t> lengths = lengths_left(tensor_dim);
    const auto uneven =
        std::find_if(lengths.begin(), lengths.end(), [&](std::int64_t n) { return n % size != 0; });
    const MeshDims before = cut_before(mesh_dim, tensor_dim);
    std::string text;
    if (!before.empty()) {
      text = fmt::format("{} leaves {}, ", mesh_.names(before), lengths_text(tensor_dim, lengths));
    }
    if (uneven == lengths.end()) {
      if (lengths.size() > 1)
        return text + fmt::format("divided by {} (multi-dim RFC 2.1.1)", size);
      return text + fmt::format("{} % {} == 0: {} each (multi-dim RFC 2.1.1)", lengths[0], size,
                                counted(tensor_dim, lengths[0] / size));
    }
    text += fmt::format("{} % {} != 0: ", *uneven, size);
    if (lengths.size() > 1) text += "uneven on every rank, as their placements must agree; ";
    if (parameter_.cut.chunking == Chunking::Balanced) {
      return text +
             "balanced by chunking, lengths differ by at most 1 (HyperParallel on MindSpore)";
    }
    if (lengths.size() > 1) return text + "ceil rule (ragged RFC 6.4)";
    return text + fmt::format("ceil rule, chunks of {} (ragged RFC 6.4)",
                              counted(tensor_dim, padded_shard_length(lengths[0], size)));
  }

  /// "5 rows", "4 or 3 rows"
  [[nodiscard]] std::string lengths_text(int tensor_dim,
                                         const std::vector<std::int64_t>& lengths) const {
    std::string text;
    for (std::size_t i = 0; i + 1 < lengths.size(); ++i)
      text += fmt::format("{}{}", format_count(lengths[i]), i + 2 < lengths.size() ? ", " : " or ");
    return text + counted(tensor_dim, lengths.back());
  }

  /// Why fully_shard does not cut along its own dim.
  [[nodiscard]] std::string not_sharded_rule() const {
    const FullyShardSpec& spec = scenario_.fully_shard;
    if (!spec.shards_parameters) return "not cut: enable_param_shard is false (multi-dim RFC 4.1)";
    if (std::binary_search(spec.replicate_params.begin(), spec.replicate_params.end(), p_)) {
      return "not cut: in replicate_params";
    }
    return fmt::format("not cut: {} bytes < min_shard_bytes {} (multi-dim RFC 2.2.5)",
                       num_elems(parameter_.shape) * size_bytes(parameter_.dtype),
                       spec.min_shard_bytes);
  }

  [[nodiscard]] std::string copies_rule(int mesh_dim) const {
    const Roles& roles = scenario_.roles;
    if (roles.shard_replicate_dim == mesh_dim) {
      return fmt::format("holds copies: shard_size leaves {} replicas (multi-dim RFC 2.2.5)",
                         mesh_.size(mesh_dim));
    }
    const char* role = roles.dp_replicate_dim == mesh_dim ? "dp_replicate_dim"
                       : roles.tp_dim == mesh_dim         ? "tp_dim"
                       : roles.ep_dim == mesh_dim         ? "ep_dim"
                                                          : nullptr;
    if (role == nullptr) return "holds copies: the dim has no role";
    if (roles.dp_replicate_dim == mesh_dim) {
      return "holds copies: role dp_replicate_dim (multi-dim RFC 2.1.1)";
    }
    return fmt::format("holds copies: role {}, and no placement cuts it (multi-dim RFC 2.1.1)",
                       role);
  }

  const Scenario& scenario_;
  const Mesh& mesh_;
  int p_;
  const PlannedParameter& parameter_;
  std::vector<AxisCut> left_by_others_;
};

}  // namespace

std::vector<DimFact> dim_facts(const Plan& plan, int parameter) {
  const Rules rules(plan, parameter);
  std::vector<DimFact> facts;
  for (int dim = 0; dim < plan.mesh().num_dims(); ++dim)
    facts.push_back({dim, rules.rule(dim)});
  return facts;
}

}  // namespace hpsim
