#include "plan/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace hpsim {
namespace {

bool reduces(const Step& step) {
  return step.kind == StepKind::ReduceScatter || step.kind == StepKind::AllReduce ||
         step.kind == StepKind::AverageWeights;
}

/// Whether a step of the parameter's bucket is about it, too.
bool concerns(const Plan& plan, const Step& step, int parameter) {
  if (step.row < 0) return true;
  const GradientRow& row = plan.gradient_row(step.row);
  const int position = Plan::position_in(row, parameter);
  if (position < 0 || step.partial < 0) return position >= 0;
  const Interval members = row.partials.at(static_cast<std::size_t>(step.partial)).members;
  return position >= members.begin && position < members.end;
}

/// Of one parameter, from the steps that concern it.
class Facts {
 public:
  Facts(const Plan& plan, int p, std::vector<int> steps, const Coordinate& coordinate)
      : plan_(plan),
        scenario_(plan.scenario),
        p_(p),
        parameter_(plan.parameter(p)),
        bucket_(plan.bucket(parameter_.bucket)),
        steps_(std::move(steps)),
        coordinate_(coordinate) {}

  [[nodiscard]] ParameterFacts all() const {
    ParameterFacts facts;
    facts.parameter = p_;
    facts.dims = dim_facts(plan_, p_);
    if (parameter_.shard_size() == 1 || parameter_.cut.dims.size() == 1) {
      facts.cuts = axis_cuts(plan_.mesh(), parameter_);
    }
    facts.groups = {sharded_group(), unsharded_group(), partial_group()};
    facts.gradient = gradient();
    facts.scale = scale();
    facts.rank = rank();
    facts.life = life(facts.rank);
    return facts;
  }

