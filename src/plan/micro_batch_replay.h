#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "plan/plan.h"

namespace hpsim {

/// Follows which micro-batches reduce gradients, and compares that with what the training asks for.
/// Of micro-batches before the last one:
///
///   gradients are synced    all-reduces are done    per bucket with gradients
///   no                                              no collective of them
///   yes                     no                      a reduce-scatter where it is cut
///   yes                     yes                     and the all-reduces that it has
///
/// What the last one lacks is missing altogether, which check_sync_set says. Ignored parameters are
/// reduced before the optimizer.
class MicroBatchReplay {
 public:
  /// \pre `plan` outlives the object
  explicit MicroBatchReplay(const Plan& plan) : plan_(plan) {}

  /// What is wrong with the step, or with the pass that ends before it.
  [[nodiscard]] std::optional<std::string> take(const Step& step);

 private:
  [[nodiscard]] std::optional<std::string> unwanted(const Step& step) const;
  [[nodiscard]] std::optional<std::string> lacking() const;

  const Plan& plan_;
  std::pair<std::int64_t, std::int64_t> pass_ = {-1, -1};  ///< optimizer step, micro-batch
  std::set<int> rows_;         ///< in which backward left gradients in the pass
  std::set<int> scattered_;    ///< buckets that were reduce-scattered in it
  std::set<int> all_reduced_;  ///< buckets that were all-reduced in it
};

}  // namespace hpsim
