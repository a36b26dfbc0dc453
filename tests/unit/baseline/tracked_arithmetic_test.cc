// What every operation inherits, against the sample variance of its results under random errors.

#include "baseline/tracked_arithmetic.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "sample_variances.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

using test::Operation;
using test::random_tensor;
using test::ratios;
using test::Row;
using test::Tensors;
using test::tolerance;

TrackedTensor as_tensor(const TrackedScalar& scalar) {
  return {PlainTensor<double>(1, 1, {scalar.value}), {scalar.variance}};
}

std::vector<Row> operations() {
  using A = TrackedArithmetic;
  std::vector<Row> rows = {
      {"linear",
       {{3, 5}, {4, 5}, {1, 4}},
       [](A& a, const Tensors& t) { return a.linear(t[0], t[1], &t[2]); }},
      {"weight gradient",
       {{6, 4}, {6, 5}},
       [](A& a, const Tensors& t) { return a.weight_gradient(t[0], t[1]); }},
      {"bias gradient", {{6, 4}}, [](A& a, const Tensors& t) { return a.bias_gradient(t[0]); }},
      {"input gradient",
       {{3, 4}, {4, 5}},
       [](A& a, const Tensors& t) { return a.input_gradient(t[0], t[1]); }},
      {"difference",
       {{3, 4}, {3, 4}},
       [](A& a, const Tensors& t) { return a.difference(t[0], t[1]); }},
      {"scaled", {{3, 4}}, [](A& a, const Tensors& t) { return a.scaled(t[0], -2.5); }},
      {"scaled gradient",
       {{3, 4}},
       [](A& a, const Tensors& t) {
         TrackedTensor gradient = t[0];
         if (gradient.is_exact()) gradient.variance.resize(gradient.value.data.size());
         a.scale_gradient(gradient, 3, 4);
         return gradient;
       }},
      {"squares", {{3, 4}}, [](A& a, const Tensors& t) {
         TrackedSum sum;
         a.add_squares(sum, t[0]);
         return as_tensor(a.finish(sum, 0.3));
       }}};
  for (const ModuleSpec& spec :
       {test::activation("a", ModuleType::Tanh), test::activation("a", ModuleType::Silu),
        test::activation("a", ModuleType::Gelu), test::activation("a", ModuleType::Gelu, true)}) {
    rows.push_back({"activation", {{3, 4}}, [spec](A& a, const Tensors& t) {
                      return a.activation(spec, t[0]);
                    }});
    rows.push_back({"activation gradient", {{3, 4}, {3, 4}}, [spec](A& a, const Tensors& t) {
                      return a.activation_gradient(spec, t[0], t[1]);
                    }});
  }
  return rows;
}

