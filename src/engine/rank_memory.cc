#include "engine/rank_memory.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "engine/add.h"
#include "tensor/fill.h"

namespace hpsim {
namespace {

/// Rounds all blocks.
template <class T>
bool round_blocks(DType dtype, const RowBlocks<T>& blocks) {
  bool has_changed = false;
  blocks.each_block([&](T* block, std::int64_t /*first*/, std::int64_t rows) {
    has_changed = round_to(dtype, block, rows * blocks.row_elems) || has_changed;
  });
  return has_changed;
}

}  // namespace

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
    state.storage = Buffer<T>(state.row_elems);
    std::fill_n(state.storage.data(), state.row_elems, T(0));
  }
  slots_.resize(plan.parameters.size());
  for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p)
    draw_shard(p);
}

template <class T>
void RankMemory<T>::draw_shard(int p) {
  const PlannedParameter& parameter = parameter_at(p);
  Slot& slot = slot_at(p);
  slot.held = held_shard(plan_.mesh(), parameter, coordinate_);
  slot.offset_elems = parameter.offset_elems.at(plan_.mesh(), coordinate_);
  slot.padded_elems = parameter.padded_elems.at(plan_.mesh(), coordinate_);
  slot.needs_copy = needs_whole_copy(parameter);
  const Scenario& scenario = plan_.scenario;
  const ParameterSpec& spec = scenario.parameters.at(static_cast<std::size_t>(p));
  const std::uint64_t key = fill_key(spec.name, scenario.data.seed);
  const FillSpec fill_spec = parameter_fill(scenario.data, spec);
  T* next = shard(p);
  for (const Box& box : slot.held.boxes) {
    each_run(parameter.shape, box, [&](std::int64_t first, std::int64_t count) {
      fill(next, count, key, first, fill_spec, parameter.dtype);
      next += count;
    });
  }
  const std::int64_t padding = slot.padded_elems - slot.held.elems;
  const std::int64_t width = size_bytes(parameter.dtype);
  record_.ledger.allocate(MemoryKind::ShardedParameters, slot.held.elems * width);
  record_.ledger.allocate(MemoryKind::Padding, padding * width);
  if (padding > 0) count_padding();
  result_.record_held(rank_, p, slot.held.boxes);
}

