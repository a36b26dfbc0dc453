#pragma once

#include "scenario/object_reader.h"
#include "scenario/scenario.h"

namespace hpsim {

/// Checks that involve several sections. `scenario` is complete, `file` says where things stand.

/// Parameters with padding and the samples of the whole training can be counted in 63 bits, with
/// room: at most 2^53 elements of parameters, 2^62 elements of data.
void check_sizes(const Scenario& scenario, const ObjectReader& file);

/// What exact mode needs, so that every operation is exact (README, "Bounds"): integer data with a
/// scale that is a power of two; elementwise parameters, linear, relu and embedding, also in
/// residual, sequential and repeat; mse; no clipping; sgd; lr, momentum and weight_decay zero or a
/// power of two; k, F and round_to a power of two, clamp a multiple of it. \pre the mode is exact
void check_exact_mode(const Scenario& scenario, const ObjectReader& file);

/// Operands of one module have one dtype, as PyTorch wants it: what it reads has that of its
/// parameters, and what modules without parameters read has one. Elementwise parameters take any.
/// Looked at only where the file has no other mistake.
///
///   param_dtype bfloat16, linear                               taken: units cast what they take
///   the same, cast_forward_inputs false                        refused: reads float32
///   units l0, l1, output_dtype float32, no param_dtype,
///     numerics.dtype bfloat16                                  refused: l1 reads float32
void check_dtypes(const Scenario& scenario, const ObjectReader& file);

/// Modules tied to one weight leave gradients that can be added up on each rank: along every mesh
/// dim either all of them are terms of a sum over samples, or none is. Looked at only where the
/// file has no other mistake.
void check_ties(const Scenario& scenario, const ObjectReader& file);

/// What averaging weights instead of gradients needs, so that the mean of the weights is the weight
/// that the mean gradient makes: one dtype, float32 or float64; no clipping; sgd, whose update is
/// linear; F the number of ranks, not given; no gradient that is Partial where weights are not
/// averaged (cut by fully_shard, ignored by it, or along dims outside its domain); in exact mode
/// means over a power of two of ranks. What depends on parameters is looked at only where the file
/// has no other mistake before. \pre sync_object is "weight"
void check_weight_sync(const Scenario& scenario, const ObjectReader& file);

}  // namespace hpsim
