#include "plan/token_exchange.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "mesh/group.h"
#include "plan/activation_part.h"
#include "plan/rank_layout.h"

namespace hpsim {
namespace {

const ModuleSpec& spec_of(const Plan& plan, int module) {
  return plan.scenario.model.modules.at(static_cast<std::size_t>(module));
}

/// Its w1 says how experts are cut.
const PlannedParameter& weight_of(const Plan& plan, int module) {
  const auto found = std::find_if(plan.scenario.parameters.begin(), plan.scenario.parameters.end(),
                                  [&](const ParameterSpec& spec) { return spec.module == module; });
  HPSIM_CHECK(found != plan.scenario.parameters.end(), "module {} has no weights", module);
  return plan.parameters.at(static_cast<std::size_t>(found - plan.scenario.parameters.begin()));
}

/// Index of a module among experts_modules.
int index_of(const Plan& plan, int module) {
  const std::vector<int> modules = experts_modules(plan.scenario.model);
  const auto found = std::find(modules.begin(), modules.end(), module);
  HPSIM_CHECK(found != modules.end(), "module {} has no experts", module);
  return static_cast<int>(found - modules.begin());
}

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

std::int64_t routed_to(const RoutedCounts& counts, const Interval& experts) {
  std::int64_t sum = 0;
  for (std::int64_t expert = experts.begin; expert < experts.end; ++expert)
    sum += counts.at(static_cast<std::size_t>(expert));
  return sum;
}

/// Routed positions of every rank: all hold equally many.
std::int64_t num_routed(const Plan& plan, int module) {
  const Coordinate first(static_cast<std::size_t>(plan.mesh().num_dims()), 0);
  return num_routed_rows(plan, module, first) * spec_of(plan, module).top_k;
}

/// Positions that ranks send and get under balanced routing. Ranks that differ along other dims
/// than those that cut experts do the same.
class BalancedRows {
 public:
  BalancedRows(const Plan& plan, int module)
      : mesh_(plan.mesh()), exchange_dims_(hpsim::exchange_dims(plan, module)) {
    for (const int dim : cutting_order(weight_of(plan, module).unsharded, 0))
      cut_dims_ = union_of(cut_dims_, {dim});
    Coordinate coordinate(static_cast<std::size_t>(mesh_.num_dims()), 0);
    do {
      held_.push_back(experts_at(plan, module, coordinate));
    } while (advance(mesh_, cut_dims_, coordinate));
    for (std::int64_t member = 0; member < mesh_.size(exchange_dims_); ++member) {
      routed_.push_back(
          balanced_counts(num_routed(plan, module), spec_of(plan, module).num_experts, member));
    }
  }

  [[nodiscard]] const MeshDims& cut_dims() const { return cut_dims_; }
  [[nodiscard]] std::int64_t sent(const Coordinate& coordinate) const {
    std::int64_t sum = 0;
    for (const Coordinate& member : group_coordinates(mesh_, exchange_dims_, coordinate))
      sum += routed_to(routed_by(coordinate), held_at(member));
    return sum;
  }
  [[nodiscard]] std::int64_t received(const Coordinate& coordinate) const {
    std::int64_t sum = 0;
    for (const Coordinate& member : group_coordinates(mesh_, exchange_dims_, coordinate))
      sum += routed_to(routed_by(member), held_at(coordinate));
    return sum;
  }

 private:
  [[nodiscard]] const Interval& held_at(const Coordinate& coordinate) const {
    return held_.at(static_cast<std::size_t>(mesh_.index_along(cut_dims_, coordinate)));
  }
  [[nodiscard]] const RoutedCounts& routed_by(const Coordinate& coordinate) const {
    return routed_.at(static_cast<std::size_t>(mesh_.index_along(exchange_dims_, coordinate)));
  }

