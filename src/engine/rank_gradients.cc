// The gradients of RankMemory: from backward through reductions to the gradients of shards.

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "engine/add.h"
#include "engine/rank_memory.h"
#include "engine/rank_memory_rows.h"

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
typename RankMemory<T>::Rows RankMemory<T>::gradient_rows(int p) {
  BucketState& state = state_at(parameter_at(p).bucket);
  return {state.gradients.data(), state.gradient_row_elems, slot_at(p).gradient_offset};
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
void RankMemory<T>::scale_waiting(int p, T factor) {
  Slot& slot = slot_at(p);
  const int b = parameter_at(p).bucket;
  BucketState& state = state_at(b);
  const auto scale = [&](DType dtype, T* values, std::int64_t elems) {
    for (std::int64_t i = 0; i < elems; ++i)
      values[i] *= factor;
    round_to(dtype, values, elems);
  };
  if (slot.gradient_offset >= 0 && slot.has_content) {
    const RowBlocks<T> place = gradient_place(p);
    place.each_block([&](T* block, std::int64_t /*first*/, std::int64_t rows) {
      scale(bucket_at(b).reduce_dtype, block, rows * place.row_elems);
    });
  }
  if (state.reduced.data() != nullptr && state.open_row >= 0) {
    const int position = Plan::position_in(open_row(b), p);
    if (position >= 0) {
      const std::int64_t offset =
          open_row(b).offsets.at(static_cast<std::size_t>(position)).at(plan_.mesh(), coordinate_);
      scale(bucket_at(b).reduce_dtype, state.reduced.data() + offset, slot.held.elems);
    }
  }
  if (slot.gradient.data() != nullptr)
    scale(parameter_at(p).dtype, slot.gradient.data(), slot.held.elems);
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

#define HPSIM_INSTANTIATE(T)                                             \
  template RowBlocks<T> RankMemory<T>::gradient_place(int);              \
  template RowBlocks<T> RankMemory<T>::whole_gradient(int);              \
  template void RankMemory<T>::begin_gradients(const Step&);             \
  template bool RankMemory<T>::end_gradients(const Step&);               \
  template void RankMemory<T>::seal(int);                                \
  template RankMemory<T>::Ends RankMemory<T>::begin_reduce_scatter(int); \
  template void RankMemory<T>::end_reduce_scatter(int);                  \
  template std::span<T> RankMemory<T>::arrived_row(int);                 \
  template bool RankMemory<T>::add_arrived(int);                         \
  template std::int64_t RankMemory<T>::row_elems(int) const;             \
  template T* RankMemory<T>::row_to_reduce(int);                         \
  template T* RankMemory<T>::reduced_row(int);                           \
  template std::span<T> RankMemory<T>::part_of(int, int, T*) const;      \
  template bool RankMemory<T>::store_gradients(int);                     \
  template void RankMemory<T>::scale_waiting(int, T);                    \
  template T* RankMemory<T>::gradient(int);                              \
  template void RankMemory<T>::drop_gradients();
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
