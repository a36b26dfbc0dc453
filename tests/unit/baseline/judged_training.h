#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "naive_training.h"
#include "scenario/scenario.h"
#include "trace/reference_run.h"

namespace hpsim::test {

enum Kind { kLoss, kGradient, kParameter, kState, kNorm, kFreeLoss, kFreeNorm, kNumKinds };
inline constexpr std::array<const char*, kNumKinds> kNames = {
    "loss", "gradient", "parameter", "state", "norm", "free loss", "free norm"};

/// Largest err / bound per kind.
using Worst = std::array<double, kNumKinds>;

[[nodiscard]] double ratio_of(double got, double expected, double spread, double unit);

struct Judge {
  double unit = 0;
  Worst worst{};
  double vacuity = 0;  ///< largest median bound over median |expected| of a judged tensor

  void scalar(Kind kind, double got, const ReferenceScalar& expected);
  void tensor(Kind kind, const std::vector<double>& got, const ReferenceTensor& expected);
};

/// Trains naively, lets the baseline judge every step, and returns the largest ratios.
template <class T>
[[nodiscard]] Judge judge_training(const Scenario& scenario, std::uint32_t seed,
                                   Fault fault = Fault::None);

/// sgd without and with momentum, nesterov's, adam, adamw.
[[nodiscard]] const std::vector<OptimizerSpec>& optimizers();

/// Every scenario with every optimizer: checks that no training leaves its bounds and that none of
/// them is vacuous, and returns the largest ratios of all.
template <class T>
[[nodiscard]] Worst judge_all(std::vector<Scenario> all, std::uint32_t num_seeds);

}  // namespace hpsim::test
