#pragma once

#include <cstdint>
#include <string>

#include "model/model_spec.h"
#include "scenario/scenario.h"

namespace hpsim::test {

/// Builds a model operation by operation. Functions take the activation that they read and return
/// the one that they give; 0 is the model's input.
class GraphBuilder {
 public:
  explicit GraphBuilder(Shape positions = {}) { model_.positions = std::move(positions); }

  int linear(const std::string& name, int x, std::int64_t in, std::int64_t out, bool bias = true,
             int tied_to = -1);
  int activation(const std::string& name, int x, ModuleType type);
  int layer_norm(const std::string& name, int x, std::int64_t dim, double eps = 1e-5);
  int rms_norm(const std::string& name, int x, std::int64_t dim, double eps = 1e-6);
  int embedding(const std::string& name, std::int64_t num_rows, std::int64_t dim);
  int core(const std::string& name, int q, int k, int v, std::int64_t heads, std::int64_t kv_heads,
           std::int64_t head_dim, bool causal);
  int silu_gate(const std::string& name, int a, int b);
  int add(const std::string& name, int a, int b);

  /// wq, wk, wv, core, wo.
  int attention(const std::string& name, int x, std::int64_t dim, std::int64_t heads,
                std::int64_t kv_heads, bool causal = true);
  /// w1, w3, act, w2; or w1, gelu, w2.
  int mlp(const std::string& name, int x, std::int64_t dim, std::int64_t hidden, bool gated = true);

  /// router, experts.
  int moe(const std::string& name, int x, std::int64_t dim, std::int64_t hidden,
          std::int64_t num_experts, std::int64_t top_k);

  [[nodiscard]] const ModelSpec& model() const { return model_; }

 private:
  int append(ModuleSpec spec);

  ModelSpec model_;
};

/// Embedding, `num_blocks` blocks (rms_norm, attention of 4 heads over 2; rms_norm, gated mlp),
/// norm and an output over the vocabulary, of which the embedding's weight may be the weight. Names
/// as of a residual in a sequential in a repeat.
[[nodiscard]] ModelSpec transformer_model(std::int64_t vocabulary, std::int64_t dim,
                                          std::int64_t hidden, std::int64_t positions,
                                          int num_blocks, bool is_tied = false);

/// Tokens as the model's input, and tokens as targets of a cross entropy.
void use_tokens(Scenario& scenario);

}  // namespace hpsim::test
