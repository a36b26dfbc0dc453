#include "scenario/module_layouts.h"

#include <algorithm>

#include "base/check.h"
#include "layout/tensor_layout.h"

namespace hpsim {
namespace {

using Layout = std::vector<Placement>;

bool is_partial(const Placement& placement) {
  return std::holds_alternative<Partial>(placement);
}

/// The same cut of a dim of another tensor: the rows of a weight are the features that they
/// compute.
Placement with_dim(Placement placement, int tensor_dim) {
  if (auto* shard = std::get_if<Shard>(&placement)) shard->dim = tensor_dim;
  if (auto* shard = std::get_if<StridedShard>(&placement)) shard->dim = tensor_dim;
  return placement;
}

/// Works out the layouts of one module along one mesh dim.
class ModuleRule {
 public:
  ModuleRule(const Scenario& scenario, int mesh_dim, ModuleLayout& layout)
      : features_(feature_dim(scenario.model)),
        is_tp_(scenario.roles.tp_dim == mesh_dim && scenario.mesh.size(mesh_dim) > 1),
        at_(static_cast<std::size_t>(mesh_dim)),
        layout_(layout) {}

  /// `weight` is what TP and EP make of its weight along the mesh dim.
  void apply(const ModuleSpec& module, ParallelStyle style, const Placement& weight) {
    switch (module.type) {
      case ModuleType::Linear:
        return is_cut(weight) ? cut_linear(weight) : by_samples();
      case ModuleType::Embedding:
        return is_cut(weight) ? cut_embedding(weight) : by_samples();
      case ModuleType::LayerNorm:
      case ModuleType::RmsNorm:
        if (is_tp_ && style == ParallelStyle::SequenceParallel) return set_all(Shard{kSequenceDim});
        return by_samples();
      case ModuleType::AttentionCore:
        return attention_core();
      case ModuleType::Experts:
        return experts(weight);
      case ModuleType::Add:
        return element_by_element(layout_.inputs.size() - 1);
      case ModuleType::SiluGate:
      case ModuleType::Relu:
      case ModuleType::Tanh:
      case ModuleType::Silu:
      case ModuleType::Gelu:
        return element_by_element(0);
    }
  }

  /// What the style makes of the output.
  void give(ParallelStyle style) {
    Placement& given = layout_.given[at_];
    if (!is_tp_ || !is_partial(given)) return;
    if (style == ParallelStyle::Rowwise) given = Replicate{};
    if (style == ParallelStyle::RowwiseSp) given = Shard{kSequenceDim};
  }

 private:
  [[nodiscard]] const Placement& arriving(std::size_t input) const {
    return layout_.inputs[input][at_];
  }

  void set_all(const Placement& placement) {
    for (Layout& input : layout_.inputs)
      input[at_] = placement;
    for (Layout& gradient : layout_.input_gradients)
      gradient[at_] = placement;
    layout_.output[at_] = placement;
  }

  /// All features of any samples.
  void by_samples() {
    const Placement first = arriving(0);
    set_all(cuts(first, kSampleDim) ? first : Placement{Replicate{}});
  }

  void cut_linear(const Placement& weight) {
    if (cuts(weight, 0)) {
      set_all(Replicate{});
      layout_.output[at_] = with_dim(weight, features_);
      layout_.input_gradients[0][at_] = Partial{};
    } else {
      set_all(with_dim(weight, features_));
      layout_.output[at_] = Partial{};
    }
  }

  void cut_embedding(const Placement& weight) {
    set_all(Replicate{});
    layout_.output[at_] = cuts(weight, 0) ? Placement{Partial{}} : with_dim(weight, features_);
  }

  /// Heads are runs of features: all three are cut alike, or not at all.
  void attention_core() {
    const Placement first = arriving(0);
    const bool are_alike = std::all_of(layout_.inputs.begin(), layout_.inputs.end(),
                                       [&](const Layout& input) { return input[at_] == first; });
    const bool fits = cuts(first, kSampleDim) || cuts(first, features_);
    set_all(are_alike && fits ? first : Placement{Replicate{}});
  }

  /// Cut by experts, positions of the rank's own samples go to those that hold them; where all
  /// ranks have the same samples, each computes the terms of its own experts, as it does where
  /// experts are cut inside.
  void experts(const Placement& weight) {
    const bool exchanges = cuts(weight, 0) && cuts(arriving(0), kSampleDim);
    if (!is_cut(weight) || exchanges) return by_samples();
    set_all(Replicate{});
    layout_.output[at_] = Partial{};
    for (Layout& gradient : layout_.input_gradients)
      gradient[at_] = Partial{};
  }

