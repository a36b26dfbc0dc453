#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/shape.h"

namespace hpsim {

enum class ModuleType { Linear, Relu, Tanh, Silu, Gelu };

/// "linear", "relu", "tanh", "silu", "gelu"
[[nodiscard]] std::string_view name_of(ModuleType type);

/// One module of a model, applied after the one before it. Computes, for x of shape [batch, in]:
///   linear  x Wᵀ + b, weight [out_features, in_features], bias [out_features]
///   relu    max(x, 0), derivative 0 at 0
///   silu    x * sigmoid(x)
///   gelu    x * Phi(x), or its tanh approximation, as torch.nn.functional.gelu
struct ModuleSpec {
  std::string name;
  ModuleType type = ModuleType::Linear;
  std::int64_t in_features = 0;     ///< linear only
  std::int64_t out_features = 0;    ///< linear only
  bool bias = true;                 ///< linear only
  bool tanh_approximation = false;  ///< gelu only
};

/// A parameter w of a layout-only model: every sample has its own input x and target t of w's
/// shape, and its loss is the mean over elements of (w x - t)² / 2.
struct ElementwiseSpec {
  std::string name;
  Shape shape;
};

/// Either modules or elementwise parameters, never both.
struct ModelSpec {
  std::vector<ModuleSpec> modules;
  std::vector<ElementwiseSpec> elementwise;

  [[nodiscard]] bool is_elementwise() const { return modules.empty(); }
};

/// Name of module, or elementwise parameter, `module`.
[[nodiscard]] const std::string& module_name(const ModelSpec& model, int module);

/// Features of the model's output: out_features of the last linear. \pre not elementwise, at least
/// one linear, features agree (the scenario reader checks).
[[nodiscard]] std::int64_t output_features(const ModelSpec& model);

/// Features of the input of module `module`, for 0 <= module <= number of modules; the latter is
/// the output. Modules without features of their own keep those of their input.
///
///   linear 6 -> 10, gelu, linear 10 -> 3    0 -> 6    1 -> 10    2 -> 10    3 -> 3
///   relu, linear 6 -> 10                    0 -> 6    1 -> 6     2 -> 10
[[nodiscard]] std::int64_t features_before_module(const ModelSpec& model, int module);

/// features_before_module of every module and of the output, in one pass over the model.
[[nodiscard]] std::vector<std::int64_t> features_along(const ModelSpec& model);

}  // namespace hpsim