 private:
  [[nodiscard]] const Step& step(int index) const {
    return plan_.steps[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] std::string names(const MeshDims& dims) const { return plan_.mesh().names(dims); }

  template <class Predicate>
  [[nodiscard]] std::vector<int> steps_where(const Predicate& holds) const {
    std::vector<int> found;
    for (const int index : steps_) {
      if (holds(step(index))) found.push_back(index);
    }
    return found;
  }

  [[nodiscard]] GroupFact sharded_group() const {
    GroupFact fact{GroupKind::Sharded, parameter_.sharded_group, {}, {}};
    fact.steps = steps_where([](const Step& s) {  // a cast alone sends nothing
      return s.collective && (s.kind == StepKind::Unshard || s.kind == StepKind::ReduceScatter);
    });
    if (fact.group.dims.empty()) {
      fact.why = "fully_shard does not cut it: there is nothing to gather or to scatter";
    } else if (fact.group.size == 1) {
      fact.why = "a group of one rank sends nothing";
    } else if (bucket_.scatter_dims.empty()) {
      fact.why = fmt::format(
          "compute needs all shards (multi-dim RFC 2.1.2); the batch is not split over {}, so its "
          "ranks compute one gradient, and each keeps its own part",
          names(fact.group.dims));
    } else {
      fact.why = fmt::format(
          "shard_size {} > 1: compute needs all shards, and gradients are scattered back to them "
          "(multi-dim RFC 2.1.2, 2.2.2)",
          fact.group.size);
    }
    return fact;
  }

  [[nodiscard]] GroupFact unsharded_group() const {
    GroupFact fact{GroupKind::Unsharded, parameter_.unsharded_group, {}, {}};
    fact.steps = steps_where([](const Step& s) {
      const bool is_of_copies = s.kind == StepKind::AllReduce || s.kind == StepKind::AverageWeights;
      return is_of_copies && s.collective && s.partial < 0;
    });
    const bool averages = !bucket_.average_dims.empty();
    const MeshDims& reduced = averages ? bucket_.average_dims : bucket_.all_reduce_dims;
    if (fact.group.size == 1) {
      fact.why = bucket_.is_ignored
                     ? "fully_shard leaves it alone"
                     : "dp_size 1: no copies in the fully_shard domain (multi-dim RFC 2.2.5)";
    } else if (reduced.empty()) {
      fact.why = fmt::format("copies along {} compute one gradient: {}", names(fact.group.dims),
                             why_complete(fact.group.dims.back()));
    } else if (plan_.mesh().size(reduced) < fact.group.size) {
      fact.why = fmt::format(
          "dp_size {} > 1 (multi-dim RFC 2.2.2); over {} only, elsewhere ranks see the same "
          "samples",
          fact.group.size, names(reduced));
    } else {
      fact.why = fmt::format("dp_size {} > 1: copies saw different samples (multi-dim RFC 2.2.2)",
                             fact.group.size);
    }
    if (averages) {
      fact.why +=
          "; sync_object \"weight\": their weights are averaged after the optimizer, instead of "
          "their "
          "gradients (multi-dim RFC 2.2.4)";
    }
    return fact;
  }

  [[nodiscard]] GroupFact partial_group() const {
    GroupFact fact{GroupKind::Partial, parameter_.partial_group, {}, {}};
    fact.steps =
        steps_where([](const Step& s) { return s.kind == StepKind::AllReduce && s.partial >= 0; });
    if (fact.group.size == 1) {
      fact.why = "its gradient is Partial along no other dim";
    } else if (bucket_.is_ignored) {
      fact.why = "fully_shard leaves it alone: the user adds up what the data ranks computed";
    } else {
      fact.why = fmt::format(
          "{}, outside the fully_shard domain: one all_reduce of the unit's reduced row (multi-dim "
          "RFC 2.2.4)",
          split_text(fact.group.dims));
    }
    return fact;
  }

  /// "the batch is split over dp, sequences over tp"; `dims` are some of partial_dims.
  [[nodiscard]] std::string split_text(const MeshDims& dims) const {
    MeshDims of_batch;
    MeshDims of_sequence;
    for (const int dim : dims)
      (splits_sequence(dim) ? of_sequence : of_batch).push_back(dim);
    if (of_sequence.empty()) return fmt::format("the batch is split over {}", names(of_batch));
    if (of_batch.empty()) return fmt::format("sequences are split over {}", names(of_sequence));
    return fmt::format("the batch is split over {}, sequences over {}", names(of_batch),
                       names(of_sequence));
  }
  /// Whether the module takes a part of the sequence along that dim.
  [[nodiscard]] bool splits_sequence(int mesh_dim) const {
    if (plan_.modules.empty() || scenario_.model.positions.empty()) return false;
    const auto module =
        static_cast<std::size_t>(scenario_.parameters[static_cast<std::size_t>(p_)].module);
    const std::vector<Placement>& input = plan_.modules[module].layout.inputs.at(0);
    return cuts(input[static_cast<std::size_t>(mesh_dim)], kSequenceDim);
  }
  [[nodiscard]] bool splits_batch(int mesh_dim) const {
    return contains(scenario_.data.data_dims, mesh_dim);
  }
  [[nodiscard]] std::string_view why_complete(int mesh_dim) const {
    if (splits_batch(mesh_dim)) return "the samples of all ranks there were put together before it";
    return contains(parameter_.sharded_group.dims, mesh_dim)
               ? "ranks there see the same samples; each keeps its own part"
               : "ranks there see the same samples";
  }

  [[nodiscard]] std::vector<GradientFact> gradient() const {
    std::vector<GradientFact> facts;
    const MeshDims placed = cutting_dims(parameter_.unsharded);
    for (int dim = 0; dim < plan_.mesh().num_dims(); ++dim) {
      if (plan_.mesh().size(dim) == 1) continue;
      GradientFact fact;
      fact.mesh_dim = dim;
      fact.steps = steps_where(
          [dim](const Step& s) { return reduces(s) && contains(s.collective->dims, dim); });
      if (contains(placed, dim)) {
        fact.state = GradientState::Cut;
        fact.why = splits_batch(dim) ? "the rank's part of it, from the samples of all ranks there"
                                     : "the rank's part of it";
      } else if (contains(parameter_.partial_dims, dim)) {
        fact.state = GradientState::Partial;
        fact.why =
            splits_sequence(dim) ? "sequences are split over it" : "the batch is split over it";
      } else {
        fact.state = GradientState::Complete;
        fact.why = why_complete(dim);
      }
      facts.push_back(std::move(fact));
    }
    return facts;
  }

  [[nodiscard]] ScaleFact scale() const {
    ScaleFact fact;
    fact.factor = gradient_factor(scenario_, p_);
    fact.divisor = gradient_divisor(scenario_);
    const FullyShardSpec& spec = scenario_.fully_shard;
    const std::int64_t data_ranks = scenario_.num_data_ranks();
    const std::int64_t num_averaged = plan_.mesh().size(bucket_.average_dims);
    if (spec.gradient_divide_factor) {
      fact.why = "gradient_divide_factor";
    } else if (spec.reduce_op == ReduceOp::Sum) {
      fact.why = "reduce_op sum";
    } else if (fact.divisor != static_cast<double>(data_ranks)) {
      fact.why = fmt::format("next power of two of {} data ranks, exact mode", data_ranks);
    } else {
      fact.why = "number of data ranks";
    }
    if (num_averaged > 1 && static_cast<double>(num_averaged) != fact.divisor) {
      fact.why += fmt::format(", of which the mean of the weights divides by {}", num_averaged);
    }
    for (const int index : steps_) {
      const Step& s = step(index);
      const bool is_local = s.kind == StepKind::ScaleGradient;
      if (!is_local && !reduces(s)) continue;
      if (fact.factor != 1 && (is_local || s.collective->prescale != 1)) fact.factor_step = index;
      if (fact.divisor != 1 && (is_local || s.collective->scale != 1)) fact.divisor_step = index;
    }
    return fact;
  }

  [[nodiscard]] RankFact rank() const {
    const Mesh& mesh = plan_.mesh();
    RankFact fact;
    fact.coordinate = coordinate_;
    fact.held = held_shard(mesh, parameter_, coordinate_);
    fact.padding_elems = parameter_.padded_elems.at(mesh, coordinate_) - fact.held.elems;
    fact.offset_elems = parameter_.offset_elems.at(mesh, coordinate_);
    fact.row_elems = bucket_.row_elems.at(mesh, coordinate_);
    const MeshDims cut = parameter_.cut_dims();
    for (int dim = 0; dim < mesh.num_dims(); ++dim) {
      if (!contains(cut, dim) && mesh.size(dim) > 1) fact.same_dims.push_back(dim);
    }
    return fact;
  }

  /// Follows the parameter, and its gradient, through the steps.
  [[nodiscard]] std::vector<LifeStep> life(const RankFact& rank) const {
    const std::int64_t width = size_bytes(parameter_.dtype);
    const std::int64_t compute_width = size_bytes(bucket_.dtype);
    const std::int64_t reduce_width = size_bytes(bucket_.reduce_dtype);
    const std::int64_t slot_elems = rank.held.elems + rank.padding_elems;
    const std::int64_t gathered_elems = slot_elems * parameter_.shard_size();
    const std::int64_t slot = slot_elems * width;
    const std::int64_t gathered = gathered_elems * compute_width;
    const std::int64_t whole = num_elems(rank.held.whole.shape) * compute_width;
    const std::int64_t shard = rank.held.elems * width;
    // Where reshard_after_forward is k, a rank keeps one of k parts until backward.
    const std::int64_t part =
        bucket_.post_forward_size > 0 ? gathered / bucket_.post_forward_size : slot;
    std::int64_t kept = slot;
    std::vector<Placement> gradient;  // none before backward
    std::int64_t gradient_bytes = 0;
    std::vector<LifeStep> life;
    for (const int index : steps_) {
      const Step& s = step(index);
      LifeStep next{.step = index};
      const auto parameter = [&](bool is_whole, bool becomes_whole, std::int64_t before,
                                 std::int64_t after) {
        next.before = is_whole ? parameter_.unsharded : parameter_.sharded;
        next.after = becomes_whole ? parameter_.unsharded : parameter_.sharded;
        next.bytes_before = before;
        next.bytes_after = after;
      };
      const auto becomes = [&](std::vector<Placement> after, std::int64_t bytes) {
        next.is_gradient = true;
        next.before = std::exchange(gradient, std::move(after));
        next.after = gradient;
        next.bytes_before = std::exchange(gradient_bytes, bytes);
        next.bytes_after = bytes;
      };
      switch (s.kind) {
        case StepKind::Unshard:
          parameter(false, !s.is_async, std::exchange(kept, slot), gathered);
          break;
        case StepKind::WaitUnshard:
          parameter(false, true, gathered, gathered);
          break;
        case StepKind::Reshard:
          if (s.phase == Phase::Forward) kept = part;
          parameter(true, false, gathered, kept);
          break;
        case StepKind::Forward:
          parameter(true, true, whole, whole);
          break;
        case StepKind::Backward:
          if (!leaves_gradient(s)) continue;
          becomes(fresh_gradient(), gathered_elems * reduce_width);
          break;
        case StepKind::ReduceScatter:
        case StepKind::AllReduce:
          becomes(reduced(gradient, s.collective->dims), slot_elems * reduce_width);
          break;
        case StepKind::ScaleGradient:
          becomes(reduced(gradient, {}), slot_elems * reduce_width);
          break;
        case StepKind::StoreGradient:
          becomes(reduced(gradient, {}), shard);
          break;
        case StepKind::Optimizer:
          parameter(false, false, shard, shard);
          next.after = updated_weight();
          break;
        case StepKind::AverageWeights:
          parameter(false, false, slot, slot);
          next.before = updated_weight();
          break;
        case StepKind::Redistribute:
        case StepKind::Route:
        case StepKind::Dispatch:
        case StepKind::Combine:
        case StepKind::Loss:
        case StepKind::ClipGradients:
          continue;
      }
      life.push_back(std::move(next));
    }
    return life;
  }

  /// Whether a backward leaves a gradient of it.
  [[nodiscard]] bool leaves_gradient(const Step& backward) const {
    return std::any_of(backward.rows.begin(), backward.rows.end(), [&](int row) {
      return Plan::position_in(plan_.gradient_row(row), p_) >= 0;
    });
  }

  [[nodiscard]] std::vector<Placement> fresh_gradient() const {
    std::vector<Placement> placements = parameter_.unsharded;
    for (const GradientFact& fact : gradient()) {
      if (fact.state != GradientState::Partial) continue;
      placements[static_cast<std::size_t>(fact.mesh_dim)] = Partial{};
    }
    return placements;
  }

  /// The weight between its update and the average of its copies.
  [[nodiscard]] std::vector<Placement> updated_weight() const {
    std::vector<Placement> placements = parameter_.sharded;
    for (const int dim : bucket_.average_dims)
      placements[static_cast<std::size_t>(dim)] = Partial{ReduceOp::Avg};
    return placements;
  }

  /// What a gradient is once it has been added up along `dims`: no longer Partial there, and cut
  /// along the sharded group where it is not Partial.
  [[nodiscard]] std::vector<Placement> reduced(std::vector<Placement> gradient,
                                               const MeshDims& dims) const {
    for (const int dim : dims)
      gradient[static_cast<std::size_t>(dim)] = parameter_.sharded[static_cast<std::size_t>(dim)];
    for (const int dim : parameter_.sharded_group.dims) {
      const auto at = static_cast<std::size_t>(dim);
      if (!std::holds_alternative<Partial>(gradient[at])) gradient[at] = parameter_.sharded[at];
    }
    return gradient;
  }

  const Plan& plan_;
  const Scenario& scenario_;
  int p_;
  const PlannedParameter& parameter_;
  const Bucket& bucket_;
  std::vector<int> steps_;
  Coordinate coordinate_;
};

}  // namespace

std::string_view name_of(GroupKind kind) {
  switch (kind) {
    case GroupKind::Sharded:
      return "sharded";
    case GroupKind::Unsharded:
      return "unsharded";
    case GroupKind::Partial:
      return "partial";
  }
  HPSIM_CHECK(false, "unknown group {}", static_cast<int>(kind));
  return {};
}

std::string_view name_of(GradientState state) {
  switch (state) {
    case GradientState::Partial:
      return "partial";
    case GradientState::Complete:
      return "complete";
    case GradientState::Cut:
      return "cut";
  }
  HPSIM_CHECK(false, "unknown state {}", static_cast<int>(state));
  return {};
}

Explainer::Explainer(const Plan& plan) : plan_(plan), by_bucket_(plan.buckets.size()) {
  by_module_.resize(
      std::max(plan.scenario.model.modules.size(), plan.scenario.model.elementwise.size()));
  for (std::size_t i = 0; i < plan.steps.size() && plan.steps[i].step == 0; ++i) {
    const Step& step = plan.steps[i];
    const int index = static_cast<int>(i);
    if (step.bucket >= 0) {
      by_bucket_[static_cast<std::size_t>(step.bucket)].push_back(index);
    } else if (step.module >= 0) {
      by_module_[static_cast<std::size_t>(step.module)].push_back(index);
    } else {
      of_all_.push_back(index);
    }
  }
}

std::vector<int> Explainer::steps_of(int parameter) const {
  const PlannedParameter& planned = plan_.parameter(parameter);
  const int module = plan_.scenario.parameters[static_cast<std::size_t>(parameter)].module;
  std::vector<int> steps = by_module_[static_cast<std::size_t>(module)];
  for (const int index : by_bucket_[static_cast<std::size_t>(planned.bucket)]) {
    if (concerns(plan_, plan_.steps[static_cast<std::size_t>(index)], parameter))
      steps.push_back(index);
  }
  steps.insert(steps.end(), of_all_.begin(), of_all_.end());
  std::sort(steps.begin(), steps.end());
  return steps;
}

ParameterFacts Explainer::explain(int parameter, const Coordinate& coordinate) const {
  return Facts(plan_, parameter, steps_of(parameter), coordinate).all();
}

}  // namespace hpsim
