#pragma once

#include <vector>

#include "plan/plan.h"

namespace hpsim {

// The passes of build_plan, in order. Each is a function from plan to plan with a predicate that
// holds before it and one that holds after; build_plan checks both.

/// Fills Plan::values, modules, loss, output and redistributions: the layouts of activations
/// (module_layouts; the loss takes the model's output as it is given, but Replicate where it is
/// Partial), what brings them to the layout in which a module reads them, once for all readers in
/// one layout, their gradients back by the transposed redistribution, added up over the readers,
/// and when each is of no more use, of values that backward computes again twice. Nothing in
/// backward serves the model's input.
///
///   up colwise, gelu, down rowwise    forward up, gelu, down; all_reduce tp of down's output
///                                     backward down, gelu, up: no redistribution
///   in replicate, up colwise          backward: all_reduce tp of the gradient of up's input, in
///                                     which each tp rank has a term
///   up, mid colwise, down rowwise     forward: all_gather tp of mid's input; backward:
///                                     reduce_scatter tp of its gradient
///   wq, wk, wv colwise of one x       backward: their terms are added, then one all_reduce
[[nodiscard]] Plan lay_out_activations(Plan plan);
[[nodiscard]] bool has_activations(const Plan& plan);

/// Fills Plan::parameters: layout and groups of every parameter (multi-dim RFC 2.2.1 and 2.2.5).
///
///   mesh (rep 2, fsdp 4), rows 7          placements                     shard_size dp_size
///   rank_size cut                                   [R, RaggedShard (2,2,2,1)]     4          2 8
///   in replicate_params                   [R, R]                         1          8       8
///   enable_param_shard false              [R, R]                         1          8       8
///   mesh (x 8) without any role           [R]                            1          8       8
///   smaller than min_shard_bytes          [R, R]                         1          8       8
///   in ignored_params                     [R, R]                         1          1       1
///   mesh (dp 8), shard_size 4, 8 rows     [R, Shard(0)]                  4          2       8
///     its dims are then (dp.replicate 2, dp.shard 4)
///   mesh (fsdp 4, tp 2), tp "Shard(0)"    [RaggedStridedShard, Shard(0)] 4          1       4
///   mesh (tp 8), tp "Shard(1)"            [Shard(1)]                     1          1       1
[[nodiscard]] Plan lay_out_parameters(Plan plan);
[[nodiscard]] bool has_parameters(const Plan& plan);

/// Fills Plan::buckets: the parameters of a unit that share groups and are reduced over the same
/// mesh dims within them, packed end to end by padded size, in model order but those with partial
/// dims last. A gradient is reduced along its partial_dims. Ignored parameters have a bucket each.
///
///   data_dims        cut over fsdp, replicas over rep    scatter   all_reduce   partial
///   rep, fsdp                                            fsdp      rep          -
///   fsdp                                                 fsdp      -            -
///   rep              (complete along fsdp: own row)      -         rep          -
///   rep, fsdp, x     (x has no role)                     fsdp      rep          x
/// Parameters of other dtypes, gathered or reduced, have other buckets; with comm_fusion "none"
/// every parameter has one.
[[nodiscard]] Plan form_buckets(Plan plan);
/// Whether parameters of two buckets of a unit are gathered and reduced in one way: they lie in one
/// bucket where collectives are fused.
[[nodiscard]] bool is_reduced_alike(const Bucket& a, const Bucket& b);
/// The row of the gradients of some parameters of a bucket, given in its order.
[[nodiscard]] GradientRow gradient_row(const Plan& plan, int bucket,
                                       const std::vector<int>& parameters);
/// Per unit: indices of its buckets, ascending.
[[nodiscard]] std::vector<std::vector<int>> buckets_by_unit(const Plan& plan);
[[nodiscard]] bool has_buckets(const Plan& plan);

/// Appends forward, loss and backward of every micro-batch, clipping and optimizer of every
/// optimizer step, with unshard and reshard of each unit around its compute (PyTorch FSDP2's order:
/// the root unit is gathered first in forward and in backward, and freed last), and the
/// redistributions that modules and loss ask for; the forward of parts that are computed again
/// comes once more before the backward of their last module (plan/recomputation.h). What is there
/// is not gathered again:
///
///   reshard_after    forward backward    all_gathers of a unit in M micro-batches
///                    true    true        2 M
///                    false   true        M
///                    true    false       M + 1
///                    false   false       1
///
/// reshard_after_forward null: true, but the root unit stays whole. With forward_prefetch or
/// backward_prefetch n, right after a unit's own unshard those of the next n units of the pass are
/// begun (UnshardOrder), as far as these are not whole or begun already: an Unshard that is_async,
/// and, where it would be the unit's own, a WaitUnshard. Three layers and a root, n = 1:
///
///   forward     unshard root; begin L0; wait L0, begin L1, forward L0; wait L1, ...
///   backward    unshard root; begin L2; wait L2, begin L1, backward L2; wait L1, ...
///
/// Nothing is begun in forward for backward.
[[nodiscard]] Plan schedule_compute(Plan plan);
[[nodiscard]] bool has_compute(const Plan& plan);

/// Inserts after each unit's backward: reduce-scatter, all-reduce over replicas, local scale where
/// no collective carries it, all-reduce over partial dims, store (multi-dim RFC 2.2.2). No unit's
/// row waits for another unit, so that one is alive at a time, however many units there are. Fills
/// Plan::gradient_rows and Step::rows. Of micro-batches:
///
///   gradients are     all-reduces     reduce-scattered    all-reduced, stored
///   synced            are done
///   no                -               -                   -: gradients add up
///   yes               yes             yes                 yes, and stored ones add up
///   yes               no              yes, if cut over    what needs no all-reduce; else rows that
///                                     ranks               were scattered, or gradients, add up
///
/// What needs no all-reduce waits where a parameter that it is, or would be, fused with needs one.
/// Where these rows add up, they are of all parameters that have a gradient in some micro-batch.
[[nodiscard]] Plan insert_reductions(Plan plan);
[[nodiscard]] bool has_reductions(const Plan& plan);

/// Inserts after each optimizer step the all-reduces that average the weights of copies which were
/// updated by gradients of their own: one per bucket with average_dims, of those parameters that
/// the step updates, scaled by 1 / their number (multi-dim RFC 2.2.4). The gradients of such a
/// bucket are reduced over nothing; what 1/F is more than 1 / number of copies is applied to them
/// locally, together with k.
///
///   mesh (tp 8), data_dims tp, w copied              scale_gradient by k, average_weights x 1/8
///   mesh (tp 8), data_dims tp, w cut over tp         scale_gradient by k/8, nothing is averaged
///   mesh (rep 2, ep 4), both data dims, w cut over ep
///                                                    scale_gradient by k/4, average_weights x 1/2
[[nodiscard]] Plan insert_weight_sync(Plan plan);
[[nodiscard]] bool needs_weight_sync(const Plan& plan);
[[nodiscard]] bool has_weight_sync(const Plan& plan);

}  // namespace hpsim
