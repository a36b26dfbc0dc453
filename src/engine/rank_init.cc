// How RankMemory makes its parameters, and lets them take other values later.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/rank_memory.h"

namespace hpsim {

template <class T>
void RankMemory<T>::make_parameters(WholeParameters<T>* shared) {
  allocate_storage();
  WholeParameters<T> own(plan_, /*keeps=*/false);
  for (int p = 0; p < static_cast<int>(slots_.size()); ++p) {
    if (plan_.scenario.training.init_device == InitDevice::Meta) {
      draw_shard(p);
    } else {
      draw_whole(p, shared == nullptr ? own : *shared);
    }
    result_.record_held(rank_, p, slot_at(p).held.boxes);
  }
  record_.init = record_.ledger;
  record_.ledger.restart_peaks();
}

template <class T>
void RankMemory<T>::allocate_storage() {
  for (BucketState& state : buckets_)
    state.storage = Buffer<T>(state.row_elems);
  for (int p = 0; p < static_cast<int>(slots_.size()); ++p) {
    const Slot& slot = slot_at(p);
    count_storage(p, slot.parameter->dtype, &Ledger::allocate);
    if (slot.padded_elems > slot.held.elems) ++record_.pad_allocations;
  }
}

/// Allocates or releases what the slot of a parameter takes.
template <class T>
void RankMemory<T>::count_storage(int p, DType dtype,
                                  void (Ledger::*count)(MemoryKind, std::int64_t)) {
  const Slot& slot = slot_at(p);
  const std::int64_t width = size_bytes(dtype);
  (record_.ledger.*count)(MemoryKind::ShardedParameters, slot.held.elems * width);
  (record_.ledger.*count)(MemoryKind::Padding, (slot.padded_elems - slot.held.elems) * width);
}

template <class T>
void RankMemory<T>::draw_whole(int p, WholeParameters<T>& whole) {
  const PlannedParameter& parameter = parameter_at(p);
  const Slot& slot = slot_at(p);
  const std::int64_t elems = num_elems(parameter.shape);
  if (slot.held.elems == elems) {  // nothing would be thrown away
    fill_shard(p, slot_of(p));
    return reset_sharded_param(p, slot_of(p), elems, parameter.dtype);
  }
  const std::int64_t bytes = elems * size_bytes(parameter.dtype);
  record_.ledger.allocate(MemoryKind::UnshardedParameters, bytes);
  const T* const tensor = whole.draw(p);
  T* next = slot_of(p);
  for (const Box& box : slot.held.boxes) {
    each_run(parameter.shape, box, [&](std::int64_t first, std::int64_t count) {
      next = std::copy_n(tensor + first, count, next);
    });
  }
  reset_sharded_param(p, slot_of(p), slot.held.elems, parameter.dtype);
  record_.ledger.release(MemoryKind::UnshardedParameters, bytes);
}

template <class T>
void RankMemory<T>::draw_shard(int p) {
  const Slot& slot = slot_at(p);
  const DType dtype = parameter_at(p).dtype;
  if (slot.held.elems == slot.padded_elems) {
    fill_shard(p, slot_of(p));
    return reset_sharded_param(p, slot_of(p), slot.held.elems, dtype);
  }
  const std::int64_t bytes = slot.held.elems * size_bytes(dtype);
  Buffer<T> local(slot.held.elems);
  record_.ledger.allocate(MemoryKind::ShardedParameters, bytes);
  fill_shard(p, local.data());
  reset_sharded_param(p, local.data(), slot.held.elems, dtype);
  record_.ledger.release(MemoryKind::ShardedParameters, bytes);
}

template <class T>
void RankMemory<T>::fill_shard(int p, T* shard) const {
  for (const Box& box : slot_at(p).held.boxes) {
    each_run(parameter_at(p).shape, box, [&](std::int64_t first, std::int64_t count) {
      fill_parameter(plan_, p, first, count, shard);
      shard += count;
    });
  }
}

template <class T>
void RankMemory<T>::reset_sharded_param(int p, const T* local, std::int64_t elems, DType dtype) {
  const Slot& slot = slot_at(p);
  ShardedParameter<T>& parameter = *slot.parameter;
  HPSIM_CHECK(elems == slot.held.elems || elems == slot.padded_elems,
              "\"{}\": a local tensor of {} elements is neither the true shard, {}, nor its padded "
              "slot, {}",
              parameter_at(p).name, elems, slot.held.elems, slot.padded_elems);
  T* const storage = slot_of(p);
  const bool is_there = local == storage && parameter.data == storage && parameter.dtype == dtype;
  if (is_there && !parameter.is_on_meta) return;
  if (local != storage) std::copy_n(local, slot.held.elems, storage);
  if (slot.padded_elems > slot.held.elems) {
    std::fill_n(storage + slot.held.elems, slot.padded_elems - slot.held.elems, T(0));
    ++record_.pad_copies;
  }
  if (parameter.dtype != dtype) {
    count_storage(p, parameter.dtype, &Ledger::release);
    count_storage(p, dtype, &Ledger::allocate);
  }
  parameter = {.data = storage, .elems = slot.held.elems, .dtype = dtype, .is_on_meta = false};
}

template <class T>
void RankMemory<T>::require_made(int p) const {
  const ShardedParameter<T>& parameter = *slot_at(p).parameter;
  HPSIM_CHECK(!parameter.is_on_meta,
              "parameter \"{}\" is still on meta: it must be materialized before training",
              parameter_at(p).name);
  HPSIM_CHECK(parameter.dtype == parameter_at(p).dtype,
              "parameter \"{}\" was reset to {}, but its plan is of {}", parameter_at(p).name,
              name_of(parameter.dtype), name_of(parameter_at(p).dtype));
}

#define HPSIM_INSTANTIATE(T)                                                            \
  template void RankMemory<T>::make_parameters(WholeParameters<T>*);                    \
  template void RankMemory<T>::reset_sharded_param(int, const T*, std::int64_t, DType); \
  template void RankMemory<T>::require_made(int) const;
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
