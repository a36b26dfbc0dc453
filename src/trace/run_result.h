#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "plan/plan.h"
#include "plan/token_exchange.h"
#include "trace/ledger.h"
#include "trace/training_state.h"

namespace hpsim {

/// A recorded tensor. `at` reads any dtype as float64.
struct TensorView {
  DType dtype = DType::Float32;
  const std::byte* data = nullptr;
  std::int64_t elems = 0;
  [[nodiscard]] double at(std::int64_t i) const;
};

/// What a rank recorded about one optimizer step. Plain data.
struct StepRecord {
  /// Sum of |g|^p over its gradient shards, each over its copies, p as clip_grad_norm says or 2;
  /// the largest |g| for infinity. Not of gradients that are a mean over ranks
  /// (Plan::averaged_dims).
  double norm_power = 0;
  double clip_norm = 0;      ///< the norm by which gradients were clipped; 0 where they are not
  std::int64_t inexact = 0;  ///< 1 if the floating-point INEXACT flag rose outside the rounding of
                             ///< exact mode
  BytesByKind live_after{};  ///< ledger at the end of the step
};

/// What a rank recorded about the whole run. Plain data.
struct RankRecord {
  Ledger init;    ///< until its parameters were made; `live` is what is left then
  Ledger ledger;  ///< from then on
  std::int64_t pad_allocations = 0;      ///< padded slots allocated on this rank
  std::int64_t pad_copies = 0;           ///< times padding was written
  std::int64_t padding_checked = 0;      ///< padding elements looked at when they were sent
  std::int64_t padding_nonzero = 0;      ///< of these, not zero
  std::int64_t first_nonzero_step = -1;  ///< optimizer step, -1 if none
  std::int64_t first_nonzero_parameter = -1;
  /// Numbers sent in a dtype that is emulated, and those that it does not have.
  std::int64_t wire_checked = 0;
  std::int64_t wire_foreign = 0;
  std::int64_t first_foreign = -1;   ///< into Plan::steps: where the first of these was sent
  std::int64_t num_collectives = 0;  ///< entries of `executed` that are valid
  std::int64_t done = 0;             ///< 1 once the rank has finished all steps
};

/// One collective as a rank really issued it. Plain data.
struct ExecutedCollective {
  std::int64_t plan_step = -1;  ///< into Plan::steps
  std::int64_t elems_in = 0;
  std::int64_t elems_out = 0;
  std::uint64_t tag = 0;  ///< see collective_tag
  /// Into Plan::steps: where the rank had all of it; plan_step, or the WaitUnshard of one that it
  /// only began there. -1: it did not come to that.
  std::int64_t completed_in = -1;
  CollectiveOp op = CollectiveOp::AllGather;
  DType dtype = DType::Float32;  ///< of the numbers on the wire
  bool takes_max = false;        ///< the largest of what members send, not the sum
  std::uint64_t dims = 0;        ///< bit d: its group is along mesh dim d
  std::int64_t consecutive = 0;  ///< in runs of that many members; 0: whole groups

  bool operator==(const ExecutedCollective&) const = default;
};

/// What a run writes down.
struct Recording {
  bool tensors = true;  ///< parameters, gradients and states
  bool events = true;   ///< memory around every step of the plan
};

/// Where everything that ranks record lies in one block of memory, so that forked ranks write
/// straight into memory that they share with their parent. Offsets are bytes, 64-byte aligned.
///
/// Parameters are recorded before the first step (time 0) and after each (time t + 1).
class ResultLayout {
 public:
  /// All ranks record.
  ResultLayout(const Plan& plan, Recording what);
  ResultLayout(const Plan& plan, bool records_tensors)
      : ResultLayout(plan, Recording{.tensors = records_tensors}) {}
  /// Only these ranks record, and no tensors; memory of steps as long as it is at most
  /// kMostEvents of all of them, which a mesh whose ranks are all different may pass.
  ResultLayout(const Plan& plan, std::vector<Rank> recording);
  static constexpr std::int64_t kMostEvents = std::int64_t{1} << 22;

