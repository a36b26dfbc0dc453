// Faults of which samples a rank reads.

#include "engine/faults/fault_tools.h"

namespace hpsim {
namespace {

/// Draws shifted samples in the optimizer steps at which the fault is aimed.
template <class T>
class ShiftedDraw : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  void before(EngineParts<T>& engine, std::int64_t plan_step) override {
    const bool is_shifted = this->fault().is_in(this->step_at(plan_step).step);
    engine.model.sample_shift() = is_shifted ? shift() : SampleShift{};
  }

 protected:
  [[nodiscard]] virtual SampleShift shift() const = 0;
};

/// The first data rank reads the samples of the second, which reads them too; or those ranks do so
/// at which the fault is aimed.
template <class T>
class SampleShifted : public ShiftedDraw<T> {
 public:
  using ShiftedDraw<T>::ShiftedDraw;
  static bool has_place(const Plan& plan, const FaultSpec& fault) {
    if (plan.scenario.num_data_ranks() == 1) return false;
    return any_rank(plan, fault,
                    [&](const Coordinate& coordinate) { return is_at(plan, fault, coordinate); });
  }

 protected:
  [[nodiscard]] SampleShift shift() const override {
    const bool shifts = is_at(this->plan(), this->fault(), this->coordinate());
    return shifts ? SampleShift{.of_input = 1, .of_target = 1} : SampleShift{};
  }

 private:
  static bool is_at(const Plan& plan, const FaultSpec& fault, const Coordinate& coordinate) {
    return !fault.ranks.empty() ||
           plan.mesh().index_along(plan.scenario.data.data_dims, coordinate) == 0;
  }
};

/// Targets are those of the next data rank.
template <class T>
class TargetOfOtherRank : public ShiftedDraw<T> {
 public:
  using ShiftedDraw<T>::ShiftedDraw;
  static bool has_place(const Plan& plan, const FaultSpec& /*fault*/) {
    return plan.scenario.num_data_ranks() > 1;
  }

 protected:
  [[nodiscard]] SampleShift shift() const override { return {.of_input = 0, .of_target = 1}; }
};

}  // namespace

std::vector<EngineFaultKind> sample_fault_kinds() {
  return {
      engine_fault<SampleShifted>("sample_shifted"),
      engine_fault<TargetOfOtherRank>("target_of_other_rank"),
  };
}

}  // namespace hpsim
