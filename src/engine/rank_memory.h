#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/row_blocks.h"
#include "plan/plan.h"
#include "plan/rank_layout.h"
#include "tensor/buffer.h"
#include "trace/run_result.h"

namespace hpsim {

/// All tensors of parameters that one rank holds, and the memory they lie in: shards in padded
/// rows, gathered buckets, gradients before and after reduction. Parameters whose shards are no
/// rows of tensor dim 0 are copied into one piece after the gather, and their gradients into rows
/// before the reduction. Counts live bytes by kind in the rank's ledger, and watches padding:
/// poisoned when a gradient buffer is taken, zeroed before it is reduced, looked at whenever it is
/// sent.
template <class T>
class RankMemory {
 public:
  /// Draws the initial shards. `result` must outlive this.
  RankMemory(const Plan& plan, Rank rank, RunResult& result);

  /// The optimizer step that padding found nonzero is attributed to.
  void enter_step(std::int64_t step) { step_ = step; }

  [[nodiscard]] T* shard(int parameter);
  /// The shards of all parameters of a bucket, end to end in their padded slots, padding checked.
  [[nodiscard]] T* weights_to_average(int bucket);
  [[nodiscard]] std::int64_t shard_elems(int parameter) const {
    return slot_at(parameter).held.elems;
  }
  /// The part of the parameter that TP and EP leave to this rank.
  [[nodiscard]] const Box& whole_box(int parameter) const { return slot_at(parameter).held.whole; }
  /// That part, whole. \pre its bucket is unsharded, or not cut over several ranks
  [[nodiscard]] RowBlocks<T> whole(int parameter);
  /// Its gradient before reduction. \pre begin_gradients
  [[nodiscard]] RowBlocks<T> whole_gradient(int parameter);

  struct Ends {
    const T* input = nullptr;
    T* output = nullptr;
  };

  /// Ends of the all-gather that unshards the bucket; end_unshard puts together what are no rows.
  [[nodiscard]] Ends begin_unshard(int bucket);
  void end_unshard(int bucket);
  void reshard(int bucket);

  /// Gradient buffers of the buckets that parameters of `module` lie in, unless they exist.
  void begin_gradients(int module);
  /// Ends of the reduce-scatter of the bucket's gradients, padding zeroed; end_reduce_scatter
  /// frees the input.
  [[nodiscard]] Ends begin_reduce_scatter(int bucket);
  void end_reduce_scatter(int bucket);
  /// Elements of a row.
  [[nodiscard]] std::int64_t row_elems(int bucket) const;
  /// Own row of the bucket's gradients as far as they are reduced, padding zeroed and checked.
  [[nodiscard]] T* row_to_reduce(int bucket);
  /// The same row, no check.
  [[nodiscard]] T* reduced_row(int bucket);
  /// The part of the row that a partial range of the bucket covers, all of it for range -1.
  [[nodiscard]] std::span<T> part_of(int bucket, int range, T* row) const;
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
    bool is_sealed = false;  ///< copies are in `gradients`, and its padding is zeroed
    std::int64_t row_elems = 0;
    std::int64_t gathered_elems = 0;
  };

  /// What this rank holds of a parameter.
  struct Slot {
    HeldShard held;
    std::int64_t offset_elems = 0;  ///< in the row of its bucket
    std::int64_t padded_elems = 0;
    bool needs_copy = false;  ///< its shards are no rows: compute sees a copy of the whole
    Buffer<T> copy;
    Buffer<T> gradient_copy;
    Buffer<T> gradient;  ///< of the shard, from the store to the optimizer
    [[nodiscard]] std::int64_t whole_elems() const { return num_elems(held.whole.shape); }
  };

  [[nodiscard]] const Bucket& bucket_at(int b) const {
    return plan_.buckets.at(static_cast<std::size_t>(b));
  }
  [[nodiscard]] const PlannedParameter& parameter_at(int p) const {
    return plan_.parameters.at(static_cast<std::size_t>(p));
  }
  [[nodiscard]] BucketState& state_at(int b) { return buckets_.at(static_cast<std::size_t>(b)); }
  [[nodiscard]] Slot& slot_at(int p) { return slots_.at(static_cast<std::size_t>(p)); }
  [[nodiscard]] const Slot& slot_at(int p) const { return slots_.at(static_cast<std::size_t>(p)); }
  [[nodiscard]] RowBlocks<T> blocks_in(T* all_rows, int parameter) const;
  [[nodiscard]] RowBlocks<T> as_one_block(T* copy, int parameter) const;
  /// Calls visit(slot of a shard, shard number) for all slots of the parameter in `all_rows`.
  template <class Visit>
  void each_slot(T* all_rows, int parameter, const Visit& visit) const;
  /// Calls visit(first element, number of elements) for the padding behind each shard.
  template <class Visit>
  void each_padding(T* all_rows, int parameter, const Visit& visit) const;
  void draw_shard(int parameter);
  void open_gradients(int bucket);
  void seal(int bucket);
  void check_row_padding(int bucket, const T* row);
  void check_padding(int parameter, const T* padding, std::int64_t elems);
  void count_padding();

  const Plan& plan_;
  Rank rank_;
  RunResult& result_;
  RankRecord& record_;
  std::int64_t step_ = 0;
  Coordinate coordinate_;
  std::vector<std::vector<int>> parameters_of_module_;
  std::vector<BucketState> buckets_;
  std::vector<Slot> slots_;  ///< per parameter
  BufferPool<T> pool_;
};

}  // namespace hpsim