  [[nodiscard]] std::int64_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] bool records_tensors() const { return what_.tensors; }
  [[nodiscard]] bool records_events() const { return what_.events; }
  /// The ranks that record: all, or one of each kind.
  [[nodiscard]] const std::vector<Rank>& recording() const { return recording_; }
  [[nodiscard]] std::int64_t num_steps() const { return num_steps_; }
  /// Terms of the loss that ranks record one by one: one per elementwise parameter, or one.
  [[nodiscard]] std::int64_t num_loss_terms() const { return num_loss_terms_; }
  [[nodiscard]] std::int64_t max_collectives() const { return max_collectives_; }

  [[nodiscard]] std::int64_t rank_record(Rank rank) const;
  [[nodiscard]] std::int64_t step_record(Rank rank, std::int64_t step) const;
  [[nodiscard]] std::int64_t losses(Rank rank, std::int64_t step) const;  ///< num_loss_terms
  /// One count per expert in a pass, of the experts module with that index among experts_modules.
  [[nodiscard]] std::int64_t routed(Rank rank, std::int64_t pass, int index) const;
  [[nodiscard]] std::int64_t executed(Rank rank) const;  ///< max_collectives entries
  [[nodiscard]] std::int64_t num_events() const { return num_events_; }  ///< steps of the plan
  /// num_events entries. \pre records_events()
  [[nodiscard]] std::int64_t memory_events(Rank rank) const;
  [[nodiscard]] std::int64_t held_boxes(Rank rank, int parameter) const;
  /// \pre records_tensors()
  [[nodiscard]] std::int64_t parameter(Rank rank, std::int64_t time, int parameter) const;
  [[nodiscard]] std::int64_t gradient(Rank rank, std::int64_t step, int parameter) const;
  [[nodiscard]] std::int64_t state(Rank rank, std::int64_t step, int state, int parameter) const;
  [[nodiscard]] std::int64_t shard_elems(Rank rank, int parameter) const;
  /// In which numbers are recorded: carrier_dtype.
  [[nodiscard]] DType dtype() const { return dtype_; }

 private:
  ResultLayout(const Plan& plan, std::vector<Rank> recording, Recording what);
  [[nodiscard]] std::int64_t end_of_executed(Rank rank) const;
  [[nodiscard]] std::int64_t end_of_events(Rank rank) const;
  [[nodiscard]] std::size_t slot_of(Rank rank) const;
  [[nodiscard]] std::int64_t tensors(Rank rank, std::int64_t set) const;
  [[nodiscard]] const std::vector<std::int64_t>& offsets_of(Rank rank) const;

  DType dtype_ = DType::Float32;
  Recording what_;
  std::vector<Rank> recording_;  ///< ascending
  bool is_of_all_ranks_ = true;
  std::int64_t num_steps_ = 0;
  std::int64_t num_passes_ = 0;
  std::int64_t num_loss_terms_ = 1;
  std::int64_t num_states_ = 0;
  std::int64_t max_collectives_ = 0;
  std::int64_t num_events_ = 0;
  std::vector<std::int64_t> num_experts_;  ///< per experts module
  std::int64_t size_bytes_ = 0;
  std::int64_t held_bytes_ = 0;                     ///< per rank: boxes of all parameters
  std::vector<std::int64_t> held_offset_;           ///< per parameter: of its boxes among them
  std::vector<std::int64_t> rank_begin_;            ///< per recording rank: its part of the block
  std::vector<std::int64_t> profile_of_rank_;       ///< per recording rank: entry of those below
  std::vector<std::vector<std::int64_t>> offsets_;  ///< per profile: parameter -> bytes in a set
  std::vector<std::vector<std::int64_t>> elems_;    ///< per profile: parameter -> shard elements
  std::vector<std::int64_t> set_bytes_;             ///< per profile: one tensor per parameter
};

/// What a run recorded, on every rank, for every step. Movable; the block is shared.
class RunResult {
 public:
  /// `block` holds layout.size_bytes() bytes, zeroed before ranks write into it.
  RunResult(std::string backend, ResultLayout layout, std::shared_ptr<std::byte> block);

