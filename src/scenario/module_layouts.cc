#include "scenario/module_layouts.h"

#include "layout/tensor_layout.h"

namespace hpsim {
namespace {

bool is_partial(const Placement& placement) {
  return std::holds_alternative<Partial>(placement);
}

/// The same tensor dim of another tensor: Shard(0) of a weight's rows is Shard(1) of the features
/// that they compute.
Placement with_dim(Placement placement, int tensor_dim) {
  if (auto* shard = std::get_if<Shard>(&placement)) shard->dim = tensor_dim;
  if (auto* shard = std::get_if<StridedShard>(&placement)) shard->dim = tensor_dim;
  return placement;
}

/// Layouts along one mesh dim; `input` is what arrives.
class ModuleRule {
 public:
  ModuleRule(ModuleLayout& layout, std::size_t mesh_dim, const Placement& arriving)
      : layout_(layout), at_(mesh_dim), arriving_(arriving) {}

  /// y = x Wᵀ along a mesh dim that leaves the weight whole: samples may be cut, features not.
  void whole_weight() { set(cuts(arriving_, 0) ? arriving_ : Placement{Replicate{}}); }
  /// Rows of the weight: every input feature, a part of the output features; what they send back
  /// to an input feature are terms.
  void cut_rows(const Placement& weight) {
    set(Replicate{});
    layout_.output[at_] = with_dim(weight, 1);
    layout_.input_gradient[at_] = Partial{};
  }
  /// Columns of the weight: a part of the input features, terms of every output feature.
  void cut_columns(const Placement& weight) {
    set(weight);
    layout_.output[at_] = Partial{};
  }
  /// Functions of single elements take any part, but no terms of a sum.
  void element_by_element() { set(is_partial(arriving_) ? Placement{Replicate{}} : arriving_); }

 private:
  void set(const Placement& placement) {
    layout_.input[at_] = layout_.output[at_] = layout_.input_gradient[at_] = placement;
  }

  ModuleLayout& layout_;
  std::size_t at_;
  const Placement& arriving_;
};

}  // namespace

std::vector<Placement> input_layout(const Scenario& scenario) {
  std::vector<Placement> layout(static_cast<std::size_t>(scenario.mesh.num_dims()), Replicate{});
  for (const int dim : scenario.data.data_dims)
    layout.at(static_cast<std::size_t>(dim)) = Shard{0};
  return layout;
}

std::vector<ModuleLayout> module_layouts(const Scenario& scenario) {
  std::vector<ModuleLayout> layouts;
  const Mesh& mesh = scenario.mesh;
  const auto num_dims = static_cast<std::size_t>(mesh.num_dims());
  const std::vector<int> weights = first_parameters(scenario);
  std::vector<Placement> now = input_layout(scenario);
  for (std::size_t m = 0; m < scenario.model.modules.size(); ++m) {
    ModuleLayout layout{now, now, now, now};
    const std::vector<Placement> weight =
        weights[m] < 0 ? std::vector<Placement>{} : placements_of(scenario, weights[m]);
    for (std::size_t dim = 0; dim < num_dims; ++dim) {
      ModuleRule rule(layout, dim, now[dim]);
      if (weight.empty()) {
        rule.element_by_element();
      } else if (mesh.size(static_cast<int>(dim)) == 1 || !is_cut(weight[dim])) {
        rule.whole_weight();
      } else if (cuts(weight[dim], 0)) {
        rule.cut_rows(weight[dim]);
      } else {
        rule.cut_columns(weight[dim]);
      }
    }
    layout.given = layout.output;
    const bool is_rowwise =
        !scenario.styles.empty() && scenario.styles[m] == ParallelStyle::Rowwise;
    if (is_rowwise) {
      Placement& given = layout.given[static_cast<std::size_t>(*scenario.roles.tp_dim)];
      if (is_partial(given)) given = Replicate{};
    }
    now = layout.given;
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

std::vector<MeshDims> partial_dims(const Scenario& scenario) {
  const std::vector<ModuleLayout> layouts = module_layouts(scenario);
  std::vector<MeshDims> partial;
  for (int p = 0; p < static_cast<int>(scenario.parameters.size()); ++p) {
    const auto module =
        static_cast<std::size_t>(scenario.parameters[static_cast<std::size_t>(p)].module);
    const MeshDims placed = cutting_dims(placements_of(scenario, p));
    const MeshDims split = scenario.model.is_elementwise()
                               ? scenario.data.data_dims
                               : cutting_order(layouts[module].input, 0);
    MeshDims& dims = partial.emplace_back();
    for (const int dim : split) {
      if (!contains(placed, dim)) dims.push_back(dim);
    }
  }
  return partial;
}

std::vector<MeshDims> averaged_dims(const Scenario& scenario) {
  std::vector<MeshDims> averaged(scenario.parameters.size());
  if (scenario.fully_shard.sync_object == SyncObject::Grad) return averaged;
  const MeshDims domain = fully_shard_domain(scenario);
  const std::vector<MeshDims> partial = partial_dims(scenario);
  for (std::size_t p = 0; p < averaged.size(); ++p) {
    if (is_ignored(scenario, static_cast<int>(p))) continue;
    for (const int dim : partial[p]) {
      if (contains(domain, dim)) averaged[p].push_back(dim);
    }
    if (scenario.mesh.size(averaged[p]) == 1) averaged[p].clear();
  }
  return averaged;
}

}  // namespace hpsim
