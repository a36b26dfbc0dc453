#pragma once

#include <cstdint>
#include <vector>

#include "engine/activation_exchange.h"
#include "engine/cross_entropy.h"
#include "engine/local_model.h"
#include "plan/activation_part.h"

namespace hpsim {

/// The samples of a part of the model's input or target, `features` elements per position, of a
/// pass, as they are drawn: rounded to the dtype of the run, but for tokens. With a shift, of data
/// ranks that come so much later.
template <class T>
void draw_samples(const Scenario& scenario, const Pass& pass, const char* name,
                  const FillSpec& fill, const ActivationPart& part, std::int64_t features,
                  std::int64_t shift, T* data);

/// The loss of what one rank holds of the model's output, and the gradient of that.
template <class T>
class LocalLoss {
 public:
  /// `plan` must outlive the object. \pre its model has modules
  LocalLoss(const Plan& plan, const Coordinate& coordinate);

  /// Draws the target, see draw_samples; of a cross entropy whose classes are cut over ranks, what
  /// they gather.
  [[nodiscard]] CollectiveEnds<T> begin(const Pass& pass, std::int64_t shift,
                                        const LocalActivation<T>& output,
                                        LocalActivation<T>& gradient, RankMemory<T>& memory);
  /// The loss, and its gradient into `gradient`, not yet rounded to its dtype.
  [[nodiscard]] T finish(const LocalActivation<T>& output, LocalActivation<T>& gradient,
                         RankMemory<T>& memory);
  /// The class of the first logit of the rank; null where there are no classes.
  [[nodiscard]] std::int64_t* first_class() {
    return is_cross_entropy() ? &classes_.first : nullptr;
  }

 private:
  [[nodiscard]] bool is_cross_entropy() const {
    return scenario_.training.loss == LossKind::CrossEntropy;
  }
  /// Rows in a row that have loss terms, divided by one number, or that have none.
  struct Run {
    std::int64_t first = 0;
    std::int64_t count = 0;
    bool is_valid = true;
    T divisor = 1;
  };

  void find_runs(const Pass& pass);
  void append_run(std::int64_t count, bool is_valid, T divisor);
  [[nodiscard]] T finish_mse(const T* y, T* dy) const;
  [[nodiscard]] T finish_cross_entropy(const T* y, const T* combined, T* dy) const;

  const Scenario& scenario_;
  std::int64_t features_ = 0;  ///< of the output, on all ranks together
  ActivationPart part_;        ///< of the output
  LocalClasses classes_;       ///< its features, as a cross entropy takes them
  std::int64_t rows_ = 0;
  std::int64_t num_parts_ = 1;     ///< ranks over which the features of a row are cut
  std::vector<Run> runs_;          ///< of the pass at hand, in order
  LocalActivation<T> targets_;     ///< cross entropy: a token per row
  LocalActivation<T> statistics_;  ///< cross entropy: of own classes
  LocalActivation<T> gathered_;    ///< of all parts; none if that is one
};

}  // namespace hpsim
