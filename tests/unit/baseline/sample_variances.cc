#include "sample_variances.h"

#include <algorithm>
#include <cmath>

#include "base/confidence.h"

namespace hpsim::test {
namespace {

constexpr double kDeviation = 1e-4;
constexpr int kTrials = 4000;

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
  std::mt19937 random(7);
  TrackedArithmetic arithmetic(claims);
  const TrackedTensor claimed = operation(arithmetic, inputs);
  std::vector<double> squares(claimed.value.data.size());
  for (int trial = 0; trial < kTrials; ++trial) {
    Tensors noisy;
    for (const TrackedTensor& input : inputs)
      noisy.push_back(disturbed(random, input, is_shared));
    const TrackedTensor got = operation(arithmetic, noisy);
    for (std::size_t i = 0; i < squares.size(); ++i) {
      squares[i] += std::pow(got.value.data[i] - claimed.value.data[i], 2) / kTrials;
    }
  }
  std::pair<double, double> range{INFINITY, 0};
  for (std::size_t i = 0; i < squares.size(); ++i) {
    constexpr double kNothing = 1e-20;  // float64's own roundings, far below what errors make
    if (claimed.variance[i] < kNothing && squares[i] < kNothing) continue;
    range.first = std::min(range.first, squares[i] / claimed.variance[i]);
    range.second = std::max(range.second, squares[i] / claimed.variance[i]);
  }
  return range;
}

double tolerance() {
  return confidence_multiplier(1000) * std::sqrt(2.0 / kTrials);
}

}  // namespace hpsim::test
