#include "engine/faults/fault_tools.h"

#include <algorithm>
#include <cstring>

#include "plan/rank_layout.h"

namespace hpsim {

bool is_aimed_at(const Plan& plan, const FaultSpec& fault, int parameter) {
  return fault.is_about(parameter) &&
         fault.is_in_unit(plan.bucket(plan.parameter(parameter).bucket).unit);
}

template <class T>
std::vector<int> AimedFault<T>::parameters() const {
  std::vector<int> aimed;
  for (int p = 0; p < static_cast<int>(plan_.parameters.size()); ++p) {
    if (is_aimed_at(plan_, fault_, p)) aimed.push_back(p);
  }
  return aimed;
}

bool any_parameter(const Plan& plan, const FaultSpec& fault,
                   const std::function<bool(int)>& is_so) {
  for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
    if (is_aimed_at(plan, fault, p) && is_so(p)) return true;
  }
  return false;
}

bool any_step(const Plan& plan, const FaultSpec& fault, std::int64_t from,
              const std::function<bool(std::int64_t)>& is_so) {
  for (std::int64_t step = from; step < plan.scenario.training.steps; ++step) {
    if (fault.is_in(step) && is_so(step)) return true;
  }
  return false;
}

bool any_rank(const Plan& plan, const FaultSpec& fault,
              const std::function<bool(const Coordinate&)>& is_so) {
  for (std::int64_t rank = 0; rank < plan.mesh().num_ranks(); ++rank) {
    if (fault.is_of(Rank{rank}) && is_so(plan.mesh().coordinate_of(Rank{rank}))) return true;
  }
  return false;
}

bool any_plan_step(const Plan& plan, const FaultSpec& fault,
                   const std::function<bool(const Step&)>& is_so) {
  return std::any_of(plan.steps.begin(), plan.steps.end(), [&](const Step& step) {
    const bool is_aimed = fault.is_in(step.step) &&
                          (step.bucket < 0 || fault.is_in_unit(plan.bucket(step.bucket).unit));
    return is_aimed && is_so(step);
  });
}

std::int64_t held_elems(const Plan& plan, int parameter, Rank rank) {
  return held_elems(plan, parameter, plan.mesh().coordinate_of(rank));
}

std::int64_t held_elems(const Plan& plan, int parameter, const Coordinate& coordinate) {
  return held_shard(plan.mesh(), plan.parameter(parameter), coordinate).elems;
}

std::int64_t num_copies(const Plan& plan, int parameter) {
  return plan.mesh().num_ranks() / plan.mesh().size(plan.parameter(parameter).cut_dims());
}

bool is_held(const Plan& plan, const FaultSpec& fault, int parameter) {
  for (std::int64_t rank = 0; rank < plan.mesh().num_ranks(); ++rank) {
    if (fault.is_of(Rank{rank}) && held_elems(plan, parameter, Rank{rank}) > 0) return true;
  }
  return false;
}

namespace {

template <class T>
void record(EngineParts<T>& engine, std::int64_t offset, const T* data, std::int64_t elems) {
  if (elems > 0)
    std::memcpy(engine.result.bytes(offset), data, static_cast<std::size_t>(elems) * sizeof(T));
}

template <class T>
std::vector<T> copy_of(const T* data, std::int64_t elems) {
  return data == nullptr ? std::vector<T>{} : std::vector<T>(data, data + elems);
}

}  // namespace

template <class T>
void record_parameter(EngineParts<T>& engine, std::int64_t time, int p) {
  const ResultLayout& layout = engine.result.layout();
  if (!layout.records_tensors()) return;
  record(engine, layout.parameter(engine.rank, time, p), engine.memory.shard(p),
         engine.memory.shard_elems(p));
}

template <class T>
void record_state(EngineParts<T>& engine, std::int64_t step, int p) {
  const ResultLayout& layout = engine.result.layout();
  if (!layout.records_tensors()) return;
  for (int s = 0; s < engine.optimizer.num_states(); ++s) {
    const T* const state = engine.optimizer.state(s, p).data();
    if (state == nullptr) continue;
    record(engine, layout.state(engine.rank, step, s, p), state, engine.memory.shard_elems(p));
  }
}

template <class T>
void record_memory(EngineParts<T>& engine, std::int64_t plan_step) {
  if (!engine.result.layout().records_events()) return;
  engine.result.memory_events(engine.rank)[static_cast<std::size_t>(plan_step)] =
      engine.result.rank_record(engine.rank).ledger.event();
}

template <class T>
std::vector<T> copy_of_shard(EngineParts<T>& engine, int p) {
  return copy_of<T>(engine.memory.shard(p), engine.memory.shard_elems(p));
}

template <class T>
std::vector<T> copy_of_gradient(EngineParts<T>& engine, int p) {
  return copy_of<T>(engine.memory.gradient(p), engine.memory.shard_elems(p));
}

#define HPSIM_INSTANTIATE(T)                                          \
  template std::vector<int> AimedFault<T>::parameters() const;        \
  template void record_parameter(EngineParts<T>&, std::int64_t, int); \
  template void record_state(EngineParts<T>&, std::int64_t, int);     \
  template void record_memory(EngineParts<T>&, std::int64_t);         \
  template std::vector<T> copy_of_shard(EngineParts<T>&, int);        \
  template std::vector<T> copy_of_gradient(EngineParts<T>&, int);
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
