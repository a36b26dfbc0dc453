// What every operation inherits, against the sample variance of its results under random errors.

#include "baseline/tracked_arithmetic.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "base/confidence.h"
#include "support/catch.h"
#include "support/scenarios.h"

namespace hpsim {
namespace {

constexpr double kDeviation = 1e-4;  ///< of errors of size-1 numbers: first order
constexpr int kTrials = 4000;

using Tensors = std::vector<TrackedTensor>;
using Operation = std::function<TrackedTensor(TrackedArithmetic&, const Tensors&)>;

TrackedTensor random_tensor(std::mt19937& random, std::int64_t rows, std::int64_t cols) {
  std::uniform_real_distribution<double> value(-1, 1);
  std::uniform_real_distribution<double> deviation(0.2 * kDeviation, kDeviation);
  TrackedTensor tensor{PlainTensor<double>(rows, cols), {}};
  for (double& element : tensor.value.data) {
    element = value(random);
    tensor.variance.push_back(std::pow(deviation(random), 2));
  }
  return tensor;
}

/// The tensor with errors: independent ones, or one common to every sample (row) of a column.
TrackedTensor disturbed(std::mt19937& random, const TrackedTensor& tensor, bool is_shared) {
  std::normal_distribution<double> normal;
  TrackedTensor result{tensor.value, {}};
  std::vector<double> common;
  for (std::int64_t i = 0; i < tensor.value.cols; ++i)
    common.push_back(normal(random));
  for (std::size_t i = 0; i < result.value.data.size(); ++i) {
    const double error =
        is_shared ? common[i % static_cast<std::size_t>(tensor.value.cols)] : normal(random);
    result.value.data[i] += std::sqrt(tensor.variance[i]) * error;
  }
  return result;
}

/// Sample variance over claimed variance, smallest and largest of all elements.
std::pair<double, double> ratios(const Operation& operation, const Tensors& inputs,
                                 bool is_shared) {
  std::mt19937 random(7);
  TrackedArithmetic arithmetic(Rounding{0, 6.5, is_shared});
  const TrackedTensor claimed = operation(arithmetic, inputs);
  std::vector<double> squares(claimed.value.data.size());
  for (int trial = 0; trial < kTrials; ++trial) {
    Tensors noisy;
    for (const TrackedTensor& input : inputs) {
      noisy.push_back(disturbed(random, input, is_shared));
    }
    const TrackedTensor got = operation(arithmetic, noisy);
    for (std::size_t i = 0; i < squares.size(); ++i) {
      squares[i] += std::pow(got.value.data[i] - claimed.value.data[i], 2) / kTrials;
    }
  }
  std::pair<double, double> range{INFINITY, 0};
  for (std::size_t i = 0; i < squares.size(); ++i) {
    range.first = std::min(range.first, squares[i] / claimed.variance[i]);
    range.second = std::max(range.second, squares[i] / claimed.variance[i]);
  }
  return range;
}

TrackedTensor as_tensor(const TrackedScalar& scalar) {
  return {PlainTensor<double>(1, 1, {scalar.value}), {scalar.variance}};
}

struct Row {
  const char* name;
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes;
  Operation operation;
};

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

/// k standard deviations of a sample variance, sqrt(2 / trials) each.
double tolerance() {
  return confidence_multiplier(1000) * std::sqrt(2.0 / kTrials);
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
