#include <algorithm>

#include "base/check.h"
#include "plan/passes/passes.h"

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

Plan lay_out_activations(Plan plan) {
  const Scenario& scenario = plan.scenario;
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
    plan.modules.push_back(std::move(layout));
  }
  plan.output = std::move(now);
  for (Placement& placement : plan.output) {
    if (is_partial(placement)) placement = Replicate{};
  }
  return plan;
}

bool has_activations(const Plan& plan) {
  return plan.modules.size() == plan.scenario.model.modules.size() &&
         static_cast<int>(plan.output.size()) == plan.mesh().num_dims();
}

}  // namespace hpsim