  const Mesh& mesh_;
  MeshDims exchange_dims_;
  MeshDims cut_dims_;
  std::vector<Interval> held_;        ///< per part of the experts
  std::vector<RoutedCounts> routed_;  ///< per member of an exchange group
};

}  // namespace

std::int64_t pass_of(const Scenario& scenario, const Step& step) {
  return step.step * scenario.training.micro_batches + step.micro_batch;
}

RoutedCounts balanced_counts(std::int64_t routed, std::int64_t num_experts, std::int64_t member) {
  RoutedCounts counts(static_cast<std::size_t>(num_experts), routed / num_experts);
  const std::int64_t rest = routed % num_experts;
  for (std::int64_t i = 0; i < rest; ++i)
    ++counts[static_cast<std::size_t>((member * rest + i) % num_experts)];
  return counts;
}

MeshDims exchange_dims(const Plan& plan, int module) {
  const std::vector<Placement>& input =
      plan.modules.at(static_cast<std::size_t>(module)).layout.inputs.at(0);
  MeshDims dims;
  for (const int dim : cutting_order(weight_of(plan, module).unsharded, 0)) {
    if (plan.mesh().size(dim) > 1 && cuts(input.at(static_cast<std::size_t>(dim)), kSampleDim))
      dims = union_of(dims, {dim});
  }
  return dims;
}

Interval experts_at(const Plan& plan, int module, const Coordinate& coordinate) {
  const Box whole = held_shard(plan.mesh(), weight_of(plan, module), coordinate).whole;
  return {whole.offset.at(0), whole.offset.at(0) + whole.shape.at(0)};
}

std::vector<Interval> reached_experts(const Plan& plan, int module, const Coordinate& coordinate) {
  std::vector<Interval> reached;
  for (const Coordinate& member :
       group_coordinates(plan.mesh(), exchange_dims(plan, module), coordinate)) {
    reached.push_back(experts_at(plan, module, member));
  }
  return reached;
}

std::int64_t TokenCounts::num_sent() const {
  return sum_of(sent);
}

std::int64_t TokenCounts::num_received() const {
  return sum_of(received);
}

TokenCounts token_counts(const Plan& plan, int module, std::int64_t pass,
                         const Coordinate& coordinate, const Routing& routing) {
  const int index = index_of(plan, module);
  const Interval own = experts_at(plan, module, coordinate);
  const RoutedCounts routed = routing(coordinate, pass, index);
  TokenCounts counts;
  for (const Coordinate& member :
       group_coordinates(plan.mesh(), exchange_dims(plan, module), coordinate)) {
    counts.sent.push_back(routed_to(routed, experts_at(plan, module, member)));
    counts.received.push_back(routed_to(routing(member, pass, index), own));
  }
  return counts;
}

std::int64_t num_routed_rows(const Plan& plan, int module, const Coordinate& coordinate) {
  const ModulePlan& planned = plan.modules.at(static_cast<std::size_t>(module));
  const ActivationPart part = activation_part(plan.scenario, planned.layout.inputs.at(0),
                                              spec_of(plan, module).in_features, coordinate);
  return num_rows(plan.scenario, part);
}

Routing balanced_routing(const Plan& plan) {
  struct Balanced {
    MeshDims dims;
    std::vector<RoutedCounts> counts;  ///< per member of an exchange group
  };
  std::vector<Balanced> modules;
  for (const int module : experts_modules(plan.scenario.model)) {
    Balanced& balanced = modules.emplace_back();
    balanced.dims = exchange_dims(plan, module);
    for (std::int64_t member = 0; member < plan.mesh().size(balanced.dims); ++member) {
      balanced.counts.push_back(
          balanced_counts(num_routed(plan, module), spec_of(plan, module).num_experts, member));
    }
  }
  return [&plan, modules = std::move(modules)](const Coordinate& coordinate, std::int64_t /*pass*/,
                                               int index) {
    const Balanced& balanced = modules.at(static_cast<std::size_t>(index));
    return balanced.counts.at(
        static_cast<std::size_t>(plan.mesh().index_along(balanced.dims, coordinate)));
  };
}

std::optional<CollectiveSpec> token_collective(const Plan& plan, int module, StepKind kind) {
  const MeshDims dims = exchange_dims(plan, module);
  if (dims.empty()) return std::nullopt;
  const Mesh& mesh = plan.mesh();
  CollectiveSpec spec{.op = CollectiveOp::AllToAll, .dims = dims, .group_size = mesh.size(dims)};
  if (kind == StepKind::Route) {
    const Coordinate first(static_cast<std::size_t>(mesh.num_dims()), 0);
    const std::int64_t held = experts_at(plan, module, first).length();
    spec.dtype = DType::Int64;
    spec.elems_in = spec.elems_out = held * spec.group_size;
    return spec;
  }
  // Outputs of experts, and gradients of them, are of the module's dtype, as its inputs are.
  const int output = plan.modules.at(static_cast<std::size_t>(module)).output;
  spec.dtype = plan.values.at(static_cast<std::size_t>(output)).dtype;
  spec.is_routed = true;
  const BalancedRows rows(plan, module);
  const std::int64_t features = spec_of(plan, module).in_features;
  const auto tabulated = [&](bool is_in) {
    const bool sends = is_in == (kind == StepKind::Dispatch);
    return PerCoordinate::tabulate(mesh, rows.cut_dims(), [&](const Coordinate& coordinate) {
      return features * (sends ? rows.sent(coordinate) : rows.received(coordinate));
    });
  };
  spec.elems_in = tabulated(true);
  spec.elems_out = tabulated(false);
  return spec;
}

RoutedElems routed_elems(const Plan& plan, const Step& step, const Coordinate& coordinate,
                         const Routing& routing) {
  HPSIM_CHECK(step.kind == StepKind::Dispatch || step.kind == StepKind::Combine,
              "{} moves no positions", name_of(step.kind));
  const TokenCounts counts =
      token_counts(plan, step.module, pass_of(plan.scenario, step), coordinate, routing);
  const std::int64_t features = spec_of(plan, step.module).in_features;
  const std::int64_t sent = counts.num_sent() * features;
  const std::int64_t received = counts.num_received() * features;
  if (step.kind == StepKind::Dispatch) return {sent, received};
  return {received, sent};
}

}  // namespace hpsim
