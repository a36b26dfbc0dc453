// Faults of the padding behind shards, in rows that are sent.

#include <algorithm>
#include <limits>
#include <map>

#include "engine/faults/fault_tools.h"
#include "engine/whole_parameters.h"
#include "plan/rank_layout.h"
#include "scenario/gradients.h"

namespace hpsim {
namespace {

bool sends_gradients(const Step& step) {
  return step.kind == StepKind::ReduceScatter || step.kind == StepKind::AllReduce ||
         step.kind == StepKind::ScaleGradient;
}

/// Elements of padding behind shard number `index` in its slot, at `coordinate`.
std::int64_t padding_at(const Plan& plan, int p, const Coordinate& coordinate, std::int64_t index) {
  const PlannedParameter& parameter = plan.parameter(p);
  const Box whole = held_shard(plan.mesh(), parameter, coordinate).whole;
  return parameter.padded_elems.at(plan.mesh(), coordinate) -
         shard_elems(parameter.cut, whole.shape, index);
}

/// The shards whose rows of the gradients of a bucket a step sends first: all, or its own.
Interval sent_shards(const Plan& plan, const Step& step, const Coordinate& coordinate) {
  const Bucket& bucket = plan.bucket(step.bucket);
  if (step.kind == StepKind::ReduceScatter) return {0, bucket.sharded_group.size};
  if (!bucket.scatter_dims.empty()) return {0, 0};  // what was reduced has no such padding
  const std::int64_t own = plan.mesh().index_along(bucket.sharded_group.dims, coordinate);
  return {own, own + 1};
}

/// Padding of gradients is sent as it was allocated.
template <class T>
class GradientPaddingNotZeroed : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;
  static bool has_place(const Plan& plan, const FaultSpec& fault) {
    return any_plan_step(plan, fault, [&](const Step& step) {
      return sends_gradients(step) && any_rank(plan, fault, [&](const Coordinate& coordinate) {
               return sends_padding(plan, step, coordinate);
             });
    });
  }

  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    if (!sends_gradients(step) || !this->is_aimed_at_bucket(step)) return;
    engine.memory.seal(step.bucket);
    const GradientRow& row = this->plan().gradient_row(step.row);
    const std::span<T> all = engine.memory.contents(step.bucket).gradients;
    const Interval shards = sent_shards(this->plan(), step, this->coordinate());
    for (std::int64_t index = shards.begin; index < shards.end && !all.empty(); ++index) {
      for (std::size_t i = 0; i < row.parameters.size(); ++i) {
        const int p = row.parameters[i];
        const std::int64_t elems = padding_at(this->plan(), p, this->coordinate(), index);
        const std::int64_t end = index * this->at(row.row_elems) + this->at(row.offsets[i]) +
                                 this->at(this->plan().parameter(p).padded_elems);
        std::fill_n(all.data() + end - elems, elems, std::numeric_limits<T>::quiet_NaN());
      }
    }
  }

 private:
  static bool sends_padding(const Plan& plan, const Step& step, const Coordinate& coordinate) {
    const Interval shards = sent_shards(plan, step, coordinate);
    for (const int p : plan.gradient_row(step.row).parameters) {
      for (std::int64_t index = shards.begin; index < shards.end; ++index) {
        if (padding_at(plan, p, coordinate, index) > 0) return true;
      }
    }
    return false;
  }
};

/// The shards of a bucket end to end, without the padding between them, at the place of its row.
template <class T>
std::vector<T> packed(const Plan& plan, const Bucket& bucket, const Coordinate& coordinate,
                      const T* row) {
  std::vector<T> packed(static_cast<std::size_t>(bucket.row_elems.at(plan.mesh(), coordinate)));
  T* next = packed.data();
  for (const int p : bucket.parameters) {
    const std::int64_t offset = plan.parameter(p).offset_elems.at(plan.mesh(), coordinate);
    next = std::copy_n(row + offset, held_elems(plan, p, coordinate), next);
  }
  return packed;
}

/// The row of a bucket as it is made, padding zero.
std::vector<double> initial_row(const Plan& plan, const Bucket& bucket,
                                const Coordinate& coordinate) {
  std::vector<double> row(static_cast<std::size_t>(bucket.row_elems.at(plan.mesh(), coordinate)));
  for (const int p : bucket.parameters) {
    const PlannedParameter& parameter = plan.parameter(p);
    double* next = row.data() + parameter.offset_elems.at(plan.mesh(), coordinate);
    for (const Box& box : held_shard(plan.mesh(), parameter, coordinate).boxes) {
      each_run(parameter.shape, box, [&](std::int64_t first, std::int64_t count) {
        fill_parameter(plan, p, first, count, next);
        next += count;
      });
    }
  }
  return row;
}

