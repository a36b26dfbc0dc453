#pragma once

#include <vector>

#include "base/dtype.h"
#include "scenario/scenario.h"

namespace hpsim {

// Which dtype numbers have at each stage of a training step (PyTorch FSDP2's MixedPrecisionPolicy;
// semantics of torch/distributed/fsdp/_fully_shard/_fsdp_param.py and _fsdp_collectives.py).
//
//   numerics float32, param_dtype bfloat16, reduce_dtype float32
//     parameter, stored gradient, optimizer state   float32   parameter_dtype
//     gathered parameter, activations, gradients    bfloat16  compute_dtype, module_dtypes
//     reduce-scatter, all-reduce, accumulation      float32   reduce_dtype
//     loss, from outputs that are cast up           float32   loss_dtype

/// Of a parameter as it is sharded, of its stored gradient and of its optimizer state.
[[nodiscard]] DType parameter_dtype(const Scenario& scenario, int p);

/// Of a parameter as it is gathered and computed with, and of the gradient that backward leaves:
/// param_dtype, or its own. What fully_shard ignores keeps its own.
[[nodiscard]] DType compute_dtype(const Scenario& scenario, int p);

/// In which gradients of a parameter add up, over micro-batches and over ranks: reduce_dtype, or
/// compute_dtype. What fully_shard ignores keeps its own.
[[nodiscard]] DType reduce_dtype(const Scenario& scenario, int p);

/// Dtypes of the activations of a module.
struct ModuleDTypes {
  std::vector<DType> inputs;      ///< in which it reads them, like inputs_of
  DType output = DType::Float32;  ///< in which it computes its output; rounded once to it
  DType given = DType::Float32;   ///< in which it hands it on: output_dtype at the end of a unit
};

/// Of all modules. A module with parameters computes in their dtype, one without in that of its
/// first input; units cast what they take (cast_forward_inputs) to param_dtype. Tokens are whole
/// numbers and never cast: their dtype is input_dtype. None if the model is elementwise.
[[nodiscard]] std::vector<ModuleDTypes> module_dtypes(const Scenario& scenario);

/// Of the model's input, and of inputs of elementwise parameters, as they are drawn. Tokens are at
/// least float32, which holds them.
[[nodiscard]] DType input_dtype(const Scenario& scenario);

/// In which an elementwise parameter p multiplies w and x, and in which it hands on the product.
struct ElementwiseDTypes {
  DType input = DType::Float32;
  DType product = DType::Float32;
  DType given = DType::Float32;
};
[[nodiscard]] ElementwiseDTypes elementwise_dtypes(const Scenario& scenario, int p);

/// In which losses are computed: float32, float64 where the run's dtype is.
[[nodiscard]] DType loss_dtype(const Scenario& scenario);

/// In which ranks hold numbers: float64 if any of the dtypes above is, else float32. Numbers of
/// narrower dtypes are held in it, rounded to what the dtype has.
[[nodiscard]] DType carrier_dtype(const Scenario& scenario);

/// Whether some numbers have another dtype than the one in which they are held.
[[nodiscard]] bool is_emulated(const Scenario& scenario);

/// The dtype that holds all numbers of both (torch.promote_types): float32 for bfloat16, float16.
[[nodiscard]] DType promoted(DType a, DType b);

/// The part of 1/F that multiplies gradients before they are summed: 1, but 1/2^j where they are
/// summed in float16, which overflows early; what is left follows after the sum. As
/// torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py: 2^j doubles while it divides F and is
/// smaller than F / 2^j.
///
///   F       2    3    4    6    8   12   16   32   64
///   2^j     2    2    2    4    4    4    4    8    8        (3: 2, as F / 1 > 1)
[[nodiscard]] double predivision(DType dtype, double divisor);

}  // namespace hpsim
