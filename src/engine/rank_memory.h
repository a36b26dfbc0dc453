#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/row_blocks.h"
#include "engine/sharded_parameter.h"
#include "engine/whole_parameters.h"
#include "plan/plan.h"
#include "plan/rank_layout.h"
#include "tensor/buffer.h"
#include "trace/run_result.h"

namespace hpsim {

/// All tensors of parameters that one rank holds, and the memory they lie in: shards in padded
/// rows, gathered buckets, gradients before and after reduction. Numbers are held as T, rounded to
/// the dtype that they have at each stage (scenario/precision.h). Before parameters are made they
/// are known, but have no storage. Parameters whose shards are no
/// rows of tensor dim 0 are copied into one piece after the gather, and their gradients into rows
/// before the reduction. Counts live bytes by kind in the rank's ledger, and watches padding:
/// poisoned when a gradient buffer is taken, zeroed before it is reduced, looked at whenever it is
/// sent.
template <class T>
class RankMemory {
 public:
  /// Parameters are on meta. `result` must outlive this.
  RankMemory(const Plan& plan, Rank rank, RunResult& result);

  /// Makes all parameters as init_device says, which ends what the ledger calls init. `shared`:
  /// whole parameters that other ranks of this process use too; null: none.
  void make_parameters(WholeParameters<T>* shared = nullptr);
  /// The parameter takes its values, and its dtype, from a local tensor of the true size of the
  /// shard, or of its padded slot: these become the prefix of its slot in the storage, what follows
  /// is zero, and the object that the optimizer holds views them. Nothing is copied where the
  /// tensor is that prefix already, and nothing done where the object views it just so.
  /// \throws InternalError if the tensor has another size
  void reset_sharded_param(int parameter, const T* local, std::int64_t elems, DType dtype);
  /// What optimizers hold: the same object from the construction on.
  [[nodiscard]] std::shared_ptr<ShardedParameter<T>>& registered(int parameter) {
    return slot_at(parameter).parameter;
  }

  /// The optimizer step that padding found nonzero is attributed to.
  void enter_step(std::int64_t step) { step_ = step; }

  [[nodiscard]] T* shard(int parameter);
  /// The shards of the parameters of a gradient row, end to end in their padded slots, padding
  /// checked; where these are not all of their bucket, a copy, until end_average puts it back.
  [[nodiscard]] std::span<T> begin_average(int row);
  [[nodiscard]] std::span<T> averaged(int row);
  void end_average(int row);
  [[nodiscard]] std::int64_t shard_elems(int parameter) const {
    return slot_at(parameter).held.elems;
  }
  /// The part of the parameter that TP and EP leave to this rank.
  [[nodiscard]] const Box& whole_box(int parameter) const { return slot_at(parameter).held.whole; }
  /// That part, whole. \pre its bucket is unsharded, or needs not be
  [[nodiscard]] RowBlocks<T> whole(int parameter);
  /// Where backward writes its gradient; no blocks where it has none. \pre begin_gradients
  [[nodiscard]] RowBlocks<T> whole_gradient(int parameter);
  /// Where gradients of its uses add up. \pre a backward of the pass left one there
  [[nodiscard]] RowBlocks<T> accumulated_gradient(int parameter) {
    return gradient_place(parameter);
  }

  struct Ends {
    const T* input = nullptr;
    T* output = nullptr;
  };

  /// Ends of the all-gather that unshards the bucket, none where it is only cast; end_unshard puts
  /// together what are no rows. Between the two nothing may use the bucket's parameters.
  [[nodiscard]] Ends begin_unshard(int bucket);
  void end_unshard(int bucket);
  /// \pre begin_unshard was called last for the bucket, not end_unshard
  void expect_pending(int bucket) const;
  /// `keeps_part`: of what is gathered, that which reshard_after_forward k leaves to the rank.
  void reshard(int bucket, bool keeps_part);