template <class T>
T* RankMemory<T>::shard(int p) {
  expect_settled(parameter_at(p).bucket);
  return state_at(parameter_at(p).bucket).storage.data() + slot_at(p).offset_elems;
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
typename RankMemory<T>::Rows RankMemory<T>::gradient_rows(int p) {
  BucketState& state = state_at(parameter_at(p).bucket);
  return {state.gradients.data(), state.gradient_row_elems, slot_at(p).gradient_offset};
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
template <class Visit>
void RankMemory<T>::each_slot(const Rows& rows, int p, const Visit& visit) const {
  for (std::int64_t index = 0; index < parameter_at(p).shard_size(); ++index)
    visit(rows.data + index * rows.row_elems + rows.offset, index);
}

template <class T>
template <class Visit>
void RankMemory<T>::each_padding(const Rows& rows, int p, const Visit& visit) const {
  const Slot& slot = slot_at(p);
  each_slot(rows, p, [&](T* data, std::int64_t index) {
    const std::int64_t held = hpsim::shard_elems(parameter_at(p).cut, slot.held.whole.shape, index);
    if (held < slot.padded_elems) visit(data + held, slot.padded_elems - held);
  });
}

template <class T>
RowBlocks<T> RankMemory<T>::whole(int p) {
  expect_settled(parameter_at(p).bucket);
  if (slot_at(p).needs_copy) return as_one_block(slot_at(p).copy.data(), p);
  BucketState& state = state_at(parameter_at(p).bucket);
  const bool is_gathered = bucket_at(parameter_at(p).bucket).is_unsharded();
  return blocks_in(rows_at(is_gathered ? state.gathered.data() : state.storage.data(), p), p);
}

template <class T>
RowBlocks<T> RankMemory<T>::gradient_place(int p) {
  if (slot_at(p).needs_copy) return as_one_block(slot_at(p).gradient_copy.data(), p);
  return blocks_in(gradient_rows(p), p);
}

template <class T>
RowBlocks<T> RankMemory<T>::whole_gradient(int p) {
  Slot& slot = slot_at(p);
  if (slot.gradient_offset < 0) return {};
  return slot.has_content ? as_one_block(slot.term.data(), p) : gradient_place(p);
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
  state.is_pending = true;
  const Bucket& bucket = bucket_at(b);
  if (state.part.data() != nullptr) {
    state.gathered = take(kKind, bucket.dtype, state.gathered_elems);
    return {state.part.data(), state.gathered.data()};
  }
  check_storage_padding(b);
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
void RankMemory<T>::begin_gradients(const Step& backward) {
  for (const int row : backward.rows) {
    if (state_at(plan_.gradient_row(row).bucket).has_gradients) continue;
    open_gradients(row);
  }
  for (const int p : parameters_of_module_.at(static_cast<std::size_t>(backward.module))) {
    Slot& slot = slot_at(p);
    if (slot.gradient_offset < 0 || !slot.has_content) continue;
    slot.term =
        take(MemoryKind::UnshardedGradients, parameter_at(p).compute_dtype, slot.whole_elems());
  }
}

template <class T>
void RankMemory<T>::open_gradients(int row) {
  const GradientRow& gradients = plan_.gradient_row(row);
  const Bucket& bucket = bucket_at(gradients.bucket);
  BucketState& state = state_at(gradients.bucket);
  state.has_gradients = true;
  state.is_sealed = false;
  state.open_row = row;
  state.gradient_row_elems = gradients.row_elems.at(plan_.mesh(), coordinate_);
  state.gradients = take(MemoryKind::UnshardedGradients, bucket.reduce_dtype,
                         state.gradient_row_elems * bucket.sharded_group.size);
  for (std::size_t i = 0; i < gradients.parameters.size(); ++i) {
    const int p = gradients.parameters[i];
    Slot& slot = slot_at(p);
    slot.gradient_offset = gradients.offsets[i].at(plan_.mesh(), coordinate_);
    slot.has_content = false;
    if (slot.needs_copy) {
      slot.gradient_copy =
          take(MemoryKind::UnshardedGradients, bucket.reduce_dtype, slot.whole_elems());
    }
    bool has_padding = false;
    each_padding(gradient_rows(p), p, [&](T* padding, std::int64_t elems) {
      std::fill_n(padding, elems, std::numeric_limits<T>::quiet_NaN());
      has_padding = true;
    });
    if (has_padding) count_padding();
  }
}

template <class T>
bool RankMemory<T>::end_gradients(const Step& backward) {
  bool has_changed = false;
  for (const int p : parameters_of_module_.at(static_cast<std::size_t>(backward.module))) {
    if (slot_at(p).gradient_offset < 0) continue;
    // Backward comes last to the module that owns it.
    const int owner = plan_.scenario.parameters.at(static_cast<std::size_t>(p)).module;
    has_changed = end_gradient(p, backward.module == owner) || has_changed;
  }
  return has_changed;
}

template <class T>
bool RankMemory<T>::end_gradient(int p, bool is_last) {
  Slot& slot = slot_at(p);
  const PlannedParameter& parameter = parameter_at(p);
  const DType reduce_dtype = bucket_at(parameter.bucket).reduce_dtype;
  const RowBlocks<T> place = gradient_place(p);
  bool has_changed = false;
  if (!slot.has_content) {
    slot.has_content = true;
    has_changed = round_blocks(parameter.compute_dtype, place);
  } else {
    has_changed = round_to(parameter.compute_dtype, slot.term.data(), slot.whole_elems());
    place.each_block([&](T* block, std::int64_t first, std::int64_t rows) {
      accumulate(slot.term.data() + first * place.row_elems, rows * place.row_elems, block);
    });
    give_back(MemoryKind::UnshardedGradients, parameter.compute_dtype, slot.term,
              slot.whole_elems());
  }
  if (!is_last) return has_changed;
  return round_blocks(reduce_dtype, place) || has_changed;
}

template <class T>
void RankMemory<T>::seal(int b) {
  BucketState& state = state_at(b);
  if (!state.has_gradients || std::exchange(state.is_sealed, true)) return;
  for (const int p : open_row(b).parameters) {
    Slot& slot = slot_at(p);
    HPSIM_CHECK(slot.has_content, "no backward left a gradient of \"{}\"", parameter_at(p).name);
    each_padding(gradient_rows(p), p,
                 [](T* padding, std::int64_t elems) { std::fill_n(padding, elems, T(0)); });
    if (!slot.needs_copy) continue;
    const Shape& shape = slot.held.whole.shape;
    each_slot(gradient_rows(p), p, [&](T* next, std::int64_t index) {
      for (const Box& box : shard_boxes(parameter_at(p).cut, shape, index)) {
        each_run(shape, box, [&](std::int64_t first, std::int64_t count) {
          std::copy_n(slot.gradient_copy.data() + first, count, next);
          next += count;
        });
      }
    });
    give_back(MemoryKind::UnshardedGradients, bucket_at(b).reduce_dtype, slot.gradient_copy,
              slot.whole_elems());
  }
}

template <class T>
typename RankMemory<T>::Ends RankMemory<T>::begin_reduce_scatter(int b) {
  BucketState& state = state_at(b);
  seal(b);
  for (const int p : open_row(b).parameters) {
    each_padding(gradient_rows(p), p,
                 [&](const T* padding, std::int64_t elems) { check_padding(p, padding, elems); });
  }
  state.arrived =
      take(MemoryKind::ReduceBuffers, bucket_at(b).reduce_dtype, state.gradient_row_elems);
  return {state.gradients.data(), state.arrived.data()};
}

template <class T>
void RankMemory<T>::end_reduce_scatter(int b) {
  close_gradients(b);
}

template <class T>
void RankMemory<T>::close_gradients(int b) {
  BucketState& state = state_at(b);
  const Bucket& bucket = bucket_at(b);
  give_back(MemoryKind::UnshardedGradients, bucket.reduce_dtype, state.gradients,
            state.gradient_row_elems * bucket.sharded_group.size);
  state.has_gradients = false;
  for (const int p : open_row(b).parameters) {
    slot_at(p).gradient_offset = -1;
    slot_at(p).has_content = false;
  }
}

template <class T>
std::span<T> RankMemory<T>::arrived_row(int b) {
  return {state_at(b).arrived.data(), static_cast<std::size_t>(row_elems(b))};
}

template <class T>
bool RankMemory<T>::add_arrived(int b) {
  BucketState& state = state_at(b);
  if (state.reduced.data() == nullptr) {
    state.reduced = std::exchange(state.arrived, {});
    return false;
  }
  const DType dtype = bucket_at(b).reduce_dtype;
  accumulate(state.arrived.data(), row_elems(b), state.reduced.data());
  give_back(MemoryKind::ReduceBuffers, dtype, state.arrived, row_elems(b));
  return round_to(dtype, state.reduced.data(), row_elems(b));
}

template <class T>
std::int64_t RankMemory<T>::row_elems(int b) const {
  return state_at(b).gradient_row_elems;
}

template <class T>
T* RankMemory<T>::reduced_row(int b) {
  BucketState& state = state_at(b);
  if (state.reduced.data() != nullptr) return state.reduced.data();
  return state.gradients.data() + state.shard_index * state.gradient_row_elems;
}

template <class T>
T* RankMemory<T>::row_to_reduce(int b) {
  seal(b);
  T* const row = reduced_row(b);
  check_row_padding(b, row);
  return row;
}

template <class T>
std::span<T> RankMemory<T>::part_of(int b, int range, T* row) const {
  if (range < 0) return {row, static_cast<std::size_t>(row_elems(b))};
  const GradientRow& gradients = open_row(b);
  const Interval members = gradients.partials.at(static_cast<std::size_t>(range)).members;
  const auto offset = [&](std::int64_t i) {
    return gradients.offsets.at(static_cast<std::size_t>(i)).at(plan_.mesh(), coordinate_);
  };
  const std::int64_t begin = offset(members.begin);
  const int last = gradients.parameters.at(static_cast<std::size_t>(members.end - 1));
  const std::int64_t end = offset(members.end - 1) + slot_at(last).padded_elems;
  return {row + begin, static_cast<std::size_t>(end - begin)};
}

template <class T>
bool RankMemory<T>::store_gradients(int b) {
  BucketState& state = state_at(b);
  const GradientRow& gradients = open_row(b);
  const T* row = reduced_row(b);
  bool has_changed = false;
  for (std::size_t i = 0; i < gradients.parameters.size(); ++i) {
    const int p = gradients.parameters[i];
    Slot& slot = slot_at(p);
    const DType dtype = parameter_at(p).dtype;
    const T* const from = row + gradients.offsets[i].at(plan_.mesh(), coordinate_);
    if (slot.gradient.data() == nullptr) {
      slot.gradient = take(MemoryKind::Gradients, dtype, slot.held.elems);
      std::copy_n(from, slot.held.elems, slot.gradient.data());
      has_changed = round_to(dtype, slot.gradient.data(), slot.held.elems) || has_changed;
      continue;
    }
    Buffer<T> term = pool_.take(slot.held.elems);
    std::copy_n(from, slot.held.elems, term.data());
    has_changed = round_to(dtype, term.data(), slot.held.elems) || has_changed;
    accumulate(term.data(), slot.held.elems, slot.gradient.data());
    has_changed = round_to(dtype, slot.gradient.data(), slot.held.elems) || has_changed;
    pool_.give_back(std::move(term));
  }
  if (state.reduced.data() != nullptr) {
    give_back(MemoryKind::ReduceBuffers, bucket_at(b).reduce_dtype, state.reduced,
              state.gradient_row_elems);
  } else {
    close_gradients(b);
  }
  state.open_row = -1;
  return has_changed;
}

template <class T>
T* RankMemory<T>::gradient(int p) {
  return slot_at(p).gradient.data();
}

template <class T>
void RankMemory<T>::drop_gradients() {
  for (int p = 0; p < static_cast<int>(slots_.size()); ++p) {
    Slot& slot = slot_at(p);
    if (slot.gradient.data() == nullptr) continue;
    give_back(MemoryKind::Gradients, parameter_at(p).dtype, slot.gradient, slot.held.elems);
  }
}

template <class T>
void RankMemory<T>::check_storage_padding(int b) {
  const T* const row = state_at(b).storage.data();
  for (const int p : bucket_at(b).parameters) {
    const Slot& slot = slot_at(p);
    check_padding(p, row + slot.offset_elems + slot.held.elems,
                  slot.padded_elems - slot.held.elems);
  }
}

template <class T>
void RankMemory<T>::check_row_padding(int b, const T* row) {
  const GradientRow& gradients = open_row(b);
  for (std::size_t i = 0; i < gradients.parameters.size(); ++i) {
    const int p = gradients.parameters[i];
    const Slot& slot = slot_at(p);
    const std::int64_t offset = gradients.offsets[i].at(plan_.mesh(), coordinate_);
    check_padding(p, row + offset + slot.held.elems, slot.padded_elems - slot.held.elems);
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
