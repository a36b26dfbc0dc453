#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "plan/activation_part.h"
#include "plan/plan.h"
#include "plan/rank_layout.h"
#include "plan/token_exchange.h"
#include "trace/ledger.h"

namespace hpsim {

/// The bytes of activations of one rank while the steps of a plan are replayed: see planned_memory.
class ActivationMemory {
 public:
  /// `held`: what the rank holds of every parameter. All must outlive the object.
  ActivationMemory(const Plan& plan, const Coordinate& coordinate, const Routing& routing,
                   const std::vector<HeldShard>& held, Ledger& ledger);

  /// \pre step.kind is Redistribute, Dispatch, Combine, Forward, Loss or Backward
  void take(const Step& step);

 private:
  /// Of an experts module in one pass, in bytes.
  struct ExpertSizes {
    std::int64_t sent = 0;      ///< of positions that the rank sends
    std::int64_t received = 0;  ///< and gets
    std::int64_t hidden = 0;    ///< of what it gets, inside the experts
    bool exchanges = false;
    bool needs_input_gradient = false;
  };

  void allocate(std::int64_t bytes) { ledger_.allocate(MemoryKind::Activations, bytes); }
  void release(std::int64_t bytes) { ledger_.release(MemoryKind::Activations, bytes); }
  void use_scratch(std::int64_t bytes);
  [[nodiscard]] std::int64_t value_bytes(int value) const {
    return value_bytes_.at(static_cast<std::size_t>(value));
  }
  [[nodiscard]] std::int64_t width_of(int value) const {
    return size_bytes(plan_.values.at(static_cast<std::size_t>(value)).dtype);
  }
  [[nodiscard]] std::int64_t sample_bytes(int parameter) const;
  void free(const std::vector<int>& values);
  void draw_input(const Step& step);
  void redistribute(const Step& step);
  void loss();
  void forward(const Step& step);
  void backward(const Step& step);
  [[nodiscard]] std::int64_t attention_scratch(int module, bool is_backward) const;
  /// Copies of what an inactive part passes on, on every rank alike: see InactiveSpec.
  void keep_inputs(const Step& step, bool begins);
  void keep_gradients(const Step& step, bool begins);

  [[nodiscard]] bool is_experts(int module) const;
  [[nodiscard]] const ExpertSizes& expert_sizes(const Step& step);
  [[nodiscard]] ExpertSizes measured_experts(const Step& step) const;
  void dispatch(const Step& step);
  void combine(const Step& step);
  void experts_forward(const Step& step);
  void experts_backward(const Step& step);
  void give_outputs(const Step& step);
  void give_input_gradients(const Step& step, std::int64_t scratch);
  void add_input_gradients(const ModulePlan& planned);

  const Plan& plan_;
  const Coordinate& coordinate_;
  const Routing& routing_;
  const std::vector<HeldShard>& held_;
  Ledger& ledger_;
  const Scenario& scenario_;
  std::vector<std::vector<int>> parameters_of_module_;
  std::int64_t drawn_pass_ = -1;              ///< the last one whose model's input is drawn
  std::vector<ActivationPart> parts_;         ///< like Plan::values
  std::vector<std::int64_t> value_bytes_;     ///< likewise
  std::vector<RedistributionSizes> changes_;  ///< per redistribution
  std::map<std::pair<std::int64_t, int>, ExpertSizes> expert_sizes_;  ///< by pass and module
};

}  // namespace hpsim