/// Norms, gates, embeddings and cross entropies, whose formulas are the derivatives' own.
std::vector<Row> operations_of_graphs() {
  using A = TrackedArithmetic;
  std::vector<Row> rows;
  for (const auto& [type, eps] : {std::pair{ModuleType::LayerNorm, 1e-5},
                                  {ModuleType::RmsNorm, 1e-6},
                                  {ModuleType::LayerNorm, 0.5}}) {
    ModuleSpec spec;
    spec.type = type;
    spec.eps = eps;
    rows.push_back({"norm", {{3, 5}, {1, 5}, {1, 5}}, [spec](A& a, const Tensors& t) {
                      return a.norm(spec, t[0], t[1], &t[2]);
                    }});
    rows.push_back({"norm weight gradient", {{3, 5}, {3, 5}}, [spec](A& a, const Tensors& t) {
                      return a.norm_weight_gradient(spec, t[0], t[1]);
                    }});
    rows.push_back(
        {"norm input gradient", {{3, 5}, {1, 5}, {3, 5}}, [spec](A& a, const Tensors& t) {
           return a.norm_input_gradient(spec, t[0], t[1], t[2]);
         }});
  }
  rows.push_back({"silu gate", {{3, 4}, {3, 4}}, [](A& a, const Tensors& t) {
                    return a.silu_gate(t[0], t[1]);
                  }});
  for (const std::size_t i : {0U, 1U}) {
    rows.push_back({"silu gate gradient", {{3, 4}, {3, 4}, {3, 4}}, [i](A& a, const Tensors& t) {
                      return a.silu_gate_gradients(t[0], t[1], t[2])[i];
                    }});
  }
  const TrackedTensor tokens{PlainTensor<double>(4, 1, {2, 0, 3, 1}), {}};
  rows.push_back({"embedding", {{4, 3}}, [tokens](A& a, const Tensors& t) {
                    return a.embedding(tokens, t[0]);
                  }});
  rows.push_back({"embedding gradient", {{4, 3}}, [tokens](A& a, const Tensors& t) {
                    return a.embedding_gradient(t[0], tokens, 4);
                  }});
  rows.push_back({"cross entropy", {{4, 5}}, [tokens](A& a, const Tensors& t) {
                    return a.cross_entropy(t[0], tokens);
                  }});
  rows.push_back({"cross entropy gradient", {{4, 5}}, [tokens](A& a, const Tensors& t) {
                    return a.cross_entropy_gradient(t[0], tokens);
                  }});
  rows.push_back({"terms", {{3, 4}}, [](A& a, const Tensors& t) {
                    TrackedSum sum;
                    a.add_terms(sum, t[0]);
                    return as_tensor(a.finish(sum, 0.3));
                  }});
  return rows;
}

/// Attention and its three gradients, causal and over fewer heads of keys. Element 0..3 of a row of
/// q is head 0, 4..7 head 1.
std::vector<Row> attention_operations() {
  using A = TrackedArithmetic;
  ModuleSpec spec;
  spec.type = ModuleType::AttentionCore;
  spec.heads = 2;
  spec.kv_heads = 1;
  spec.head_dim = 4;
  std::vector<Row> rows;
  for (const bool is_causal : {true, false}) {
    spec.causal = is_causal;
    rows.push_back({"attention", {{5, 8}, {5, 4}, {5, 4}}, [spec](A& a, const Tensors& t) {
                      return a.attention(spec, 5, t[0], t[1], t[2]);
                    }});
    for (const std::size_t i : {0U, 1U, 2U}) {
      rows.push_back({"attention gradient",
                      {{5, 8}, {5, 4}, {5, 4}, {5, 8}},
                      [spec, i](A& a, const Tensors& t) {
                        return a.attention_gradients(spec, 5, t[0], t[1], t[2], t[3])[i];
                      }});
    }
  }
  return rows;
}

TEST_CASE("claimed variances are those of results under independent errors") {
  std::mt19937 random(3);
  for (const Row& row : operations()) {
    INFO(row.name);
    Tensors inputs;
    for (const auto& [rows, cols] : row.shapes)
      inputs.push_back(random_tensor(random, rows, cols));
    const auto [smallest, largest] = ratios(row.operation, inputs, false);
    CHECK(smallest >= 1 - tolerance());
    CHECK(largest <= 1 + tolerance());
  }
}

TEST_CASE("claimed variances of the operations of graphs are those of results, too") {
  std::mt19937 random(8);
  for (const Row& row : operations_of_graphs()) {
    INFO(row.name);
    Tensors inputs;
    for (const auto& [rows, cols] : row.shapes)
      inputs.push_back(random_tensor(random, rows, cols));
    const auto [smallest, largest] = ratios(row.operation, inputs, false);
    CHECK(smallest >= 1 - tolerance());
    CHECK(largest <= 1 + tolerance());
  }
}

