// What experts and their gradients inherit, against the sample variance of their results under
// random errors: of one of their inputs, of all, and where rows share them.

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include "baseline/tracked_arithmetic.h"
#include "sample_variances.h"
#include "support/catch.h"

namespace hpsim {
namespace {

using test::random_tensor;
using test::ratios;
using test::Tensors;
using test::tolerance;

enum Input : std::size_t { kX, kLogits, kW1, kW2, kW3, kDy, kNumInputs };
/// Results: the gradients of what goes in, and y.
constexpr std::size_t kY = kDy;

ModuleSpec experts_spec(std::int64_t top_k) {
  ModuleSpec spec;
  spec.type = ModuleType::Experts;
  spec.in_features = 5;
  spec.hidden = 3;
  spec.num_experts = 4;
  spec.top_k = top_k;
  return spec;
}

/// 6 rows by 4 experts; only the inputs listed have errors.
Tensors draw_inputs(std::mt19937& random, const std::vector<Input>& with_errors) {
  Tensors inputs;
  for (const auto& [rows, cols] : {std::pair{6, 5}, {6, 4}, {12, 5}, {20, 3}, {12, 5}, {6, 5}})
    inputs.push_back(random_tensor(random, rows, cols));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (std::count(with_errors.begin(), with_errors.end(), i) == 0) inputs[i].variance.clear();
  }
  return inputs;
}

test::Operation operation(std::int64_t top_k, std::size_t result) {
  return [spec = experts_spec(top_k), result](TrackedArithmetic& a, const Tensors& t) {
    return result == kY ? a.experts(spec, t[kX], t[kLogits], t[kW1], t[kW2], t[kW3])
                        : a.experts_gradients(spec, t[kX], t[kLogits], t[kW1], t[kW2], t[kW3],
                                              t[kDy])[result];
  };
}

/// All results: experts and their gradients are computed once.
std::vector<std::pair<double, double>> all_ratios(const Rounding& claims, std::int64_t top_k,
                                                  const Tensors& inputs, bool is_shared) {
  return test::ratios_of_all(
      claims,
      [spec = experts_spec(top_k)](TrackedArithmetic& a, const Tensors& t) {
        auto gradients =
            a.experts_gradients(spec, t[kX], t[kLogits], t[kW1], t[kW2], t[kW3], t[kDy]);
        Tensors results(std::make_move_iterator(gradients.begin()),
                        std::make_move_iterator(gradients.end()));
        results.push_back(a.experts(spec, t[kX], t[kLogits], t[kW1], t[kW2], t[kW3]));
        return results;
      },
      inputs, is_shared);
}

TEST_CASE("what experts inherit from one input is what their results have of it", "[.slow]") {
  struct Case {
    Input source;
    std::vector<std::size_t> results;
  };
  // An error of a hidden layer's output reaches its input's gradient on several ways, and
  // deviations of several experts add up: those are not here.
  const std::vector<Case> cases = {{kLogits, {kX, kLogits, kW1, kW2, kW3, kY}},
                                   {kW2, {kLogits}},
                                   {kDy, {kLogits, kW1, kW2, kW3}}};
  std::mt19937 random(3);
  for (const std::int64_t top_k : {1, 2, 4}) {
    for (const Case& one : cases) {
      const Tensors inputs = draw_inputs(random, {one.source});
      for (const std::size_t result : one.results) {
        INFO("top " << top_k << " input " << one.source << " result " << result);
        const auto [smallest, largest] = ratios(operation(top_k, result), inputs, false);
        CHECK(smallest >= 1 - tolerance());
        CHECK(largest <= 1 + tolerance());
      }
    }
  }
}

// Errors reach a result on two ways, which the formulas take as independent: (a + b)² <= 2 (a² +
// b²).
TEST_CASE("claimed variances of experts are at least half of results'") {
  std::mt19937 random(9);
  for (const std::int64_t top_k : {1, 2, 4}) {
    const Tensors inputs = draw_inputs(random, {kX, kLogits, kW1, kW2, kW3, kDy});
    const auto all = all_ratios(Rounding{0, 6.5, false}, top_k, inputs, false);
    for (std::size_t result = 0; result < kNumInputs; ++result) {
      INFO("top " << top_k << " result " << result);
      const auto [smallest, largest] = all[result];
      CHECK(smallest >= 0.02);  // where the two cancel
      CHECK(largest <= 2 * (1 + tolerance()));
    }
  }
}

TEST_CASE("samples that share errors stay within what experts claim") {
  std::mt19937 random(10);
  const Tensors inputs = draw_inputs(random, {kX, kLogits, kDy});
  const auto all = all_ratios(Rounding{0, 6.5, true}, 2, inputs, true);
  for (std::size_t result = 0; result < kNumInputs; ++result) {
    INFO("result " << result);
    CHECK(all[result].second <= 1 + tolerance());
  }
}

// 6 equal rows with one error: the claim takes them as independent, but for their token.
TEST_CASE("rows of one token have their errors in common in gradients of experts") {
  std::mt19937 random(11);
  Tensors inputs = draw_inputs(random, {kDy});
  for (const Input input : {kX, kLogits, kDy}) {
    TrackedTensor& tensor = inputs[input];
    for (Eigen::Index row = 1; row < tensor.value.rows; ++row) {
      tensor.value.map().row(row) = tensor.value.map().row(0);
      if (!tensor.is_exact()) tensor.variance_map().row(row) = tensor.variance_map().row(0);
    }
  }
  const TrackedTensor tokens{PlainTensor<double>(6, 1, AlignedVector<double>(6, 1)), {}};
  for (const Input result : {kW1, kW2, kW3}) {
    const auto [smallest, largest] = ratios(
        Rounding{0, 6.5, false},
        [&](TrackedArithmetic& a, const Tensors& t) {
          a.set_tokens(tokens);
          return operation(2, result)(a, t);
        },
        inputs, true);
    INFO("result " << result);
    CHECK(smallest >= 1 - tolerance());
    CHECK(largest <= 1 + tolerance());
  }
}

}  // namespace
}  // namespace hpsim
