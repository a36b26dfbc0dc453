#pragma once

#include <vector>

#include "plan/plan.h"
#include "plan/token_exchange.h"
#include "trace/ledger.h"

namespace hpsim {

/// What the plan says about memory and padding of one rank: derived from the steps, no numbers.
struct PlannedMemory {
  Ledger init;                          ///< until parameters are made
  Ledger ledger;                        ///< from then on
  std::vector<MemoryEvent> events;      ///< per step of the plan
  std::vector<BytesByKind> live_after;  ///< at the end of each optimizer step
  std::int64_t pad_allocations = 0;     ///< padded slots allocated: storage and reduce inputs
  std::int64_t pad_copies = 0;          ///< times padding is written
};

/// The memory of the rank at `coordinate`.
///
///   kind                   bytes; w of the parameter's dtype, c of what is gathered, r of
///                          reductions
///   sharded_parameters     sum of shard_elems · w
///   padding                sum of (padded_elems − shard_elems) · w
///   unsharded_parameters   gathered_elems · c per bucket, from unshard to reshard; 0 where nothing
///                          is cut or cast: the shard is the parameter. Where shards are no rows of
///                          tensor dim 0, compute sees a copy: numel · c more for that parameter.
///                          While it is gathered, the row that was cast for it, row_elems · c;
///                          between forward and backward 1/k of it with reshard_after_forward k.
///                          Of an unshard that is only begun: gathered_elems · c from then on, the
///                          row and 1/k of it until the wait, copies from the wait on
///   unsharded_gradients    gathered elements of the gradient row · r, from first backward to
///                          reduction; such copies until its first reduction begins; a gradient
///                          that is added to one from an earlier module or micro-batch, numel · c
///   reduce_buffers         gradient row · r per bucket that is cut, from its reduction to the
///                          store; two while one is added to one that waits for its all-reduce
///   gradients              sum of shard_elems · w, from the store to the end of the step
///   optimizer_state        state tensors · sum of shard_elems · w, from the first update on
///   activations            inputs, outputs and their gradients that are alive, see below
///
/// Parameters are made before the first step: the storage of all shards is there first, then one
/// parameter after the other is drawn,
///   init_device    beside the storage, for a parameter while it is drawn
///   cpu            unsharded_parameters, numel · w of the global tensor; 0 where the rank keeps
///                  all of it, which is drawn in its place
///   meta           sharded_parameters, shard_elems · w where padding follows the shard, which
///                  reset_sharded_param then copies; 0 where the shard is its storage
///
/// Activations of a module model: every value of the plan (an activation, or a gradient of one, in
/// one layout) from the step that makes it to its last use; the model's input from the first step
/// that reads it. A change of layout holds what it sends and what arrives until it is done; an
/// all_reduce of a value of no more use works in place. A gradient that is added to another is
/// there until it is. Attention lends scratch (attention_scratch_elems); a cross entropy holds a
/// target and three numbers per position, and those of all ranks that share its classes.
/// Experts, of S positions sent, R received (equal where nothing is exchanged), dim D, hidden H of
/// the rank; indices, counts and probabilities of single positions are not counted:
///   forward     dispatch  S D sent, R D received; then R D sorted by expert, kept; forward 2 R H
///               kept, R H scratch, R D computed; combine R D sent, S D received, kept.
///               Without exchange R D sorted, 2 R H, R H scratch and R D computed, the last kept
///   backward    dispatch  S D sent, R D received, then sorted; backward 2 R H scratch, R D of the
///               inputs, if these need a gradient; combine R D sent, S D received
/// What they keep is free again once the output is there, where no backward runs or makes it anew.
/// Parts that backward computes again (plan/recomputation.h) hold from forward to backward what
/// they take; from their recomputation on what other parts hold from forward on. A part that is
/// inactive on some rank (InactiveSpec) and no residual keeps a copy of its input until its last
/// module has computed, and of the gradient of its output until its first one has. Elementwise
/// parameters keep their inputs and targets, 2·b·n, from forward to backward; b = samples of a
/// micro-batch, n is the part that TP and EP leave to the rank, and b includes the samples of all
/// ranks along data dims that cut it.
[[nodiscard]] PlannedMemory planned_memory(const Plan& plan, const Coordinate& coordinate,
                                           const Routing& routing);
/// With balanced_routing.
[[nodiscard]] PlannedMemory planned_memory(const Plan& plan, const Coordinate& coordinate);

}  // namespace hpsim
