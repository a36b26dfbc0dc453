// Collectives that ranks leave out.

#include "engine/faults/exchange_tools.h"

namespace hpsim {
namespace {

using IsKind = bool (*)(const Step& step);

template <class T, IsKind is_kind>
class SkippedExchange : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  std::optional<CollectiveCall> change_call(EngineParts<T>& /*engine*/,
                                            const CollectiveCall& call) override {
    const Step& step = this->step_at(call.plan_step);
    if (!is_kind(step) || !is_aimed_at(this->plan(), this->fault(), step)) return call;
    keep_own(this->plan(), this->rank(), call);
    return std::nullopt;
  }
};

template <IsKind is_kind>
bool has_exchange(const Plan& plan, const FaultSpec& fault) {
  return any_exchange(plan, fault, is_kind);
}

template <class T>
using SkipAllGather = SkippedExchange<T, is_all_gather>;
template <class T>
using SkipReduceScatter = SkippedExchange<T, is_reduce_scatter>;
template <class T>
using SkipAllReduce = SkippedExchange<T, is_all_reduce>;
template <class T>
using SkipPartialAllReduce = SkippedExchange<T, is_partial_reduce>;
template <class T>
using SkipActivationCollective = SkippedExchange<T, is_of_activation>;
template <class T>
using SkipLossCollective = SkippedExchange<T, is_of_loss>;
template <class T>
using SkipNormAllReduce = SkippedExchange<T, is_of_norm>;
template <class T>
using SkipWeightAverage = SkippedExchange<T, is_weight_average>;

}  // namespace

std::vector<EngineFaultKind> skipped_exchanges() {
  return {
      engine_fault<SkipAllGather>("skip_all_gather", has_exchange<is_all_gather>),
      engine_fault<SkipReduceScatter>("skip_reduce_scatter", has_exchange<is_reduce_scatter>),
      engine_fault<SkipAllReduce>("skip_all_reduce", has_exchange<is_all_reduce>),
      engine_fault<SkipPartialAllReduce>("skip_partial_all_reduce",
                                         has_exchange<is_partial_reduce>),
      engine_fault<SkipActivationCollective>("skip_activation_collective",
                                             has_exchange<is_of_activation>),
      engine_fault<SkipLossCollective>("skip_loss_collective", has_exchange<is_of_loss>),
      engine_fault<SkipNormAllReduce>("skip_norm_all_reduce", has_exchange<is_of_norm>),
      engine_fault<SkipWeightAverage>("skip_weight_average", has_exchange<is_weight_average>),
  };
}

}  // namespace hpsim