// Errors reach a result on two ways, by scores and by what scores weigh, which the formulas take as
// independent: (a + b)² <= 2 (a² + b²).
TEST_CASE("claimed variances of attention are at least half of results'") {
  std::mt19937 random(9);
  for (const Row& row : attention_operations()) {
    Tensors inputs;
    for (const auto& [rows, cols] : row.shapes)
      inputs.push_back(random_tensor(random, rows, cols));
    const auto [smallest, largest] = ratios(row.operation, inputs, false);
    INFO(row.name);
    CHECK(smallest >= 0.02);  // where the two cancel
    CHECK(largest <= 2 * (1 + tolerance()));
  }
}

TEST_CASE("samples that share errors stay within what attention and norms claim") {
  std::mt19937 random(10);
  for (const auto& rows : {attention_operations(), operations_of_graphs()}) {
    for (const Row& row : rows) {
      INFO(row.name);
      Tensors inputs;
      for (const auto& [num_rows, cols] : row.shapes)
        inputs.push_back(random_tensor(random, num_rows, cols));
      CHECK(ratios(row.operation, inputs, true).second <= 1 + tolerance());
    }
  }
}

TEST_CASE("a sum of one activation with itself doubles its deviation") {
  std::mt19937 random(11);
  const auto twice = ratios([](auto& a, auto& t) { return a.sum(t[0], t[0]); },
                            {random_tensor(random, 3, 4)}, false);
  CHECK(twice.first >= 1 - tolerance());
  CHECK(twice.second <= 1 + tolerance());
  const auto rows_of_a_token = ratios(
      [](auto& a, auto& t) {
        return a.embedding_gradient(t[0], {PlainTensor<double>(3, 1, {1, 1, 1}), {}}, 2);
      },
      {random_tensor(random, 3, 4)}, true);
  CHECK(rows_of_a_token.second <= 1 + tolerance());
}

TEST_CASE("what samples share adds up as deviations") {
  std::mt19937 random(4);
  const auto run = [&](const Operation& operation, std::int64_t cols, bool has_signs) {
    TrackedTensor dy = random_tensor(random, 6, cols);
    if (!has_signs) {
      for (double& value : dy.value.data)
        value = std::abs(value);
    }
    return ratios(operation, {dy}, true);
  };
  // A sum of one column's errors is exactly as large as claimed; with factors of both signs in it,
  // smaller, never larger.
  const auto bias = run([](auto& a, auto& t) { return a.bias_gradient(t[0]); }, 4, true);
  CHECK(bias.first >= 1 - tolerance());
  CHECK(bias.second <= 1 + tolerance());
  const TrackedTensor x{random_tensor(random, 6, 3).value, {}};
  const auto weight = run([&](auto& a, auto& t) { return a.weight_gradient(t[0], x); }, 4, true);
  CHECK(weight.second <= 1 + tolerance());
  const auto products = run([&](auto& a, auto& t) { return a.column_products(x, t[0]); }, 3, true);
  CHECK(products.second <= 1 + tolerance());
  const auto squares = run(
      [](auto& a, auto& t) {
        TrackedSum sum;
        a.add_squares(sum, t[0]);
        return as_tensor(a.finish(sum, 1));
      },
      1, false);
  CHECK(squares.first >= 1 - tolerance());
  CHECK(squares.second <= 1 + tolerance());
}

TEST_CASE("elementwise products with data inherit from the parameter") {
  std::mt19937 random(5);
  const TrackedTensor x{random_tensor(random, 6, 4).value, {}};
  const auto columns = ratios([&](auto& a, auto& t) { return a.scaled_columns(x, t[0]); },
                              {random_tensor(random, 1, 4)}, false);
  CHECK(columns.first >= 1 - tolerance());
  CHECK(columns.second <= 1 + tolerance());
  const auto products = ratios([&](auto& a, auto& t) { return a.column_products(x, t[0]); },
                               {random_tensor(random, 6, 4)}, false);
  CHECK(products.first >= 1 - tolerance());
  CHECK(products.second <= 1 + tolerance());
}

}  // namespace
}  // namespace hpsim
