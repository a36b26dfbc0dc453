#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/finding.h"
#include "plan/plan.h"

namespace hpsim {

/// Follows what backward computes again (`activation_checkpointing`) through the steps of a plan:
/// it must be what forward did, whatever passes made of it.
class RecomputationReplay {
 public:
  /// \pre `plan` outlives the object, its model has modules
  explicit RecomputationReplay(const Plan& plan);

  struct Fault {
    FindingCode code = FindingCode::CommOrder;
    std::string message;
  };

  /// What is wrong with the next step, if anything is:
  ///
  ///   a step once more that nothing asks for, or a second time     COMM_COUNT
  ///   another one than came in forward, or in another order        COMM_ORDER
  ///   backward of a part that is not wholly computed again yet     COMM_ORDER
  ///   a unit freed between the two: it would be gathered again     COMM_ORDER
  [[nodiscard]] std::optional<Fault> take(const Step& step);

 private:
  /// What a step does, in forward and once more.
  struct Work {
    StepKind kind = StepKind::Forward;
    int module = -1;
    int redistribution = -1;
    bool operator==(const Work&) const = default;
  };
  /// Of one part, in the pass at hand.
  struct PartState {
    std::vector<Work> forward;
    std::size_t repeated = 0;  ///< of these
    bool is_faulty = false;    ///< told; what follows is no news
  };

  void begin_pass();
  [[nodiscard]] std::optional<Fault> repeat(const Step& step, int part);
  [[nodiscard]] std::optional<Fault> backward(int module, int part);
  [[nodiscard]] std::optional<Fault> reshard(int bucket) const;
  [[nodiscard]] std::string text_of(const Work& work) const;

  const Plan& plan_;
  std::pair<std::int64_t, std::int64_t> pass_ = {-1, -1};  ///< optimizer step, micro-batch
  std::vector<PartState> parts_;                           ///< like TrainingSpec::recomputed
  std::vector<std::vector<int>> parameters_;               ///< per module
  std::vector<int> awaiting_;  ///< modules computed again, whose backward is to come
};

}  // namespace hpsim
