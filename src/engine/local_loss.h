#pragma once

#include <cstdint>

#include "engine/activation_exchange.h"
#include "engine/local_model.h"
#include "plan/activation_part.h"

namespace hpsim {

/// The samples of a part of the model's input or target, `features` elements per position, of an
/// optimizer step.
template <class T>
void draw_samples(const Scenario& scenario, std::int64_t step, const char* name,
                  const FillSpec& fill, const ActivationPart& part, std::int64_t features, T* data);

/// The loss of what one rank holds of the model's output, and the gradient of that.
template <class T>
class LocalLoss {
 public:
  /// `plan` must outlive the object. \pre its model has modules
  LocalLoss(const Plan& plan, const Coordinate& coordinate);

  /// Draws the target; of a cross entropy whose classes are cut over ranks, what they gather.
  [[nodiscard]] CollectiveEnds<T> begin(std::int64_t step, const LocalActivation<T>& output,
                                        LocalActivation<T>& gradient, RankMemory<T>& memory);
  /// The loss, and its gradient into `gradient`.
  [[nodiscard]] T finish(const LocalActivation<T>& output, LocalActivation<T>& gradient,
                         RankMemory<T>& memory);

 private:
  [[nodiscard]] bool is_cross_entropy() const {
    return scenario_.training.loss == LossKind::CrossEntropy;
  }
  [[nodiscard]] T finish_mse(const T* y, T* dy, std::int64_t elems) const;

  const Scenario& scenario_;
  std::int64_t features_ = 0;  ///< of the output, on all ranks together
  ActivationPart part_;        ///< of the output
  std::int64_t rows_ = 0;
  std::int64_t num_parts_ = 1;  ///< ranks over which the features of a row are cut
  T divisor_ = 1;
  LocalActivation<T> targets_;     ///< cross entropy: a token per row
  LocalActivation<T> statistics_;  ///< cross entropy: of own classes
  LocalActivation<T> gathered_;    ///< of all parts; none if that is one
};

}  // namespace hpsim
