// Collectives of one unit that ranks carry out in the place of another unit's.

#include <algorithm>
#include <map>
#include <utility>

#include "engine/faults/exchange_tools.h"

namespace hpsim {
namespace {

/// What a rank sends when a bucket is gathered, in a copy.
template <class T>
std::vector<T> sent_row(EngineParts<T>& engine, int b) {
  const Plan& plan = engine.plan;
  const Bucket& bucket = plan.bucket(b);
  const Coordinate coordinate = plan.mesh().coordinate_of(engine.rank);
  const int first = bucket.parameters.at(0);
  // Its own unit may be on its way: what a fault does not wait for.
  const T* const row = engine.memory.registered(first)->data -
                       plan.parameter(first).offset_elems.at(plan.mesh(), coordinate);
  std::vector<T> copy(row, row + bucket.row_elems.at(plan.mesh(), coordinate));
  round_to(bucket.dtype, copy.data(), static_cast<std::int64_t>(copy.size()));
  return copy;
}

bool is_same_pass(const Step& a, const Step& b) {
  return a.step == b.step && a.micro_batch == b.micro_batch && a.phase == b.phase;
}

/// Gathers whole buckets, from shards, and waits for it.
bool gathers_from_shards(const Plan& plan, const Step& step) {
  return is_all_gather(step) && !step.is_async &&
         step.collective->elems_in == plan.bucket(step.bucket).row_elems &&
         step.collective->consecutive == 0;
}

/// Per plan step of the first of two gathers, that of the second: they follow each other in a pass,
/// and each is in one pair only.
std::map<std::int64_t, std::int64_t> pairs_of_gathers(const Plan& plan, const FaultSpec& fault) {
  std::map<std::int64_t, std::int64_t> pairs;
  std::int64_t first = -1;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (!gathers_from_shards(plan, step)) continue;
    const bool follows = first >= 0 &&
                         is_same_pass(plan.steps[static_cast<std::size_t>(first)], step) &&
                         plan.steps[static_cast<std::size_t>(first)].bucket != step.bucket &&
                         is_aimed_at(plan, fault, plan.steps[static_cast<std::size_t>(first)]);
    if (follows) pairs.emplace(first, static_cast<std::int64_t>(i));
    first = follows ? -1 : static_cast<std::int64_t>(i);
  }
  return pairs;
}

/// Gathers the second unit of a pair before the first one.
template <class T>
class ReorderedGathers : public AimedFault<T> {
 public:
  ReorderedGathers(const Plan& plan, Rank rank, const FaultSpec& fault)
      : AimedFault<T>(plan, rank, fault), pairs_(pairs_of_gathers(plan, fault)) {}

  std::optional<CollectiveCall> change_call(EngineParts<T>& engine,
                                            const CollectiveCall& call) override {
    const auto pair = pairs_.find(call.plan_step);
    if (pair != pairs_.end()) {
      first_ = call;
      second_step_ = pair->second;
      return second_call(engine, call);
    }
    if (call.plan_step != second_step_) return call;
    std::copy(gathered_.begin(), gathered_.end(), static_cast<T*>(call.output));
    second_step_ = -1;
    return std::nullopt;
  }

  std::optional<CollectiveCall> more(EngineParts<T>& /*engine*/,
                                     std::int64_t /*plan_step*/) override {
    return std::exchange(first_, std::nullopt);
  }

 private:
  CollectiveCall second_call(EngineParts<T>& engine, const CollectiveCall& first) {
    const Step& step = this->step_at(second_step_);
    const Coordinate coordinate = this->plan().mesh().coordinate_of(this->rank());
    sent_ = sent_row(engine, step.bucket);
    CollectiveCall call = first;
    call.plan_step = second_step_;
    call.sent_as = step.collective->dtype;
    call.elems_in = static_cast<std::int64_t>(sent_.size());
    call.elems_out = step.collective->elems_out.at(this->plan().mesh(), coordinate);
    gathered_.resize(static_cast<std::size_t>(call.elems_out));
    call.input = sent_.data();
    call.output = gathered_.data();
    return call;
  }

  std::map<std::int64_t, std::int64_t> pairs_;
  std::optional<CollectiveCall> first_;  ///< that is yet to come
  std::int64_t second_step_ = -1;        ///< that was gathered too early
  std::vector<T> sent_;
  std::vector<T> gathered_;
};

bool has_pair_of_gathers(const Plan& plan, const FaultSpec& fault) {
  return !pairs_of_gathers(plan, fault).empty();
}

/// Whether a rank can take one bucket for the other: rows of one size, of one group and dtype.
bool are_alike(const Bucket& a, const Bucket& b) {
  return a.row_elems == b.row_elems && a.sharded_group == b.sharded_group && a.dtype == b.dtype &&
         a.reduce_dtype == b.reduce_dtype;
}

/// Per plan step, that of another unit which is carried out instead; both are of one kind.
using OtherSteps = std::map<std::int64_t, std::int64_t>;

/// Of gathers: those of the next bucket that is alike, in the same pass where it is gathered there.
OtherSteps gathers_of_others(const Plan& plan, const FaultSpec& fault) {
  OtherSteps others;
  const auto is_gather = [&](const Step& step) {
    return is_all_gather(step) && step.collective->consecutive == 0 &&
           step.collective->elems_in == plan.bucket(step.bucket).row_elems;
  };
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (!is_gather(step) || !is_aimed_at(plan, fault, step)) continue;
    for (std::size_t j = 0; j < plan.steps.size(); ++j) {
      const Step& other = plan.steps[j];
      if (is_gather(other) && other.bucket != step.bucket && is_same_pass(step, other) &&
          are_alike(plan.bucket(step.bucket), plan.bucket(other.bucket))) {
        others.emplace(static_cast<std::int64_t>(i), static_cast<std::int64_t>(j));
        break;
      }
    }
  }
  return others;
}

