#pragma once

#include <vector>

namespace hpsim {

/// Parameters and optimizer state as full tensors in float64.
struct TrainingState {
  std::vector<std::vector<double>> parameters;          ///< like Scenario::parameters
  std::vector<std::vector<std::vector<double>>> state;  ///< [state tensor][parameter]
};

}  // namespace hpsim