  /// Any part, but no terms of a sum; all inputs as the leading one comes.
  void element_by_element(std::size_t leading) {
    const Placement first = arriving(leading);
    set_all(is_partial(first) ? Placement{Replicate{}} : first);
  }

  int features_;
  bool is_tp_;
  std::size_t at_;
  ModuleLayout& layout_;
};

}  // namespace

int feature_dim(const ModelSpec& model) {
  return 1 + static_cast<int>(model.positions.size());
}

std::vector<Placement> input_layout(const Scenario& scenario) {
  Layout layout(static_cast<std::size_t>(scenario.mesh.num_dims()), Replicate{});
  for (const int dim : scenario.data.data_dims)
    layout.at(static_cast<std::size_t>(dim)) = Shard{kSampleDim};
  return layout;
}

std::vector<ModuleLayout> module_layouts(const Scenario& scenario) {
  const Mesh& mesh = scenario.mesh;
  const std::vector<std::vector<int>> parameters = parameters_of_modules(scenario);
  std::vector<Layout> given = {input_layout(scenario)};  // of every activation
  std::vector<ModuleLayout> layouts;
  const Placement whole = Replicate{};
  for (std::size_t m = 0; m < scenario.model.modules.size(); ++m) {
    const ParallelStyle style =
        scenario.styles.empty() ? ParallelStyle::Replicate : scenario.styles[m];
    ModuleLayout layout;
    for (const int input : inputs_of(scenario.model, static_cast<int>(m)))
      layout.inputs.push_back(given.at(static_cast<std::size_t>(input)));
    layout.input_gradients = layout.inputs;
    layout.output = layout.inputs.at(0);
    const Layout weight =
        parameters[m].empty() ? Layout{} : placements_of(scenario, parameters[m][0]);
    for (int dim = 0; dim < mesh.num_dims(); ++dim) {
      const bool is_whole = mesh.size(dim) == 1 || weight.empty();
      ModuleRule(scenario, dim, layout)
          .apply(scenario.model.modules[m], style,
                 is_whole ? whole : weight[static_cast<std::size_t>(dim)]);
    }
    layout.given = layout.output;
    for (int dim = 0; dim < mesh.num_dims(); ++dim)
      ModuleRule(scenario, dim, layout).give(style);
    given.push_back(layout.given);
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

std::vector<std::vector<int>> parameters_of_modules(const Scenario& scenario) {
  const ModelSpec& model = scenario.model;
  std::vector<std::vector<int>> parameters(
      std::max(model.modules.size(), model.elementwise.size()));
  for (int p = 0; p < static_cast<int>(scenario.parameters.size()); ++p) {
    const ParameterSpec& spec = scenario.parameters[static_cast<std::size_t>(p)];
    parameters.at(static_cast<std::size_t>(spec.module)).push_back(p);
  }
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    const int owner = model.modules[m].tied_to;
    if (owner < 0) continue;
    const std::vector<int>& owned = parameters.at(static_cast<std::size_t>(owner));
    if (model.modules[m].ties_bias) {
      parameters[m] = owned;
    } else {
      parameters[m].insert(parameters[m].begin(), owned.at(0));
    }
  }
  return parameters;
}

std::vector<std::vector<int>> modules_of_parameters(const Scenario& scenario) {
  const std::vector<std::vector<int>> parameters = parameters_of_modules(scenario);
  std::vector<std::vector<int>> modules(scenario.parameters.size());
  for (std::size_t module = 0; module < parameters.size(); ++module) {
    for (const int p : parameters[module])
      modules.at(static_cast<std::size_t>(p)).push_back(static_cast<int>(module));
  }
  return modules;
}

MeshDims split_dims(const ModelSpec& model, const ModuleLayout& layout) {
  MeshDims split;
  for (int dim = 0; dim < feature_dim(model); ++dim)
    split = union_of(split, cutting_order(layout.inputs[0], dim));
  return split;
}

std::vector<MeshDims> partial_dims(const Scenario& scenario) {
  const std::vector<ModuleLayout> layouts = module_layouts(scenario);
  std::vector<MeshDims> partial;
  for (int p = 0; p < static_cast<int>(scenario.parameters.size()); ++p) {
    const auto module =
        static_cast<std::size_t>(scenario.parameters[static_cast<std::size_t>(p)].module);
    const MeshDims placed = cutting_dims(placements_of(scenario, p));
    const MeshDims split =
        layouts.empty() ? scenario.data.data_dims : split_dims(scenario.model, layouts[module]);
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