/// A rank packs the shards that it sends by their true sizes: one begins where the padding of the
/// one before it should be.
template <class T>
class PaddingExposed : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;
  static bool has_place(const Plan& plan, const FaultSpec& fault) {
    return any_plan_step(plan, fault, [&](const Step& step) {
      if (step.kind != StepKind::Unshard || plan.bucket(step.bucket).sharded_group.size == 1)
        return false;
      return any_rank(plan, fault, [&](const Coordinate& coordinate) {
        return writes_into_padding(plan, plan.bucket(step.bucket), coordinate);
      });
    });
  }

  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    if (step.kind != StepKind::Unshard || !this->is_aimed_at_bucket(step)) return;
    const Bucket& bucket = this->plan().bucket(step.bucket);
    if (bucket.sharded_group.size == 1) return;
    const std::span<T> row = engine.memory.contents(step.bucket).storage;
    kept_[step.bucket] = {row.begin(), row.end()};
    const std::vector<T> wrong = packed(this->plan(), bucket, this->coordinate(), row.data());
    std::copy(wrong.begin(), wrong.end(), row.begin());
  }

  void after(EngineParts<T>& engine, std::int64_t plan_step) override {
    const Step& step = this->step_at(plan_step);
    const bool ends =
        step.kind == StepKind::WaitUnshard || (step.kind == StepKind::Unshard && !step.is_async);
    const auto kept = ends ? kept_.find(step.bucket) : kept_.end();
    if (kept == kept_.end()) return;
    std::copy(kept->second.begin(), kept->second.end(),
              engine.memory.contents(step.bucket).storage.begin());
    kept_.erase(kept);
  }

 private:
  static bool writes_into_padding(const Plan& plan, const Bucket& bucket,
                                  const Coordinate& coordinate) {
    const std::vector<double> row = initial_row(plan, bucket, coordinate);
    const std::vector<double> wrong = packed(plan, bucket, coordinate, row.data());
    for (const int p : bucket.parameters) {
      const PlannedParameter& parameter = plan.parameter(p);
      const std::int64_t begin = parameter.offset_elems.at(plan.mesh(), coordinate);
      const std::int64_t end = begin + parameter.padded_elems.at(plan.mesh(), coordinate);
      for (std::int64_t i = begin + held_elems(plan, p, coordinate); i < end; ++i) {
        if (wrong[static_cast<std::size_t>(i)] != 0) return true;
      }
    }
    return false;
  }

  std::map<int, std::vector<T>> kept_;  ///< rows as they are, by bucket
};

/// The optimizer is given padded slots for parameters.
template <class T>
class PaddingRegistered : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;
  static bool has_place(const Plan& plan, const FaultSpec& fault) {
    return any_parameter(plan, fault, [&](int p) {
      return any_rank(plan, fault, [&](const Coordinate& coordinate) {
        return !exposed_boxes(plan, p, coordinate).empty();
      });
    });
  }

  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    if (plan_step > 0) return;
    for (const int p : this->parameters()) {
      const std::vector<Box> boxes = exposed_boxes(this->plan(), p, this->coordinate());
      if (boxes.empty()) continue;
      engine.memory.registered(p)->elems = engine.memory.slot(p).length();
      engine.result.record_held(this->rank(), p, boxes);
    }
  }

 private:
  /// The slot as a box of the global tensor; none where it is not larger than the shard, or no box.
  static std::vector<Box> exposed_boxes(const Plan& plan, int p, const Coordinate& coordinate) {
    const PlannedParameter& parameter = plan.parameter(p);
    HeldShard held = held_shard(plan.mesh(), parameter, coordinate);
    const Shape slot = padded_shape_at(plan.mesh(), parameter, coordinate);
    const bool is_box = held.boxes.size() == 1 && slot.size() == parameter.shape.size();
    if (!is_box || num_elems(slot) == held.elems) return {};
    held.boxes[0].shape = slot;
    return held.boxes;
  }
};

}  // namespace

std::vector<EngineFaultKind> padding_fault_kinds() {
  return {
      engine_fault<GradientPaddingNotZeroed>("gradient_padding_not_zeroed"),
      engine_fault<PaddingExposed>("padding_exposed"),
      engine_fault<PaddingRegistered>("padding_registered"),
  };
}

}  // namespace hpsim
