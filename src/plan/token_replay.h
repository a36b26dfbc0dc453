#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/finding.h"
#include "plan/plan.h"

namespace hpsim {

/// Follows the positions that experts exchange through the steps of a plan.
class TokenReplay {
 public:
  /// \pre `plan` outlives the object, its model has modules
  explicit TokenReplay(const Plan& plan);

  struct Fault {
    FindingCode code = FindingCode::CommOrder;
    std::string message;
  };

  /// What is wrong with the next step, if anything is:
  ///
  ///   another order than route, dispatch, forward, combine,
  ///   once more where backward computes them again, and in
  ///   backward dispatch, backward, combine                        COMM_ORDER
  ///   a step more than these, one missing at the end of the
  ///   micro-batch, or an exchange where nothing is exchanged      COMM_COUNT
  ///   a collective that token_collective does not give               COMM_SHAPE
  [[nodiscard]] std::optional<Fault> take(const Step& step);

 private:
  [[nodiscard]] std::optional<Fault> take_in_pass(const Step& step);
  [[nodiscard]] std::optional<Fault> end_pass() const;

  const Plan& plan_;
  /// Optimizer step and micro-batch at hand.
  std::optional<std::pair<std::int64_t, std::int64_t>> pass_;
  /// A step that one micro-batch has.
  struct Wanted {
    StepKind kind = StepKind::Route;
    bool is_recomputed = false;
    [[nodiscard]] std::string text() const;
  };

  /// Per experts module that exchanges: those of a micro-batch, in order.
  std::map<int, std::vector<Wanted>> wanted_;
  std::map<int, std::size_t> taken_;  ///< how many of them came
  std::map<std::pair<int, StepKind>, std::optional<CollectiveSpec>> collectives_;
};

}  // namespace hpsim
