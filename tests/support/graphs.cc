#include "support/graphs.h"

#include <utility>

namespace hpsim::test {

int GraphBuilder::append(ModuleSpec spec) {
  model_.modules.push_back(std::move(spec));
  return static_cast<int>(model_.modules.size());
}

int GraphBuilder::linear(const std::string& name, int x, std::int64_t in, std::int64_t out,
                         bool bias, int tied_to) {
  ModuleSpec spec;
  spec.name = name;
  spec.inputs = {x};
  spec.in_features = in;
  spec.out_features = out;
  spec.bias = bias;
  spec.tied_to = tied_to;
  return append(std::move(spec));
}

int GraphBuilder::activation(const std::string& name, int x, ModuleType type) {
  ModuleSpec spec;
  spec.name = name;
  spec.type = type;
  spec.inputs = {x};
  return append(std::move(spec));
}

int GraphBuilder::layer_norm(const std::string& name, int x, std::int64_t dim, double eps) {
  ModuleSpec spec;
  spec.name = name;
  spec.type = ModuleType::LayerNorm;
  spec.inputs = {x};
  spec.in_features = dim;
  spec.eps = eps;
  return append(std::move(spec));
}

int GraphBuilder::rms_norm(const std::string& name, int x, std::int64_t dim, double eps) {
  const int y = layer_norm(name, x, dim, eps);
  model_.modules.back().type = ModuleType::RmsNorm;
  model_.modules.back().bias = false;
  return y;
}

int GraphBuilder::embedding(const std::string& name, std::int64_t num_rows, std::int64_t dim) {
  ModuleSpec spec;
  spec.name = name;
  spec.type = ModuleType::Embedding;
  spec.inputs = {0};
  spec.in_features = num_rows;
  spec.out_features = dim;
  return append(std::move(spec));
}

int GraphBuilder::core(const std::string& name, int q, int k, int v, std::int64_t heads,
                       std::int64_t kv_heads, std::int64_t head_dim, bool causal) {
  ModuleSpec spec;
  spec.name = name;
  spec.type = ModuleType::AttentionCore;
  spec.inputs = {q, k, v};
  spec.heads = heads;
  spec.kv_heads = kv_heads;
  spec.head_dim = head_dim;
  spec.causal = causal;
  return append(std::move(spec));
}

int GraphBuilder::silu_gate(const std::string& name, int a, int b) {
  ModuleSpec spec;
  spec.name = name;
  spec.type = ModuleType::SiluGate;
  spec.inputs = {a, b};
  return append(std::move(spec));
}

int GraphBuilder::add(const std::string& name, int a, int b) {
  ModuleSpec spec;
  spec.name = name;
  spec.type = ModuleType::Add;
  spec.inputs = {a, b};
  return append(std::move(spec));
}

int GraphBuilder::attention(const std::string& name, int x, std::int64_t dim, std::int64_t heads,
                            std::int64_t kv_heads, bool causal) {
  const std::int64_t head_dim = dim / heads;
  const int q = linear(name + ".wq", x, dim, heads * head_dim, false);
  const int k = linear(name + ".wk", x, dim, kv_heads * head_dim, false);
  const int v = linear(name + ".wv", x, dim, kv_heads * head_dim, false);
  const int y = core(name + ".core", q, k, v, heads, kv_heads, head_dim, causal);
  return linear(name + ".wo", y, heads * head_dim, dim, false);
}

int GraphBuilder::mlp(const std::string& name, int x, std::int64_t dim, std::int64_t hidden,
                      bool gated) {
  const int a = linear(name + ".w1", x, dim, hidden, false);
  const int y = gated ? silu_gate(name + ".act", a, linear(name + ".w3", x, dim, hidden, false))
                      : activation(name + ".act", a, ModuleType::Gelu);
  return linear(name + ".w2", y, hidden, dim, false);
}

int GraphBuilder::moe(const std::string& name, int x, std::int64_t dim, std::int64_t hidden,
                      std::int64_t num_experts, std::int64_t top_k) {
  ModuleSpec spec;
  spec.name = name + ".experts";
  spec.type = ModuleType::Experts;
  spec.inputs = {x, linear(name + ".router", x, dim, num_experts, false)};
  spec.in_features = dim;
  spec.hidden = hidden;
  spec.num_experts = num_experts;
  spec.top_k = top_k;
  return append(std::move(spec));
}

ModelSpec transformer_model(std::int64_t vocabulary, std::int64_t dim, std::int64_t hidden,
                            std::int64_t positions, int num_blocks, bool is_tied) {
  GraphBuilder graph({positions});
  int x = graph.embedding("tok", vocabulary, dim);
  for (int block = 0; block < num_blocks; ++block) {
    const std::string name = "blocks." + std::to_string(block);
    const int h = graph.rms_norm(name + ".r1.norm", x, dim);
    x = graph.add(name + ".r1", x, graph.attention(name + ".r1.attn", h, dim, 4, 2));
    const int g = graph.rms_norm(name + ".r2.norm", x, dim);
    x = graph.add(name + ".r2", x, graph.mlp(name + ".r2.mlp", g, dim, hidden));
  }
  x = graph.rms_norm("norm", x, dim);
  graph.linear("out", x, dim, vocabulary, false, is_tied ? 0 : -1);
  return graph.model();
}

void use_tokens(Scenario& scenario) {
  const ModuleSpec& first = scenario.model.modules.front();
  if (first.type == ModuleType::Embedding) {
    scenario.data.input.kind = FillSpec::Kind::Token;
    scenario.data.input.vocabulary = first.in_features;
  }
  scenario.training.loss = LossKind::CrossEntropy;
  scenario.data.target.kind = FillSpec::Kind::Token;
  scenario.data.target.vocabulary = output_features(scenario.model);
}

}  // namespace hpsim::test
