#pragma once

#include <cstdint>
#include <vector>

#include "engine/row_blocks.h"
#include "plan/plan.h"
#include "tensor/buffer.h"
#include "trace/run_result.h"

namespace hpsim {

/// All tensors of parameters that one rank holds, and the memory they lie in: shards in padded
/// rows, gathered buckets, gradients before and after reduction. Counts live bytes by kind in the
/// rank's ledger, and watches padding: poisoned when a gradient buffer is taken, zeroed before it
/// is reduced, looked at whenever it is sent.
template <class T>
class RankMemory {
 public:
  /// Draws the initial shards. `result` must outlive this.
  RankMemory(const Plan& plan, Rank rank, RunResult& result);

  /// The optimizer step that padding found nonzero is attributed to.
  void enter_step(std::int64_t step) { step_ = step; }

  [[nodiscard]] T* shard(int parameter);
  [[nodiscard]] std::int64_t shard_elems(int parameter) const;
  /// The whole parameter. \pre its bucket is unsharded, or not cut over several ranks
  [[nodiscard]] RowBlocks<T> whole(int parameter);
  /// Its gradient before reduction. \pre begin_gradients
  [[nodiscard]] RowBlocks<T> whole_gradient(int parameter);

  struct Ends {
    const T* input = nullptr;
    T* output = nullptr;
  };

  /// Ends of the all-gather that unshards the bucket.
  [[nodiscard]] Ends unshard(int bucket);
  void reshard(int bucket);

  /// Gradient buffers of the buckets that parameters of `module` lie in, unless they exist.
  void begin_gradients(int module);
  /// Ends of the reduce-scatter of the bucket's gradients, padding zeroed; end_reduce_scatter
  /// frees the input.
  [[nodiscard]] Ends begin_reduce_scatter(int bucket);
  void end_reduce_scatter(int bucket);
  /// Own row of the bucket's gradients as far as they are reduced, padding zeroed and checked.
  [[nodiscard]] T* row_to_reduce(int bucket);
  /// The same row, no check.
  [[nodiscard]] T* reduced_row(int bucket);
  /// True sizes of the row become the gradients of the shards; the row is freed.
  void store_gradients(int bucket);
  [[nodiscard]] const T* gradient(int parameter) const;
  void drop_gradients();

  [[nodiscard]] Buffer<T> take(MemoryKind kind, std::int64_t elems);
  /// \pre `buffer` came from take(kind, elems)
  void give_back(MemoryKind kind, Buffer<T>& buffer, std::int64_t elems);

 private:
  /// What this rank holds of a bucket.
  struct BucketState {
    std::int64_t shard_index = 0;
    Buffer<T> storage;    ///< own row: padded slots, the shards are their prefixes
    Buffer<T> gathered;   ///< all rows while unsharded
    Buffer<T> gradients;  ///< all rows, from the first backward to the reduction
    Buffer<T> reduced;    ///< own row, from the reduce-scatter to the store
    bool has_gradients = false;
    bool is_sealed = false;  ///< padding of `gradients` is zeroed
  };

  [[nodiscard]] const Bucket& bucket_at(int b) const {
    return plan_.buckets.at(static_cast<std::size_t>(b));
  }
  [[nodiscard]] const PlannedParameter& parameter_at(int p) const {
    return plan_.parameters.at(static_cast<std::size_t>(p));
  }
  [[nodiscard]] BucketState& state_at(int b) { return buckets_.at(static_cast<std::size_t>(b)); }
  [[nodiscard]] RowBlocks<T> blocks_in(T* all_rows, int parameter) const;
  void draw_shard(int parameter);
  void open_gradients(int bucket);
  void seal_padding(int bucket);
  void check_row_padding(int bucket, const T* row);
  void check_padding(int parameter, const T* padding, std::int64_t elems);
  void count_padding();

  const Plan& plan_;
  Rank rank_;
  RunResult& result_;
  RankRecord& record_;
  std::int64_t step_ = 0;
  std::vector<BucketState> buckets_;
  std::vector<std::int64_t> shard_elems_;  ///< per parameter
  std::vector<Buffer<T>> gradients_;       ///< of shards, from the store to the optimizer
  BufferPool<T> pool_;
};

}  // namespace hpsim
