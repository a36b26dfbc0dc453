#include "engine/rank_memory.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/rank_memory_rows.h"

namespace hpsim {

template <class T>
RankMemory<T>::RankMemory(const Plan& plan, Rank rank, RunResult& result)
    : plan_(plan),
      rank_(rank),
      result_(result),
      record_(result.rank_record(rank)),
      coordinate_(plan.mesh().coordinate_of(rank)),
      parameters_of_module_(parameters_of_modules(plan.scenario)) {
  for (const Bucket& bucket : plan.buckets) {
    BucketState& state = buckets_.emplace_back();
    state.shard_index = plan.mesh().index_along(bucket.sharded_group.dims, coordinate_);
    state.row_elems = bucket.row_elems.at(plan.mesh(), coordinate_);
    state.gathered_elems = state.row_elems * bucket.sharded_group.size;
  }
  for (const PlannedParameter& parameter : plan.parameters) {
    Slot& slot = slots_.emplace_back();
    slot.held = held_shard(plan.mesh(), parameter, coordinate_);
    slot.offset_elems = parameter.offset_elems.at(plan.mesh(), coordinate_);
    slot.padded_elems = parameter.padded_elems.at(plan.mesh(), coordinate_);
    slot.needs_copy = needs_whole_copy(parameter);
    slot.parameter = std::make_shared<ShardedParameter<T>>();
    slot.parameter->elems = slot.held.elems;
    slot.parameter->dtype = parameter.dtype;
  }
}

template <class T>
T* RankMemory<T>::shard(int p) {
  expect_settled(parameter_at(p).bucket);
  require_made(p);
  return slot_of(p);
}

/// Calls copy(slot in the storage, slot in the copy, elements) for the parameters of a row.
template <class T>
template <class Copy>
void RankMemory<T>::each_averaged(int row, const Copy& copy) {
  const GradientRow& gradients = plan_.gradient_row(row);
  for (std::size_t i = 0; i < gradients.parameters.size(); ++i) {
    const int p = gradients.parameters[i];
    const std::int64_t offset = gradients.offsets[i].at(plan_.mesh(), coordinate_);
    copy(shard(p), state_at(gradients.bucket).averaged.data() + offset, slot_at(p).padded_elems);
  }
}

template <class T>
std::span<T> RankMemory<T>::begin_average(int row) {
  const GradientRow& gradients = plan_.gradient_row(row);
  const Bucket& bucket = bucket_at(gradients.bucket);
  check_storage_padding(gradients.bucket);
  if (gradients.parameters != bucket.parameters) {
    state_at(gradients.bucket).averaged =
        take(MemoryKind::ReduceBuffers, parameter_at(gradients.parameters.at(0)).dtype,
             gradients.row_elems.at(plan_.mesh(), coordinate_));
    each_averaged(row, [](const T* from, T* to, std::int64_t n) { std::copy_n(from, n, to); });
  }
  return averaged(row);
}

template <class T>
std::span<T> RankMemory<T>::averaged(int row) {
  expect_settled(plan_.gradient_row(row).bucket);
  const GradientRow& gradients = plan_.gradient_row(row);
  BucketState& state = state_at(gradients.bucket);
  const bool is_whole = gradients.parameters == bucket_at(gradients.bucket).parameters;
  return {is_whole ? state.storage.data() : state.averaged.data(),
          static_cast<std::size_t>(gradients.row_elems.at(plan_.mesh(), coordinate_))};
}

template <class T>
void RankMemory<T>::end_average(int row) {
  const GradientRow& gradients = plan_.gradient_row(row);
  check_storage_padding(gradients.bucket);
  if (gradients.parameters == bucket_at(gradients.bucket).parameters) return;
  each_averaged(row, [](T* to, const T* from, std::int64_t n) { std::copy_n(from, n, to); });
  give_back(MemoryKind::ReduceBuffers, parameter_at(gradients.parameters.at(0)).dtype,
            state_at(gradients.bucket).averaged, gradients.row_elems.at(plan_.mesh(), coordinate_));
}

template <class T>
typename RankMemory<T>::Rows RankMemory<T>::rows_at(T* data, int p) const {
  return {data, state_at(parameter_at(p).bucket).row_elems, slot_at(p).offset_elems};
}

template <class T>
RowBlocks<T> RankMemory<T>::blocks_in(const Rows& rows, int p) const {
  const PlannedParameter& parameter = parameter_at(p);
  RowBlocks<T> blocks = as_one_block(rows.data + rows.offset, p);
  if (parameter.shard_size() == 1) return blocks;
  blocks.block_stride = rows.row_elems;
  blocks.num_blocks = parameter.shard_size();
  blocks.cut = &parameter.cut;
  return blocks;
}

template <class T>
RowBlocks<T> RankMemory<T>::as_one_block(T* copy, int p) const {
  const Shape& shape = slot_at(p).held.whole.shape;
  return {.data = copy, .rows = shape.at(0), .row_elems = hpsim::row_elems(shape)};
}

template <class T>
RowBlocks<T> RankMemory<T>::whole(int p) {
  expect_settled(parameter_at(p).bucket);
  if (slot_at(p).needs_copy) return as_one_block(slot_at(p).copy.data(), p);
  require_made(p);
  BucketState& state = state_at(parameter_at(p).bucket);
  const bool is_gathered = bucket_at(parameter_at(p).bucket).is_unsharded();
  return blocks_in(rows_at(is_gathered ? state.gathered.data() : state.storage.data(), p), p);
}

template <class T>
typename RankMemory<T>::Contents RankMemory<T>::contents(int b) {
  BucketState& state = state_at(b);
  const auto span_of = [](Buffer<T>& buffer, std::int64_t elems) {
    const std::int64_t held = buffer.data() == nullptr ? 0 : elems;
    return std::span<T>(buffer.data(), static_cast<std::size_t>(held));
  };
  return {.storage = span_of(state.storage, state.row_elems),
          .gathered = span_of(state.gathered, state.gathered_elems),
          .gradients =
              span_of(state.gradients, state.gradient_row_elems * bucket_at(b).sharded_group.size)};
}

template <class T>
Interval RankMemory<T>::slot(int p) const {
  return {slot_at(p).offset_elems, slot_at(p).offset_elems + slot_at(p).padded_elems};
}

template <class T>
Buffer<T> RankMemory<T>::take(MemoryKind kind, DType dtype, std::int64_t elems) {
  record_.ledger.allocate(kind, elems * size_bytes(dtype));
  return pool_.take(elems);
}

template <class T>
void RankMemory<T>::give_back(MemoryKind kind, DType dtype, Buffer<T>& buffer, std::int64_t elems) {
  record_.ledger.release(kind, elems * size_bytes(dtype));
  pool_.give_back(std::exchange(buffer, {}));
}

template <class T>
void RankMemory<T>::expect_pending(int b) const {
  HPSIM_CHECK(state_at(b).is_pending, "no unshard of bucket {} is begun", b);
}

template <class T>
void RankMemory<T>::expect_settled(int b) const {
  HPSIM_CHECK(!state_at(b).is_pending, "bucket {} is used while it is unsharded", b);
}

template <class T>
typename RankMemory<T>::Ends RankMemory<T>::begin_unshard(int b) {
  constexpr MemoryKind kKind = MemoryKind::UnshardedParameters;
  BucketState& state = state_at(b);
  expect_settled(b);
  if (state.part.data() == nullptr) check_storage_padding(b);
  state.is_pending = true;
  const Bucket& bucket = bucket_at(b);
  if (state.part.data() != nullptr) {
    state.gathered = take(kKind, bucket.dtype, state.gathered_elems);
    return {state.part.data(), state.gathered.data()};
  }
  const bool is_cut = bucket.sharded_group.size > 1;
  if (is_cut && !bucket.casts) {
    state.gathered = take(kKind, bucket.dtype, state.gathered_elems);
    return {state.storage.data(), state.gathered.data()};
  }
  Buffer<T>& cast = is_cut ? state.cast : state.gathered;
  cast = take(kKind, bucket.dtype, state.row_elems);
  std::copy_n(state.storage.data(), state.row_elems, cast.data());
  round_to(bucket.dtype, cast.data(), state.row_elems);
  if (!is_cut) return {};
  state.gathered = take(kKind, bucket.dtype, state.gathered_elems);
  return {state.cast.data(), state.gathered.data()};
}

template <class T>
void RankMemory<T>::end_unshard(int b) {
  constexpr MemoryKind kKind = MemoryKind::UnshardedParameters;
  BucketState& state = state_at(b);
  const Bucket& bucket = bucket_at(b);
  expect_pending(b);
  state.is_pending = false;
  if (state.cast.data() != nullptr) give_back(kKind, bucket.dtype, state.cast, state.row_elems);
  if (state.part.data() != nullptr) {
    give_back(kKind, bucket.dtype, state.part, state.gathered_elems / bucket.post_forward_size);
  }
  for (const int p : bucket.parameters) {
    Slot& slot = slot_at(p);
    if (!slot.needs_copy) continue;
    slot.copy = take(kKind, bucket.dtype, slot.whole_elems());
    const Shape& shape = slot.held.whole.shape;
    each_slot(rows_at(state.gathered.data(), p), p, [&](const T* next, std::int64_t index) {
      for (const Box& box : shard_boxes(parameter_at(p).cut, shape, index)) {
        each_run(shape, box, [&](std::int64_t first, std::int64_t count) {
          std::copy_n(next, count, slot.copy.data() + first);
          next += count;
        });
      }
    });
  }
}

template <class T>
void RankMemory<T>::reshard(int b, bool keeps_part) {
  expect_settled(b);
  constexpr MemoryKind kKind = MemoryKind::UnshardedParameters;
  BucketState& state = state_at(b);
  const Bucket& bucket = bucket_at(b);
  if (keeps_part) {
    // Whole rows: the number of parts divides that of shards.
    const std::int64_t elems = state.gathered_elems / bucket.post_forward_size;
    state.part = take(kKind, bucket.dtype, elems);
    std::copy_n(state.gathered.data() + state.shard_index % bucket.post_forward_size * elems, elems,
                state.part.data());
  }
  for (const int p : bucket.parameters) {
    Slot& slot = slot_at(p);
    if (slot.needs_copy) give_back(kKind, bucket.dtype, slot.copy, slot.whole_elems());
  }
  give_back(kKind, bucket.dtype, state.gathered,
            bucket.sharded_group.size > 1 ? state.gathered_elems : state.row_elems);
}

template <class T>
void RankMemory<T>::check_storage_padding(int b) {
  const T* const row = state_at(b).storage.data();
  for (const int p : bucket_at(b).parameters) {
    require_made(p);
    const Slot& slot = slot_at(p);
    check_padding(p, row + slot.offset_elems + slot.held.elems,
                  slot.padded_elems - slot.held.elems);
  }
}

template <class T>
void RankMemory<T>::check_padding(int p, const T* padding, std::int64_t elems) {
  record_.padding_checked += elems;
  for (std::int64_t i = 0; i < elems; ++i) {
    if (padding[i] == 0) continue;
    if (record_.padding_nonzero++ == 0) {
      record_.first_nonzero_step = step_;
      record_.first_nonzero_parameter = p;
    }
  }
}

template <class T>
void RankMemory<T>::count_padding() {
  ++record_.pad_allocations;
  ++record_.pad_copies;
}

template class RankMemory<float>;
template class RankMemory<double>;

}  // namespace hpsim
