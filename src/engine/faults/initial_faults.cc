// Faults of what a rank takes for its shard at the start: which rows, and which values.

#include <algorithm>
#include <optional>

#include "engine/faults/fault_tools.h"
#include "plan/rank_layout.h"
#include "tensor/fill.h"

namespace hpsim {
namespace {

/// How a rank makes its shard of a parameter.
struct Draw {
  std::uint64_t key = 0;       ///< fill_key
  std::vector<Interval> runs;  ///< of elements of the global tensor, in storage order
  std::vector<Box> held;       ///< that it takes for its own
};

std::vector<Interval> runs_of(const Shape& shape, const std::vector<Box>& boxes) {
  std::vector<Interval> runs;
  for (const Box& box : boxes) {
    each_run(shape, box, [&](std::int64_t first, std::int64_t count) {
      runs.push_back({first, first + count});
    });
  }
  return runs;
}

Draw right_draw(const Plan& plan, int p, const Coordinate& coordinate) {
  const PlannedParameter& parameter = plan.parameter(p);
  const std::vector<Box> boxes = held_shard(plan.mesh(), parameter, coordinate).boxes;
  return {.key = fill_key(parameter.name, plan.scenario.data.seed),
          .runs = runs_of(parameter.shape, boxes),
          .held = boxes};
}

template <class T>
std::vector<T> values_of(const Plan& plan, int p, const Draw& draw) {
  const auto at = static_cast<std::size_t>(p);
  const FillSpec fill_spec = parameter_fill(plan.scenario.data, plan.scenario.parameters[at]);
  std::vector<T> values;
  for (const Interval& run : draw.runs) {
    values.resize(values.size() + static_cast<std::size_t>(run.length()));
    fill(values.data() + values.size() - run.length(), run.length(), draw.key, run.begin, fill_spec,
         plan.parameter(p).dtype);
  }
  return values;
}

/// How a rank makes a shard wrongly; nothing: it makes it rightly.
using WrongDraw = std::optional<Draw> (*)(const Plan& plan, int p, Rank rank);

/// The boxes of another shard, or shifted ones, drawn and held in place of its own.
std::optional<Draw> draw_of(const Plan& plan, int p, std::vector<Box> boxes) {
  const PlannedParameter& parameter = plan.parameter(p);
  return Draw{.key = fill_key(parameter.name, plan.scenario.data.seed),
              .runs = runs_of(parameter.shape, boxes),
              .held = std::move(boxes)};
}

/// Whether rows of a parameter are for experts, so that two equal ones leave it open which of them
/// a position goes to.
bool is_of_router(const Plan& plan, int p) {
  const ModelSpec& model = plan.scenario.model;
  for (const int module : experts_modules(model)) {
    const int router = inputs_of(model, module).at(1) - 1;
    if (router >= 0 && plan.scenario.parameters[static_cast<std::size_t>(p)].module == router)
      return true;
  }
  return false;
}

/// One further along the dim that fully_shard cuts; the last ones one less far.
std::optional<Draw> shifted(const Plan& plan, int p, Rank rank) {
  if (is_of_router(plan, p)) return std::nullopt;
  const PlannedParameter& parameter = plan.parameter(p);
  HeldShard held = held_shard(plan.mesh(), parameter, plan.mesh().coordinate_of(rank));
  if (held.elems == 0 || held.boxes.size() != 1) return std::nullopt;
  const auto dim = static_cast<std::size_t>(parameter.cut.dims.at(0));
  Box& box = held.boxes[0];
  if (box.offset[dim] + box.shape[dim] < parameter.shape[dim]) {
    ++box.offset[dim];
  } else if (box.offset[dim] > 0) {
    --box.offset[dim];
  } else {
    return std::nullopt;
  }
  return draw_of(plan, p, held.boxes);
}

/// Where TP and fully_shard both cut tensor dim 0: as if fully_shard had cut first.
std::optional<Draw> left_to_right(const Plan& plan, int p, Rank rank) {
  const PlannedParameter& parameter = plan.parameter(p);
  MeshDims tp;
  for (int dim = 0; dim < plan.mesh().num_dims(); ++dim) {
    const auto* const shard =
        std::get_if<Shard>(&parameter.unsharded.at(static_cast<std::size_t>(dim)));
    if (shard != nullptr && shard->dim == 0 && plan.mesh().size(dim) > 1) tp.push_back(dim);
  }
  if (tp.size() != 1 || !parameter.cut.is_by_rows() || parameter.shard_size() == 1)
    return std::nullopt;
  const MeshDims& dims = parameter.sharded_group.dims;
  Coordinate coordinate = plan.mesh().coordinate_of(rank);
  const std::int64_t elems = held_elems(plan, p, coordinate);
  // Part i of all is that of TP rank i / shards, of its shard i % shards.
  const std::int64_t part = plan.mesh().index_along(dims, coordinate) * plan.mesh().size(tp) +
                            plan.mesh().index_along(tp, coordinate);
  const Coordinate shard = plan.mesh().coordinate_along(dims, part % parameter.shard_size());
  for (const int dim : dims)
    coordinate[static_cast<std::size_t>(dim)] = shard[static_cast<std::size_t>(dim)];
  coordinate[static_cast<std::size_t>(tp[0])] = part / parameter.shard_size();
  if (held_elems(plan, p, coordinate) != elems || elems == 0) return std::nullopt;
  return draw_of(plan, p, held_shard(plan.mesh(), parameter, coordinate).boxes);
}

/// The first elements, as if the shard were the whole tensor.
std::optional<Draw> by_local_index(const Plan& plan, int p, Rank rank) {
  Draw draw = right_draw(plan, p, plan.mesh().coordinate_of(rank));
  std::int64_t first = 0;
  for (Interval& run : draw.runs) {
    run = {first, first + run.length()};
    first = run.end;
  }
  return draw;
}

/// Of all parameters as of the first.
std::optional<Draw> as_the_first(const Plan& plan, int p, Rank rank) {
  Draw draw = right_draw(plan, p, plan.mesh().coordinate_of(rank));
  draw.key = fill_key(plan.parameter(0).name, plan.scenario.data.seed);
  return draw;
}

/// Shards are what `wrong` makes of them from the start.
template <WrongDraw wrong>
struct WrongStart {
  template <class T>
  class Fault : public AimedFault<T> {
   public:
    using AimedFault<T>::AimedFault;