  [[nodiscard]] const std::string& backend() const { return backend_; }
  [[nodiscard]] const ResultLayout& layout() const { return layout_; }
  /// False on `symbolic`: there are no numbers, only plan, counts and bytes.
  [[nodiscard]] bool has_numbers() const { return layout_.records_tensors(); }

  [[nodiscard]] const RankRecord& rank_record(Rank rank) const;
  [[nodiscard]] const StepRecord& step_record(Rank rank, std::int64_t step) const;
  [[nodiscard]] const ExecutedCollective* executed(Rank rank) const;
  /// One per step of the plan. \pre layout().records_events()
  [[nodiscard]] std::span<const MemoryEvent> memory_events(Rank rank) const;
  /// num_loss_terms numbers: terms of the loss that this rank computed, summed over micro-batches.
  [[nodiscard]] const double* losses(Rank rank, std::int64_t step) const;
  /// How many of the positions that the rank held in a pass it routed to each expert, of the
  /// experts module with that index among experts_modules.
  [[nodiscard]] const std::int64_t* routed(Rank rank, std::int64_t pass, int index) const;
  /// The boxes of a parameter that the rank really held.
  [[nodiscard]] std::vector<Box> held_boxes(Rank rank, int parameter) const;
  [[nodiscard]] TensorView parameter(Rank rank, std::int64_t time, int parameter) const;
  [[nodiscard]] TensorView gradient(Rank rank, std::int64_t step, int parameter) const;
  [[nodiscard]] TensorView state(Rank rank, std::int64_t step, int state, int parameter) const;

  // Writers, for the ranks themselves and for tests that plant faults.
  [[nodiscard]] RankRecord& rank_record(Rank rank);
  [[nodiscard]] StepRecord& step_record(Rank rank, std::int64_t step);
  [[nodiscard]] ExecutedCollective* executed(Rank rank);
  [[nodiscard]] std::span<MemoryEvent> memory_events(Rank rank);
  [[nodiscard]] double* losses(Rank rank, std::int64_t step);
  [[nodiscard]] std::int64_t* routed(Rank rank, std::int64_t pass, int index);
  void record_held(Rank rank, int parameter, const std::vector<Box>& boxes);
  [[nodiscard]] std::byte* bytes(std::int64_t offset) { return block_.get() + offset; }

  double connect_time_s = 0;  ///< wall time until all ranks were connected; 0 where none connect
  double run_time_s = 0;      ///< wall time from then until the last rank was done

 private:
  template <class T>
  [[nodiscard]] T* record_at(std::int64_t offset) const {
    return reinterpret_cast<T*>(block_.get() + offset);
  }
  [[nodiscard]] TensorView view(std::int64_t offset, std::int64_t elems) const;

  std::string backend_;
  ResultLayout layout_;
  std::shared_ptr<std::byte> block_;
};

/// The logical identity of a collective: sequence number, op, group, elements (but where they
/// follow from routing), dtype and unit, as one hash. Ranks of one group must enter with equal
/// tags; a difference means that they would exchange data of different things.
[[nodiscard]] std::uint64_t collective_tag(const Plan& plan, std::int64_t plan_step,
                                           std::int64_t group_index, std::int64_t elems_in,
                                           std::int64_t elems_out);

/// Where the run routed; balanced where it has no numbers. \pre both outlive what is returned
[[nodiscard]] Routing run_routing(const Plan& plan, const RunResult& run);

/// Whether every rank recorded the same in both: values of tensors (-0 is 0), losses, norms,
/// collectives, memory. \pre both are of the plan, and record alike
[[nodiscard]] bool recorded_alike(const Plan& plan, const RunResult& a, const RunResult& b);

/// What the run held after `time` optimizer steps (0: initial; its state tensors are zero), put
/// together from the shards of the first replica; optimizer state that ranks hold of their own
/// (Plan::averaged_dims) is their mean. \pre run.has_numbers()
[[nodiscard]] TrainingState assemble_state(const Plan& plan, const RunResult& run,
                                           std::int64_t time);

/// The same before each optimizer step: from what the baseline judges the steps.
[[nodiscard]] std::vector<TrainingState> states_before_steps(const Plan& plan,
                                                             const RunResult& run);

}  // namespace hpsim
