// Faults of the values with which training begins.

#include <algorithm>
#include <optional>

#include "engine/faults/fault_tools.h"
#include "engine/whole_parameters.h"
#include "plan/rank_layout.h"

namespace hpsim {
namespace {

/// The values of these boxes as the parameter of that name and seed is drawn.
template <class T>
void draw_boxes(const Plan& plan, int p, const std::vector<Box>& boxes, std::uint64_t seed,
                T* out) {
  Plan other;
  other.scenario.data = plan.scenario.data;
  other.scenario.data.seed = seed;
  other.scenario.parameters = plan.scenario.parameters;
  other.scenario.numerics = plan.scenario.numerics;
  other.parameters = plan.parameters;
  for (const Box& box : boxes) {
    each_run(plan.parameter(p).shape, box, [&](std::int64_t first, std::int64_t count) {
      fill_parameter(other, p, first, count, out);
      out += count;
    });
  }
}

/// Draws shards otherwise before the first step.
template <class T>
class OtherInit : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (plan_step != 0) return;
    for (const int p : this->parameters()) {
      if (engine.memory.shard_elems(p) == 0) continue;
      draw(engine, p);
      record_parameter(engine, 0, p);
    }
  }

 protected:
  virtual void draw(EngineParts<T>& engine, int p) = 0;
};

/// Position of a rank among those that hold the same shard of a parameter.
std::int64_t copy_index(const Plan& plan, int p, Rank rank) {
  const MeshDims cut = plan.parameter(p).cut_dims();
  MeshDims others;
  for (int dim = 0; dim < plan.mesh().num_dims(); ++dim) {
    if (!contains(cut, dim)) others.push_back(dim);
  }
  return plan.mesh().index_along(others, plan.mesh().coordinate_of(rank));
}

bool has_other_copy(const Plan& plan, const FaultSpec& fault, int p) {
  for (std::int64_t rank = 0; rank < plan.mesh().num_ranks(); ++rank) {
    if (fault.is_of(Rank{rank}) && copy_index(plan, p, Rank{rank}) > 0 &&
        held_elems(plan, p, Rank{rank}) > 0)
      return true;
  }
  return false;
}

/// Copies are drawn with a seed of their own.
template <class T>
class RankDependentInit : public OtherInit<T> {
 public:
  using OtherInit<T>::OtherInit;

 protected:
  void draw(EngineParts<T>& engine, int p) override {
    const std::int64_t copy = copy_index(this->plan(), p, this->rank());
    if (copy == 0) return;
    const HeldShard held = held_shard(this->plan().mesh(), this->plan().parameter(p),
                                      this->plan().mesh().coordinate_of(this->rank()));
    draw_boxes(this->plan(), p, held.boxes,
               this->plan().scenario.data.seed + static_cast<std::uint64_t>(copy) * 1000003,
               engine.memory.shard(p));
  }
};

/// The neighbour with which a rank exchanges its shard: the next one along the first dim of the
/// sharded group, or the one before; none where shards differ in size.
std::optional<Coordinate> partner_of(const Plan& plan, int p, Rank rank) {
  const PlannedParameter& parameter = plan.parameter(p);
  if (parameter.shard_size() < 2) return std::nullopt;
  const Coordinate own = plan.mesh().coordinate_of(rank);
  Coordinate other = own;
  const auto dim = static_cast<std::size_t>(parameter.sharded_group.dims.back());
  other[dim] ^= 1;
  if (other[dim] >= plan.mesh().size(static_cast<int>(dim))) return std::nullopt;
  const std::int64_t elems = held_shard(plan.mesh(), parameter, own).elems;
  if (elems == 0 || held_shard(plan.mesh(), parameter, other).elems != elems) return std::nullopt;
  return other;
}

bool has_partner(const Plan& plan, const FaultSpec& fault, int p) {
  for (std::int64_t rank = 0; rank < plan.mesh().num_ranks(); ++rank) {
    if (fault.is_of(Rank{rank}) && partner_of(plan, p, Rank{rank})) return true;
  }
  return false;
}

template <class T>
class RowsExchanged : public OtherInit<T> {
 public:
  using OtherInit<T>::OtherInit;

 protected:
  void draw(EngineParts<T>& engine, int p) override {
    const auto partner = partner_of(this->plan(), p, this->rank());
    if (!partner) return;
    const HeldShard other = held_shard(this->plan().mesh(), this->plan().parameter(p), *partner);
    draw_boxes(this->plan(), p, other.boxes, this->plan().scenario.data.seed,
               engine.memory.shard(p));
  }
};

/// The shard begins one element too late, and ends with one of the next.
template <class T>
class OffsetShifted : public OtherInit<T> {
 public:
  using OtherInit<T>::OtherInit;

 protected:
  void draw(EngineParts<T>& engine, int p) override {
    T* const shard = engine.memory.shard(p);
    std::rotate(shard, shard + 1, shard + engine.memory.shard_elems(p));
  }
};

bool rank_dependent_init_has_place(const Plan& plan, const FaultSpec& fault) {
  return any_parameter(plan, fault, [&](int p) { return has_other_copy(plan, fault, p); });
}

bool rows_exchanged_has_place(const Plan& plan, const FaultSpec& fault) {
  return any_parameter(plan, fault, [&](int p) { return has_partner(plan, fault, p); });
}

bool offset_shifted_has_place(const Plan& plan, const FaultSpec& fault) {
  return any_parameter(plan, fault, [&](int p) {
    for (std::int64_t rank = 0; rank < plan.mesh().num_ranks(); ++rank) {
      if (fault.is_of(Rank{rank}) && held_elems(plan, p, Rank{rank}) > 4) return true;
    }
    return false;
  });
}

}  // namespace

std::vector<EngineFaultKind> parameter_fault_kinds() {
  return {engine_fault<RankDependentInit>("rank_dependent_init", rank_dependent_init_has_place),
          engine_fault<RowsExchanged>("rows_exchanged", rows_exchanged_has_place),
          engine_fault<OffsetShifted>("shard_offset_shifted", offset_shifted_has_place)};
}

}  // namespace hpsim