    static bool has_place(const Plan& plan, const FaultSpec& fault) {
      return any_parameter(plan, fault, [&](int p) {
        return any_rank(plan, fault, [&](const Coordinate& coordinate) {
          const auto draw = wrong(plan, p, plan.mesh().rank_at(coordinate));
          if (!draw) return false;
          const Draw right = right_draw(plan, p, coordinate);
          return values_of<double>(plan, p, *draw) != values_of<double>(plan, p, right);
        });
      });
    }

    void before(EngineParts<T>& engine, std::int64_t plan_step) override {
      if (plan_step > 0) return;
      for (const int p : this->parameters()) {
        const auto draw = wrong(this->plan(), p, this->rank());
        if (!draw) continue;
        const std::vector<T> values = values_of<T>(this->plan(), p, *draw);
        std::copy(values.begin(), values.end(), engine.memory.shard(p));
        record_parameter(engine, 0, p);
        engine.result.record_held(this->rank(), p, draw->held);
      }
    }
  };
};

}  // namespace

std::vector<EngineFaultKind> initial_fault_kinds() {
  return {
      engine_fault<WrongStart<shifted>::Fault>("shard_offset_wrong"),
      engine_fault<WrongStart<left_to_right>::Fault>("gather_left_to_right"),
      engine_fault<WrongStart<by_local_index>::Fault>("init_by_local_index"),
      engine_fault<WrongStart<as_the_first>::Fault>("same_seed_for_all_parameters"),
  };
}

}  // namespace hpsim
