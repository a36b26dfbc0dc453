#pragma once

#include <vector>

namespace hpsim {

/// Parameters and optimizer state as full tensors in float64.
struct TrainingState {
  std::vector<std::vector<double>> parameters;          ///< like Scenario::parameters
  std::vector<std::vector<std::vector<double>>> state;  ///< [state tensor][parameter]
  /// Like `state`, where its tensors are means over ranks: how far the ranks are from them, as the
  /// mean of the squared distances. Tensors are empty where all ranks hold the same.
  std::vector<std::vector<std::vector<double>>> scatter;
};

}  // namespace hpsim