  /// Before a backward: buffers of the rows in which it leaves gradients, unless they are there;
  /// and memory of their own for gradients that are added to what is there.
  void begin_gradients(const Step& backward);
  /// After it: rounds what it left to the dtype of compute, and adds it up in that of reductions,
  /// to which a pass rounds what all modules of a parameter left once.
  /// Returns whether a value changed by rounding.
  bool end_gradients(const Step& backward);
  /// Ends of the reduce-scatter of the bucket's gradients, padding zeroed; end_reduce_scatter
  /// frees the input; then what arrived is the row to reduce, or is added to the one that waits.
  [[nodiscard]] Ends begin_reduce_scatter(int bucket);
  void end_reduce_scatter(int bucket);
  [[nodiscard]] std::span<T> arrived_row(int bucket);
  bool add_arrived(int bucket);
  /// Elements of a row of gradients, own or of all ranks.
  [[nodiscard]] std::int64_t row_elems(int bucket) const;
  /// Own row of the bucket's gradients as far as they are reduced, padding zeroed and checked.
  [[nodiscard]] T* row_to_reduce(int bucket);
  /// The same row, no check.
  [[nodiscard]] T* reduced_row(int bucket);
  /// The part of the row that a partial range of the bucket covers, all of it for range -1.
  [[nodiscard]] std::span<T> part_of(int bucket, int range, T* row) const;
  /// True sizes of the row become the gradients of the shards, or are added to them; the row is
  /// freed. Returns whether a value changed by rounding.
  bool store_gradients(int bucket);
  /// Multiplies what earlier passes of the optimizer step left of a parameter's gradient, not yet
  /// reduced, reduced or stored. For planted faults.
  void scale_waiting(int parameter, T factor);
  /// Null: the parameter has no gradient in this optimizer step.
  [[nodiscard]] T* gradient(int parameter);
  void drop_gradients();

  /// All that a bucket has: its own row of shards, all rows while it is unsharded, all rows of
  /// gradients before they are reduced; empty where there are none. For planted faults.
  struct Contents {
    std::span<T> storage;
    std::span<T> gathered;
    std::span<T> gradients;
  };
  [[nodiscard]] Contents contents(int bucket);
  /// Gradients are put into their rows, and padding is zeroed, unless that was done.
  void seal(int bucket);
  /// Where the slot of a parameter is in the row of its bucket, padding included.
  [[nodiscard]] Interval slot(int parameter) const;
  /// Of what the rank holds of a vocabulary, the first row (whole_box). For planted faults.
  void claim_first_row(int parameter, std::int64_t row) {
    slot_at(parameter).held.whole.offset.at(0) = row;
  }

  [[nodiscard]] Buffer<T> take(MemoryKind kind, DType dtype, std::int64_t elems);
  /// \pre `buffer` came from take(kind, dtype, elems)
  void give_back(MemoryKind kind, DType dtype, Buffer<T>& buffer, std::int64_t elems);

 private:
  /// What this rank holds of a bucket.
  struct BucketState {
    std::int64_t shard_index = 0;
    Buffer<T> storage;        ///< own row: padded slots, the shards are their prefixes
    Buffer<T> cast;           ///< the same in the dtype that is gathered, while it is
    Buffer<T> gathered;       ///< all rows while unsharded
    bool is_pending = false;  ///< between begin_unshard and end_unshard
    Buffer<T> part;           ///< some of them, between forward and backward
    Buffer<T> averaged;       ///< shards of some parameters, while they are averaged
    int open_row = -1;        ///< gradient row of `gradients`, or of `reduced`; -1: none
    bool has_gradients = false;
    Buffer<T> gradients;     ///< all rows, from the first backward to the reduction
    Buffer<T> arrived;       ///< own row, from a reduce-scatter
    Buffer<T> reduced;       ///< own row, from the reduce-scatter to the store
    bool is_sealed = false;  ///< copies are in `gradients`, and its padding is zeroed
    std::int64_t row_elems = 0;
    std::int64_t gathered_elems = 0;
    std::int64_t gradient_row_elems = 0;  ///< of the open row
  };

