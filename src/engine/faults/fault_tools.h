#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/faults/engine_fault.h"

namespace hpsim {

// What engine faults are made of.

/// A fault that knows the plan, its rank and its aims.
template <class T>
class AimedFault : public EngineFault<T> {
 public:
  AimedFault(const Plan& plan, Rank rank, const FaultSpec& fault)
      : plan_(plan), rank_(rank), coordinate_(plan.mesh().coordinate_of(rank)), fault_(fault) {}

 protected:
  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] Rank rank() const { return rank_; }
  [[nodiscard]] const Coordinate& coordinate() const { return coordinate_; }
  [[nodiscard]] std::int64_t at(const PerCoordinate& number) const {
    return number.at(plan_.mesh(), coordinate_);
  }
  [[nodiscard]] const FaultSpec& fault() const { return fault_; }
  [[nodiscard]] const Step& step_at(std::int64_t plan_step) const {
    return plan_.steps.at(static_cast<std::size_t>(plan_step));
  }
  /// Whether the step is of this kind, and in the optimizer step at which the fault is aimed.
  [[nodiscard]] bool is_at(std::int64_t plan_step, StepKind kind) const {
    return step_at(plan_step).kind == kind && fault_.is_in(step_at(plan_step).step);
  }
  /// Whether optimizer step and unit of a step of a bucket are those at which it is aimed.
  [[nodiscard]] bool is_aimed_at_bucket(const Step& step) const {
    return fault_.is_in(step.step) && fault_.is_in_unit(plan_.bucket(step.bucket).unit);
  }
  /// Parameters at which it is aimed.
  [[nodiscard]] std::vector<int> parameters() const;

 private:
  const Plan& plan_;
  Rank rank_;
  Coordinate coordinate_;
  FaultSpec fault_;
};

/// Whether params and unit of the fault are about a parameter.
[[nodiscard]] bool is_aimed_at(const Plan& plan, const FaultSpec& fault, int parameter);

/// Whether some parameter at which the fault is aimed is so.
[[nodiscard]] bool any_parameter(const Plan& plan, const FaultSpec& fault,
                                 const std::function<bool(int)>& is_so);

/// Whether some optimizer step at which the fault is aimed is so, `from` and later.
[[nodiscard]] bool any_step(const Plan& plan, const FaultSpec& fault, std::int64_t from,
                            const std::function<bool(std::int64_t)>& is_so);

/// Whether some rank at which the fault is aimed is so, by its coordinate.
[[nodiscard]] bool any_rank(const Plan& plan, const FaultSpec& fault,
                            const std::function<bool(const Coordinate&)>& is_so);

/// Whether some step of the plan is so, of those in optimizer steps and of buckets in units at
/// which the fault is aimed.
[[nodiscard]] bool any_plan_step(const Plan& plan, const FaultSpec& fault,
                                 const std::function<bool(const Step&)>& is_so);

/// Elements of the shard that a rank holds of a parameter.
[[nodiscard]] std::int64_t held_elems(const Plan& plan, int parameter, Rank rank);
[[nodiscard]] std::int64_t held_elems(const Plan& plan, int parameter,
                                      const Coordinate& coordinate);

/// Ranks that hold copies of each shard of a parameter.
[[nodiscard]] std::int64_t num_copies(const Plan& plan, int parameter);

/// Whether a rank at which the fault is aimed holds some of a parameter.
[[nodiscard]] bool is_held(const Plan& plan, const FaultSpec& fault, int parameter);

/// The same as what the optimizer step left, written down anew.
template <class T>
void record_parameter(EngineParts<T>& engine, std::int64_t time, int parameter);
template <class T>
void record_state(EngineParts<T>& engine, std::int64_t step, int parameter);
/// Memory that is alive now, as what a step of the plan left.
template <class T>
void record_memory(EngineParts<T>& engine, std::int64_t plan_step);

/// A copy of the shard, or of its gradient, which may be none.
template <class T>
[[nodiscard]] std::vector<T> copy_of_shard(EngineParts<T>& engine, int parameter);
template <class T>
[[nodiscard]] std::vector<T> copy_of_gradient(EngineParts<T>& engine, int parameter);

/// The row of the table of a fault class.
template <template <class> class Fault>
[[nodiscard]] EngineFaultKind engine_fault(std::string_view name,
                                           bool (*has_place)(const Plan&, const FaultSpec&)) {
  return {name, has_place,
          [](const Plan& plan, Rank rank,
             const FaultSpec& fault) -> std::unique_ptr<EngineFault<float>> {
            return std::make_unique<Fault<float>>(plan, rank, fault);
          },
          [](const Plan& plan, Rank rank,
             const FaultSpec& fault) -> std::unique_ptr<EngineFault<double>> {
            return std::make_unique<Fault<double>>(plan, rank, fault);
          }};
}

/// The same of a class that tells of its places itself.
template <template <class> class Fault>
[[nodiscard]] EngineFaultKind engine_fault(std::string_view name) {
  return engine_fault<Fault>(name, &Fault<double>::has_place);
}

// The tables of rank_fault_kinds(), by what they are about.
[[nodiscard]] std::vector<EngineFaultKind> parameter_fault_kinds();
[[nodiscard]] std::vector<EngineFaultKind> initial_fault_kinds();
[[nodiscard]] std::vector<EngineFaultKind> sample_fault_kinds();
[[nodiscard]] std::vector<EngineFaultKind> padding_fault_kinds();
[[nodiscard]] std::vector<EngineFaultKind> buffer_fault_kinds();
[[nodiscard]] std::vector<EngineFaultKind> rounding_fault_kinds();
[[nodiscard]] std::vector<EngineFaultKind> clipping_fault_kinds();
[[nodiscard]] std::vector<EngineFaultKind> activation_fault_kinds();
[[nodiscard]] std::vector<EngineFaultKind> gradient_fault_kinds();
[[nodiscard]] std::vector<EngineFaultKind> optimizer_fault_kinds();
[[nodiscard]] std::vector<EngineFaultKind> storage_fault_kinds();
[[nodiscard]] std::vector<EngineFaultKind> norm_fault_kinds();
[[nodiscard]] std::vector<EngineFaultKind> model_fault_kinds();

}  // namespace hpsim
