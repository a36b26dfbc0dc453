// Collectives that ranks carry out twice.

#include <utility>

#include "engine/add.h"
#include "engine/faults/exchange_tools.h"

namespace hpsim {
namespace {

/// Carries out each once more, as it was: of an all_reduce, which works in place, on its own sum.
template <class T, bool (*is_kind)(const Step&)>
class RepeatedExchange : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  std::optional<CollectiveCall> change_call(EngineParts<T>& /*engine*/,
                                            const CollectiveCall& call) override {
    const Step& step = this->step_at(call.plan_step);
    if (is_kind(step) && !step.is_async && is_aimed_at(this->plan(), this->fault(), step))
      call_ = call;
    return call;
  }

  std::optional<CollectiveCall> more(EngineParts<T>& /*engine*/,
                                     std::int64_t /*plan_step*/) override {
    return std::exchange(call_, std::nullopt);
  }

 private:
  std::optional<CollectiveCall> call_;  ///< that is to be repeated
};

/// Reduces the same gradients twice, and adds up what arrives.
template <class T>
class DoubleReduceScatter : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  std::optional<CollectiveCall> change_call(EngineParts<T>& /*engine*/,
                                            const CollectiveCall& call) override {
    const Step& step = this->step_at(call.plan_step);
    if (is_reduce_scatter(step) && is_aimed_at(this->plan(), this->fault(), step)) call_ = call;
    return call;
  }

  std::optional<CollectiveCall> more(EngineParts<T>& /*engine*/,
                                     std::int64_t /*plan_step*/) override {
    if (!call_ || is_repeated_) return std::nullopt;
    is_repeated_ = true;
    arrived_.resize(static_cast<std::size_t>(call_->elems_out));
    CollectiveCall again = *call_;
    again.output = arrived_.data();
    return again;
  }

  void after_exchange(EngineParts<T>& /*engine*/, std::int64_t /*plan_step*/) override {
    if (!call_) return;
    accumulate(arrived_.data(), call_->elems_out, static_cast<T*>(call_->output));
    call_.reset();
    is_repeated_ = false;
  }

 private:
  std::optional<CollectiveCall> call_;
  bool is_repeated_ = false;
  std::vector<T> arrived_;
};

bool is_gather_at_once(const Step& step) {
  return is_all_gather(step) && !step.is_async;
}

bool is_any_all_reduce(const Step& step) {
  return step.kind == StepKind::AllReduce;
}

template <bool (*is_kind)(const Step&)>
bool has_exchange(const Plan& plan, const FaultSpec& fault) {
  return any_exchange(plan, fault, is_kind);
}

template <class T>
using DoubleAllGather = RepeatedExchange<T, is_gather_at_once>;
template <class T>
using DoubleAllReduce = RepeatedExchange<T, is_any_all_reduce>;

}  // namespace

std::vector<EngineFaultKind> repeated_exchanges() {
  return {
      engine_fault<DoubleAllGather>("double_all_gather", has_exchange<is_gather_at_once>),
      engine_fault<DoubleAllReduce>("double_all_reduce", has_exchange<is_any_all_reduce>),
      engine_fault<DoubleReduceScatter>("double_reduce_scatter", has_exchange<is_reduce_scatter>),
  };
}

}  // namespace hpsim
