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
    : plan_(plan), rank_(rank), result_(result), record_(result.rank_record(rank)) {
  const Coordinate coordinate = plan.mesh().coordinate_of(rank);
  for (const Bucket& bucket : plan.buckets) {
    BucketState& state = buckets_.emplace_back();
    state.shard_index = plan.mesh().index_along(bucket.sharded_group.dims, coordinate);
    state.storage = Buffer<T>(bucket.row_elems);
    std::fill_n(state.storage.data(), bucket.row_elems, T(0));
  }
  for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p)
    draw_shard(p);
  gradients_.resize(plan.parameters.size());
}

template <class T>
void RankMemory<T>::draw_shard(int p) {
  const PlannedParameter& parameter = parameter_at(p);
  const std::int64_t index = state_at(parameter.bucket).shard_index;
  const Interval rows = parameter.rows_of(index);
  const std::int64_t elems = parameter.shard_elems(index);
  const std::int64_t padding = parameter.padded_elems() - elems;
  const Scenario& scenario = plan_.scenario;
  const ParameterSpec& spec = scenario.parameters.at(static_cast<std::size_t>(p));
  fill(shard(p), elems, fill_key(spec.name, scenario.data.seed),
       rows.begin * row_elems(parameter.shape), parameter_fill(scenario.data, spec));
  shard_elems_.push_back(elems);
  record_.ledger.allocate(MemoryKind::ShardedParameters, bytes_of<T>(elems));
  record_.ledger.allocate(MemoryKind::Padding, bytes_of<T>(padding));
  if (padding > 0) count_padding();
  result_.held_rows(rank_, p) = {rows.begin, rows.end};
}

template <class T>
T* RankMemory<T>::shard(int p) {
  const PlannedParameter& parameter = parameter_at(p);
  return state_at(parameter.bucket).storage.data() + parameter.offset_elems;
}

template <class T>
std::int64_t RankMemory<T>::shard_elems(int p) const {
  return shard_elems_.at(static_cast<std::size_t>(p));
}

template <class T>
RowBlocks<T> RankMemory<T>::blocks_in(T* all_rows, int p) const {
  const PlannedParameter& parameter = parameter_at(p);
  return {.data = all_rows + parameter.offset_elems,
          .rows = parameter.shape[0],
          .row_elems = row_elems(parameter.shape),
          .rows_per_block = parameter.padded_shape()[0],
          .block_stride = bucket_at(parameter.bucket).row_elems,
          .num_blocks = parameter.shard_size()};
}

template <class T>
RowBlocks<T> RankMemory<T>::whole(int p) {
  BucketState& state = state_at(parameter_at(p).bucket);
  const bool is_cut = parameter_at(p).shard_size() > 1;
  return blocks_in(is_cut ? state.gathered.data() : state.storage.data(), p);
}

template <class T>
RowBlocks<T> RankMemory<T>::whole_gradient(int p) {
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
typename RankMemory<T>::Ends RankMemory<T>::unshard(int b) {
  BucketState& state = state_at(b);
  check_row_padding(b, state.storage.data());
  state.gathered = take(MemoryKind::UnshardedParameters, bucket_at(b).gathered_elems());
  return {state.storage.data(), state.gathered.data()};
}

template <class T>
void RankMemory<T>::reshard(int b) {
  give_back(MemoryKind::UnshardedParameters, state_at(b).gathered, bucket_at(b).gathered_elems());
}

template <class T>
void RankMemory<T>::begin_gradients(int module) {
  // Parameters come in module order.
  const auto& specs = plan_.scenario.parameters;
  const auto first = std::lower_bound(
      specs.begin(), specs.end(), module,
      [](const ParameterSpec& parameter, int wanted) { return parameter.module < wanted; });
  for (auto it = first; it != specs.end() && it->module == module; ++it) {
    const int b = parameter_at(static_cast<int>(it - specs.begin())).bucket;
    if (!state_at(b).has_gradients) open_gradients(b);
  }
}

template <class T>
void RankMemory<T>::open_gradients(int b) {
  BucketState& state = state_at(b);
  state.has_gradients = true;
  state.is_sealed = false;
  state.gradients = take(MemoryKind::UnshardedGradients, bucket_at(b).gathered_elems());
  for (const int p : bucket_at(b).parameters) {
    bool has_padding = false;
    whole_gradient(p).each_padding([&](T* padding, std::int64_t elems) {
      std::fill_n(padding, elems, std::numeric_limits<T>::quiet_NaN());
      has_padding = true;
    });
    if (has_padding) count_padding();
  }
}

template <class T>
void RankMemory<T>::seal_padding(int b) {
  BucketState& state = state_at(b);
  if (state.is_sealed) return;
  state.is_sealed = true;
  for (const int p : bucket_at(b).parameters) {
    whole_gradient(p).each_padding(
        [](T* padding, std::int64_t elems) { std::fill_n(padding, elems, T(0)); });
  }
}

template <class T>
typename RankMemory<T>::Ends RankMemory<T>::begin_reduce_scatter(int b) {
  BucketState& state = state_at(b);
  seal_padding(b);
  for (const int p : bucket_at(b).parameters) {
    whole_gradient(p).each_padding(
        [&](const T* padding, std::int64_t elems) { check_padding(p, padding, elems); });
  }
  state.reduced = take(MemoryKind::ReduceBuffers, bucket_at(b).row_elems);
  return {state.gradients.data(), state.reduced.data()};
}

template <class T>
void RankMemory<T>::end_reduce_scatter(int b) {
  give_back(MemoryKind::UnshardedGradients, state_at(b).gradients, bucket_at(b).gathered_elems());
}

template <class T>
T* RankMemory<T>::reduced_row(int b) {
  BucketState& state = state_at(b);
  if (state.reduced.data() != nullptr) return state.reduced.data();
  return state.gradients.data() + state.shard_index * bucket_at(b).row_elems;
}

template <class T>
T* RankMemory<T>::row_to_reduce(int b) {
  seal_padding(b);
  T* const row = reduced_row(b);
  check_row_padding(b, row);
  return row;
}

template <class T>
void RankMemory<T>::store_gradients(int b) {
  BucketState& state = state_at(b);
  const T* row = reduced_row(b);
  for (const int p : bucket_at(b).parameters) {
    const std::int64_t elems = shard_elems(p);
    Buffer<T>& gradient = gradients_[static_cast<std::size_t>(p)];
    gradient = take(MemoryKind::Gradients, elems);
    std::copy_n(row + parameter_at(p).offset_elems, elems, gradient.data());
  }
  if (state.reduced.data() != nullptr) {
    give_back(MemoryKind::ReduceBuffers, state.reduced, bucket_at(b).row_elems);
  } else {
    end_reduce_scatter(b);
  }
  state.has_gradients = false;
}

template <class T>
const T* RankMemory<T>::gradient(int p) const {
  return gradients_.at(static_cast<std::size_t>(p)).data();
}

template <class T>
void RankMemory<T>::drop_gradients() {
  for (std::size_t p = 0; p < gradients_.size(); ++p) {
    give_back(MemoryKind::Gradients, gradients_[p], shard_elems_[p]);
  }
}

template <class T>
void RankMemory<T>::check_row_padding(int b, const T* row) {
  for (const int p : bucket_at(b).parameters) {
    const PlannedParameter& parameter = parameter_at(p);
    check_padding(p, row + parameter.offset_elems + shard_elems(p),
                  parameter.padded_elems() - shard_elems(p));
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