/// Gathers the shards of another unit, and takes them for the unit's.
template <class T>
class OtherUnitGathered : public AimedFault<T> {
 public:
  OtherUnitGathered(const Plan& plan, Rank rank, const FaultSpec& fault)
      : AimedFault<T>(plan, rank, fault), others_(gathers_of_others(plan, fault)) {}

  std::optional<CollectiveCall> change_call(EngineParts<T>& engine,
                                            const CollectiveCall& call) override {
    const auto other = others_.find(call.plan_step);
    if (other == others_.end()) return call;
    std::vector<T>& sent = sent_[this->step_at(call.plan_step).bucket];
    sent = sent_row(engine, this->step_at(other->second).bucket);
    CollectiveCall changed = call;
    changed.plan_step = other->second;
    changed.input = sent.data();
    return changed;
  }

 private:
  OtherSteps others_;
  std::map<int, std::vector<T>> sent_;  ///< by bucket: until its gather is done
};

/// The first collective of a row's gradients.
bool begins_reduction(const Plan& plan, const Step& step) {
  if (is_reduce_scatter(step)) return true;
  return is_all_reduce(step) && plan.bucket(step.bucket).scatter_dims.empty();
}

/// Of reductions: the last one before it in the same pass whose row is alike.
OtherSteps reductions_of_others(const Plan& plan, const FaultSpec& fault) {
  OtherSteps others;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (!begins_reduction(plan, step) || !is_aimed_at(plan, fault, step)) continue;
    for (std::size_t j = i; j-- > 0;) {
      const Step& other = plan.steps[j];
      if (other.kind == step.kind && begins_reduction(plan, other) && other.bucket != step.bucket &&
          is_same_pass(step, other) && other.collective == step.collective &&
          are_alike(plan.bucket(step.bucket), plan.bucket(other.bucket))) {
        others.emplace(static_cast<std::int64_t>(i), static_cast<std::int64_t>(j));
        break;
      }
    }
  }
  return others;
}

/// Reduces the gradients of the unit before once more, and takes them for the unit's.
template <class T>
class OtherUnitReduced : public AimedFault<T> {
 public:
  OtherUnitReduced(const Plan& plan, Rank rank, const FaultSpec& fault)
      : AimedFault<T>(plan, rank, fault), others_(reductions_of_others(plan, fault)) {}

  std::optional<CollectiveCall> change_call(EngineParts<T>& /*engine*/,
                                            const CollectiveCall& call) override {
    const Step& step = this->step_at(call.plan_step);
    if (!begins_reduction(this->plan(), step)) return call;
    const auto* const input = static_cast<const T*>(call.input);
    sent_[call.plan_step].assign(input, input + call.elems_in);
    const auto other = others_.find(call.plan_step);
    if (other == others_.end()) return call;
    const std::vector<T>& sent = sent_.at(other->second);
    CollectiveCall changed = call;
    changed.plan_step = other->second;
    changed.input = sent.data();
    if (call.op == CollectiveOp::AllReduce) {
      std::copy(sent.begin(), sent.end(), static_cast<T*>(call.output));
      changed.input = call.input;
    }
    return changed;
  }

  void after(EngineParts<T>& /*engine*/, std::int64_t plan_step) override {
    if (this->step_at(plan_step).kind == StepKind::Optimizer) sent_.clear();
  }

 private:
  OtherSteps others_;
  std::map<std::int64_t, std::vector<T>> sent_;  ///< gradients as they were, by plan step
};

template <OtherSteps (*others_of)(const Plan&, const FaultSpec&)>
bool has_other_steps(const Plan& plan, const FaultSpec& fault) {
  return !others_of(plan, fault).empty();
}

}  // namespace

std::vector<EngineFaultKind> exchanges_of_other_units() {
  return {
      engine_fault<ReorderedGathers>("reorder_collectives", has_pair_of_gathers),
      engine_fault<OtherUnitGathered>("wrong_unit_gathered", has_other_steps<gathers_of_others>),
      engine_fault<OtherUnitReduced>("wrong_unit_reduced", has_other_steps<reductions_of_others>),
  };
}

}  // namespace hpsim
