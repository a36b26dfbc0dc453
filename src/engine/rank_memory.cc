#include "engine/rank_memory.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "tensor/fill.h"

namespace hpsim {
namespace {

template <class T>
std::int64_t bytes_of(std::int64_t elems) {
  return elems * static_cast<std::int64_t>(sizeof(T));
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
      fill(next, count, key, first, fill_spec);
      next += count;
    });
  }
  const std::int64_t padding = slot.padded_elems - slot.held.elems;
  record_.ledger.allocate(MemoryKind::ShardedParameters, bytes_of<T>(slot.held.elems));
  record_.ledger.allocate(MemoryKind::Padding, bytes_of<T>(padding));
  if (padding > 0) count_padding();
  result_.record_held(rank_, p, slot.held.boxes);
}

template <class T>
T* RankMemory<T>::shard(int p) {
  return state_at(parameter_at(p).bucket).storage.data() + slot_at(p).offset_elems;
}

template <class T>
T* RankMemory<T>::weights_to_average(int b) {
  T* const row = state_at(b).storage.data();
  check_row_padding(b, row);
  return row;
}

template <class T>
RowBlocks<T> RankMemory<T>::blocks_in(T* all_rows, int p) const {
  const PlannedParameter& parameter = parameter_at(p);
  const Slot& slot = slot_at(p);
  RowBlocks<T> blocks = as_one_block(all_rows + slot.offset_elems, p);
  if (parameter.shard_size() == 1) return blocks;
  blocks.block_stride = buckets_[static_cast<std::size_t>(parameter.bucket)].row_elems;
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
void RankMemory<T>::each_slot(T* all_rows, int p, const Visit& visit) const {
  const PlannedParameter& parameter = parameter_at(p);
  const std::int64_t stride = buckets_[static_cast<std::size_t>(parameter.bucket)].row_elems;
  for (std::int64_t index = 0; index < parameter.shard_size(); ++index)
    visit(all_rows + index * stride + slot_at(p).offset_elems, index);
}

template <class T>
template <class Visit>
void RankMemory<T>::each_padding(T* all_rows, int p, const Visit& visit) const {
  const Slot& slot = slot_at(p);
  each_slot(all_rows, p, [&](T* data, std::int64_t index) {
    const std::int64_t held = hpsim::shard_elems(parameter_at(p).cut, slot.held.whole.shape, index);
    if (held < slot.padded_elems) visit(data + held, slot.padded_elems - held);
  });
}

template <class T>
RowBlocks<T> RankMemory<T>::whole(int p) {
  if (slot_at(p).needs_copy) return as_one_block(slot_at(p).copy.data(), p);
  BucketState& state = state_at(parameter_at(p).bucket);
  const bool is_cut = parameter_at(p).shard_size() > 1;
  return blocks_in(is_cut ? state.gathered.data() : state.storage.data(), p);
}

template <class T>
RowBlocks<T> RankMemory<T>::whole_gradient(int p) {
  if (slot_at(p).needs_copy) return as_one_block(slot_at(p).gradient_copy.data(), p);
  return blocks_in(state_at(parameter_at(p).bucket).gradients.data(), p);
}

template <class T>
Buffer<T> RankMemory<T>::take(MemoryKind kind, std::int64_t elems) {
  record_.ledger.allocate(kind, bytes_of<T>(elems));
  return pool_.take(elems);
}

template <class T>
void RankMemory<T>::give_back(MemoryKind kind, Buffer<T>& buffer, std::int64_t elems) {
  record_.ledger.release(kind, bytes_of<T>(elems));
  pool_.give_back(std::exchange(buffer, {}));
}

template <class T>
typename RankMemory<T>::Ends RankMemory<T>::begin_unshard(int b) {
  BucketState& state = state_at(b);
  check_row_padding(b, state.storage.data());
  state.gathered = take(MemoryKind::UnshardedParameters, state.gathered_elems);
  return {state.storage.data(), state.gathered.data()};
}

template <class T>
void RankMemory<T>::end_unshard(int b) {
  for (const int p : bucket_at(b).parameters) {
    Slot& slot = slot_at(p);
    if (!slot.needs_copy) continue;
    slot.copy = take(MemoryKind::UnshardedParameters, slot.whole_elems());
    const Shape& shape = slot.held.whole.shape;
    each_slot(state_at(b).gathered.data(), p, [&](const T* next, std::int64_t index) {
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
void RankMemory<T>::reshard(int b) {
  for (const int p : bucket_at(b).parameters) {
    Slot& slot = slot_at(p);
    if (slot.needs_copy) give_back(MemoryKind::UnshardedParameters, slot.copy, slot.whole_elems());
  }
  give_back(MemoryKind::UnshardedParameters, state_at(b).gathered, state_at(b).gathered_elems);
}

template <class T>
void RankMemory<T>::begin_gradients(int module) {
  for (const int p : parameters_of_module_.at(static_cast<std::size_t>(module))) {
    const int b = parameter_at(p).bucket;
    if (!state_at(b).has_gradients) open_gradients(b);
  }
}

template <class T>
void RankMemory<T>::open_gradients(int b) {
  BucketState& state = state_at(b);
  state.has_gradients = true;
  state.is_sealed = false;
  state.gradients = take(MemoryKind::UnshardedGradients, state.gathered_elems);
  for (const int p : bucket_at(b).parameters) {
    Slot& slot = slot_at(p);
    if (slot.needs_copy) {
      slot.gradient_copy = take(MemoryKind::UnshardedGradients, slot.whole_elems());
    }
    bool has_padding = false;
    each_padding(state.gradients.data(), p, [&](T* padding, std::int64_t elems) {
      std::fill_n(padding, elems, std::numeric_limits<T>::quiet_NaN());
      has_padding = true;
    });
    if (has_padding) count_padding();
  }
}

template <class T>
void RankMemory<T>::seal(int b) {
  BucketState& state = state_at(b);
  if (state.is_sealed) return;
  state.is_sealed = true;
  for (const int p : bucket_at(b).parameters) {
    Slot& slot = slot_at(p);
    each_padding(state.gradients.data(), p,
                 [](T* padding, std::int64_t elems) { std::fill_n(padding, elems, T(0)); });
    if (!slot.needs_copy) continue;
    const Shape& shape = slot.held.whole.shape;
    each_slot(state.gradients.data(), p, [&](T* next, std::int64_t index) {
      for (const Box& box : shard_boxes(parameter_at(p).cut, shape, index)) {
        each_run(shape, box, [&](std::int64_t first, std::int64_t count) {
          std::copy_n(slot.gradient_copy.data() + first, count, next);
          next += count;
        });
      }
    });
    give_back(MemoryKind::UnshardedGradients, slot.gradient_copy, slot.whole_elems());
  }
}

template <class T>
typename RankMemory<T>::Ends RankMemory<T>::begin_reduce_scatter(int b) {
  BucketState& state = state_at(b);
  seal(b);
  for (const int p : bucket_at(b).parameters) {
    each_padding(state.gradients.data(), p,
                 [&](const T* padding, std::int64_t elems) { check_padding(p, padding, elems); });
  }
  state.reduced = take(MemoryKind::ReduceBuffers, state.row_elems);
  return {state.gradients.data(), state.reduced.data()};
}

template <class T>
void RankMemory<T>::end_reduce_scatter(int b) {
  give_back(MemoryKind::UnshardedGradients, state_at(b).gradients, state_at(b).gathered_elems);
}

template <class T>
std::int64_t RankMemory<T>::row_elems(int b) const {
  return buckets_.at(static_cast<std::size_t>(b)).row_elems;
}

template <class T>
T* RankMemory<T>::reduced_row(int b) {
  BucketState& state = state_at(b);
  if (state.reduced.data() != nullptr) return state.reduced.data();
  return state.gradients.data() + state.shard_index * state.row_elems;
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
  const Bucket& bucket = bucket_at(b);
  const Interval members = bucket.partials.at(static_cast<std::size_t>(range)).members;
  const auto member = [&](std::int64_t i) -> const Slot& {
    return slot_at(bucket.parameters.at(static_cast<std::size_t>(i)));
  };
  const std::int64_t begin = member(members.begin).offset_elems;
  const Slot& last = member(members.end - 1);
  return {row + begin, static_cast<std::size_t>(last.offset_elems + last.padded_elems - begin)};
}

template <class T>
void RankMemory<T>::store_gradients(int b) {
  BucketState& state = state_at(b);
  const T* row = reduced_row(b);
  for (const int p : bucket_at(b).parameters) {
    Slot& slot = slot_at(p);
    slot.gradient = take(MemoryKind::Gradients, slot.held.elems);
    std::copy_n(row + slot.offset_elems, slot.held.elems, slot.gradient.data());
  }
  if (state.reduced.data() != nullptr) {
    give_back(MemoryKind::ReduceBuffers, state.reduced, state.row_elems);
  } else {
    end_reduce_scatter(b);
  }
  state.has_gradients = false;
}

template <class T>
const T* RankMemory<T>::gradient(int p) const {
  return slot_at(p).gradient.data();
}

template <class T>
void RankMemory<T>::drop_gradients() {
  for (Slot& slot : slots_)
    give_back(MemoryKind::Gradients, slot.gradient, slot.held.elems);
}

template <class T>
void RankMemory<T>::check_row_padding(int b, const T* row) {
  for (const int p : bucket_at(b).parameters) {
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