  /// What this rank holds of a parameter.
  struct Slot {
    HeldShard held;
    std::shared_ptr<ShardedParameter<T>> parameter;
    std::int64_t offset_elems = 0;  ///< in the row of its bucket
    std::int64_t padded_elems = 0;
    bool needs_copy = false;  ///< its shards are no rows: compute sees a copy of the whole
    Buffer<T> copy;
    std::int64_t gradient_offset = -1;  ///< in the open row of its bucket; -1: it is not in it
    bool has_content = false;           ///< some backward has left a gradient there
    Buffer<T> gradient_copy;
    Buffer<T> term;      ///< a gradient that is to be added
    Buffer<T> gradient;  ///< of the shard, from the store to the optimizer
    [[nodiscard]] std::int64_t whole_elems() const { return num_elems(held.whole.shape); }
  };

  /// Rows of a bucket, or of its gradients: where the slot of a parameter is in each of them.
  struct Rows {
    T* data = nullptr;
    std::int64_t row_elems = 0;
    std::int64_t offset = 0;
  };

  [[nodiscard]] const Bucket& bucket_at(int b) const {
    return plan_.buckets.at(static_cast<std::size_t>(b));
  }
  [[nodiscard]] const PlannedParameter& parameter_at(int p) const {
    return plan_.parameters.at(static_cast<std::size_t>(p));
  }
  void expect_settled(int bucket) const;
  [[nodiscard]] BucketState& state_at(int b) { return buckets_.at(static_cast<std::size_t>(b)); }
  [[nodiscard]] const BucketState& state_at(int b) const {
    return buckets_.at(static_cast<std::size_t>(b));
  }
  [[nodiscard]] Slot& slot_at(int p) { return slots_.at(static_cast<std::size_t>(p)); }
  [[nodiscard]] const Slot& slot_at(int p) const { return slots_.at(static_cast<std::size_t>(p)); }
  [[nodiscard]] const GradientRow& open_row(int b) const {
    return plan_.gradient_row(state_at(b).open_row);
  }
  /// Of the rows of a bucket, own or all, that begin at `data`.
  [[nodiscard]] Rows rows_at(T* data, int parameter) const;
  /// Of its gradients.
  [[nodiscard]] Rows gradient_rows(int parameter);
  template <class Copy>
  void each_averaged(int row, const Copy& copy);
  [[nodiscard]] RowBlocks<T> blocks_in(const Rows& rows, int parameter) const;
  [[nodiscard]] RowBlocks<T> as_one_block(T* copy, int parameter) const;
  /// Where the gradient of a parameter adds up.
  [[nodiscard]] RowBlocks<T> gradient_place(int parameter);
  /// Calls visit(slot of a shard, shard number) for all slots of the parameter in all rows.
  template <class Visit>
  void each_slot(const Rows& rows, int parameter, const Visit& visit) const;
  /// Calls visit(first element, number of elements) for the padding behind each shard.
  template <class Visit>
  void each_padding(const Rows& rows, int parameter, const Visit& visit) const;
  /// \throws InternalError if the parameter is on meta, or has not the dtype of the plan
  void require_made(int parameter) const;
  void allocate_storage();
  void count_storage(int parameter, DType dtype, void (Ledger::*count)(MemoryKind, std::int64_t));
  void draw_whole(int parameter, WholeParameters<T>& whole);
  void draw_shard(int parameter);
  /// Draws the true shard, of the dtype of the plan.
  void fill_shard(int parameter, T* shard) const;
  [[nodiscard]] T* slot_of(int parameter) {
    return state_at(parameter_at(parameter).bucket).storage.data() +
           slot_at(parameter).offset_elems;
  }
  void open_gradients(int row);
  void close_gradients(int bucket);
  bool end_gradient(int parameter, bool is_last);
  void check_storage_padding(int bucket);
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
