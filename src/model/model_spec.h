#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/shape.h"

namespace hpsim {

enum class ModuleType {
  Linear,
  Relu,
  Tanh,
  Silu,
  Gelu,
  LayerNorm,
  RmsNorm,
  Embedding,
  AttentionCore,
  SiluGate,
  Add,
  Experts,
};

/// "linear", "relu", "tanh", "silu", "gelu", "layer_norm", "rms_norm", "embedding",
/// "attention_core", "silu_gate", "add", "experts"
[[nodiscard]] std::string_view name_of(ModuleType type);

/// One operation of a model: what reads activations and gives one. Modules of the file that are
/// made of others stand here as these (ModuleGroup). Computes, for x of shape [positions, features]
/// with one row per position of every sample:
///   linear          x Wᵀ + b, weight [out_features, in_features], bias [out_features]
///   relu            max(x, 0), derivative 0 at 0
///   silu            x * sigmoid(x)
///   gelu            x * Phi(x), or its tanh approximation, as torch.nn.functional.gelu
///   layer_norm      (x - mean) / sqrt(var + eps) * w + b over the features, biased variance
///   rms_norm        x / sqrt(mean(x²) + eps) * w
///   embedding       row number x of weight [in_features, out_features], x a token
///   attention_core  of q, k, v: softmax(q kᵀ / sqrt(head_dim)) v for every head and sample; query
///                   head h reads key and value head h / (heads / kv_heads); causal: position i
///                   sees 0..i
///   silu_gate       of a, b: silu(a) * b
///   add             of a, b: a + b
///   experts         of x [dim] and logits [num_experts]: p = softmax(logits); of the top_k experts
///                   e by p, ties to the lower index, the sum of
///                   p_e w2_e (silu(w1_e x) * w3_e x); p is not renormalised. w1 and w3
///                   [num_experts, hidden, dim], w2 [num_experts, dim, hidden]
struct ModuleSpec {
  std::string name;  ///< fully qualified: "blocks.0.attn.wq"
  ModuleType type = ModuleType::Linear;
  /// Activations that it reads: 0 is the model's input, m + 1 the output of module m. Empty: the
  /// output of the module before it.
  std::vector<int> inputs;
  std::int64_t in_features = 0;     ///< linear, norms; embedding: number of rows of its weight;
                                    ///< experts: dim
  std::int64_t out_features = 0;    ///< linear, embedding
  bool bias = true;                 ///< linear only; a layer_norm always has one
  bool tanh_approximation = false;  ///< gelu only
  double eps = 0;                   ///< norms only
  std::int64_t heads = 0;           ///< attention_core only: of queries
  std::int64_t kv_heads = 0;        ///< attention_core only: of keys and values
  std::int64_t head_dim = 0;        ///< attention_core only
  bool causal = true;               ///< attention_core only
  std::int64_t hidden = 0;          ///< experts only: inside an expert
  std::int64_t num_experts = 0;     ///< experts only
  std::int64_t top_k = 0;           ///< experts only: per position
  int tied_to = -1;                 ///< linear, embedding: module whose weight is its weight
  bool ties_bias = false;           ///< and whose bias is its bias: that module, used once more
};

/// A module of the file that is made of others, or one of the copies of such a module that a repeat
/// makes. Its operations stand together; what it gives is the output of the last of them.
struct ModuleGroup {
  enum class Kind { Attention, Mlp, Moe, Residual, Sequential, Repeat };

  std::string name;  ///< fully qualified: "blocks.0.attn"
  int first = 0;     ///< into ModelSpec::modules
  int end = 0;       ///< behind its last
  Kind kind = Kind::Sequential;
};

/// "attention", "mlp", "moe", "residual", "sequential", "repeat"
[[nodiscard]] std::string_view name_of(ModuleGroup::Kind kind);

/// A parameter w of a layout-only model: every sample has its own input x and target t of w's
/// shape, and its loss is the mean over elements of (w x - t)² / 2.
struct ElementwiseSpec {
  std::string name;
  Shape shape;
};

/// Either modules or elementwise parameters, never both.
struct ModelSpec {
  std::vector<ModuleSpec> modules;  ///< in an order in which they can run
  std::vector<ModuleGroup> groups;  ///< in the order of their first modules, outer before inner
  Shape positions;                  ///< of a sample: {} one position, {seq} a sequence
  std::vector<ElementwiseSpec> elementwise;

  [[nodiscard]] bool is_elementwise() const { return modules.empty(); }
};

/// Name of module, or elementwise parameter, `module`.
[[nodiscard]] const std::string& module_name(const ModelSpec& model, int module);

/// The activations that a module reads, see ModuleSpec::inputs.
[[nodiscard]] std::vector<int> inputs_of(const ModelSpec& model, int module);

/// Positions of one sample: 1 where samples are vectors.
[[nodiscard]] std::int64_t num_positions(const ModelSpec& model);

/// Features of every activation, in one pass over the model: of the model's input (1 for tokens),
/// then of the output of every module. Modules without features of their own keep those of their
/// first input; where the first modules have none, the input has those that the first other takes.
///
///   linear 6 -> 10, gelu, linear 10 -> 3    6, 10, 10, 3
///   relu, linear 6 -> 10                    6, 6, 10
///   embedding of 11 tokens in 8             1, 8
///   attention_core of q 8, k 4, v 4         8
[[nodiscard]] std::vector<std::int64_t> features_along(const ModelSpec& model);

/// The experts modules of a model, ascending.
[[nodiscard]] std::vector<int> experts_modules(const ModelSpec& model);

/// Features of the model's output. \pre not elementwise
[[nodiscard]] std::int64_t output_features(const ModelSpec& model);

}  // namespace hpsim
