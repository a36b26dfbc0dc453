#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "baseline/tracked_arithmetic.h"

namespace hpsim::test {

using Tensors = std::vector<TrackedTensor>;
using Operation = std::function<TrackedTensor(TrackedArithmetic&, const Tensors&)>;

/// An operation and what it takes.
struct Row {
  const char* name;
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes;
  Operation operation;
};

/// Values in ±1, deviations of at most 1e-4: errors are first order.
[[nodiscard]] TrackedTensor random_tensor(std::mt19937& random, std::int64_t rows,
                                          std::int64_t cols);

/// Sample variance over claimed variance, smallest and largest of all elements, for inputs with
/// independent errors, or with one common to every sample (row) of a column.
[[nodiscard]] std::pair<double, double> ratios(const Operation& operation, const Tensors& inputs,
                                               bool is_shared);
/// Where the claims may take errors as independent that are not.
[[nodiscard]] std::pair<double, double> ratios(const Rounding& claims, const Operation& operation,
                                               const Tensors& inputs, bool is_shared);

/// The same of several results of one operation.
using Operations = std::function<Tensors(TrackedArithmetic&, const Tensors&)>;
[[nodiscard]] std::vector<std::pair<double, double>> ratios_of_all(const Rounding& claims,
                                                                   const Operations& operations,
                                                                   const Tensors& inputs,
                                                                   bool is_shared);

/// k standard deviations of a sample variance, sqrt(2 / trials) each.
[[nodiscard]] double tolerance();

}  // namespace hpsim::test
