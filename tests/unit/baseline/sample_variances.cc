#include "sample_variances.h"

#include <algorithm>
#include <cmath>

#include "base/confidence.h"

namespace hpsim::test {
namespace {

constexpr double kDeviation = 1e-4;
constexpr int kTrials = 2000;

TrackedTensor disturbed(std::mt19937& random, const TrackedTensor& tensor, bool is_shared) {
  if (tensor.is_exact()) return tensor;
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

}  // namespace

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

std::pair<double, double> ratios(const Operation& operation, const Tensors& inputs,
                                 bool is_shared) {
  return ratios(Rounding{0, 6.5, is_shared}, operation, inputs, is_shared);
}

std::pair<double, double> ratios(const Rounding& claims, const Operation& operation,
                                 const Tensors& inputs, bool is_shared) {
  return ratios_of_all(
      claims, [&](TrackedArithmetic& a, const Tensors& t) { return Tensors{operation(a, t)}; },
      inputs, is_shared)[0];
}

std::vector<std::pair<double, double>> ratios_of_all(const Rounding& claims,
                                                     const Operations& operations,
                                                     const Tensors& inputs, bool is_shared) {
  std::mt19937 random(7);
  TrackedArithmetic arithmetic(claims);
  const Tensors claimed = operations(arithmetic, inputs);
  std::vector<std::vector<double>> squares;
  for (const TrackedTensor& result : claimed)
    squares.emplace_back(result.value.data.size());
  for (int trial = 0; trial < kTrials; ++trial) {
    Tensors noisy;
    for (const TrackedTensor& input : inputs)
      noisy.push_back(disturbed(random, input, is_shared));
    const Tensors got = operations(arithmetic, noisy);
    for (std::size_t r = 0; r < got.size(); ++r) {
      for (std::size_t i = 0; i < squares[r].size(); ++i) {
        squares[r][i] += std::pow(got[r].value.data[i] - claimed[r].value.data[i], 2) / kTrials;
      }
    }
  }
  std::vector<std::pair<double, double>> ranges;
  for (std::size_t r = 0; r < claimed.size(); ++r) {
    std::pair<double, double>& range = ranges.emplace_back(INFINITY, 0);
    for (std::size_t i = 0; i < squares[r].size(); ++i) {
      constexpr double kNothing = 1e-20;  // float64's own roundings, far below what errors make
      const double variance = claimed[r].variance[i];
      if (variance < kNothing && squares[r][i] < kNothing) continue;
      range.first = std::min(range.first, squares[r][i] / variance);
      range.second = std::max(range.second, squares[r][i] / variance);
    }
  }
  return ranges;
}

double tolerance() {
  return confidence_multiplier(1000) * std::sqrt(2.0 / kTrials);
}

}  // namespace hpsim::test
