#include "engine/rank_optimizer.h"

#include <algorithm>

#include "base/check.h"
#include "base/dtype.h"

namespace hpsim {

template <class T>
RankOptimizer<T>::RankOptimizer(const Plan& plan, RankMemory<T>& memory,
                                ExactArithmetic& arithmetic)
    : plan_(plan),
      spec_(plan.scenario.training.optimizer),
      memory_(memory),
      arithmetic_(arithmetic),
      num_updates_(plan.parameters.size(), 0),
      states_(static_cast<std::size_t>(spec_.num_state_tensors())) {
  for (auto& tensors : states_)
    tensors.resize(plan.parameters.size());
  for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p)
    parameters_.push_back(memory.registered(p));
}

template <class T>
void RankOptimizer<T>::update(int p, const T* gradient) {
  const DType dtype = plan_.parameter(p).dtype;
  ShardedParameter<T>& parameter = *parameters_[static_cast<std::size_t>(p)];
  HPSIM_CHECK(!parameter.is_on_meta, "the optimizer holds \"{}\" as it was on meta",
              plan_.parameter(p).name);
  const OptimizedShard<T> shard{.weight = parameter.data,
                                .gradient = gradient,
                                .state = states_of(p),
                                .elems = memory_.shard_elems(p)};
  const std::int64_t number = num_updates(p)++;
  arithmetic_.run([&] { optimizer_update(spec_, number, shard); });
  for (T* const state : shard.state) {
    if (state != nullptr) arithmetic_.round(dtype, state, shard.elems);
  }
  if (!plan_.scenario.is_exact()) round_to(dtype, shard.weight, shard.elems);
}

/// Of the size that it was given, zeros from the first update on.
template <class T>
std::array<T*, 2> RankOptimizer<T>::states_of(int p) {
  std::array<T*, 2> tensors{};
  for (int s = 0; s < num_states(); ++s) {
    Buffer<T>& tensor = state(s, p);
    if (tensor.data() == nullptr) {
      const std::int64_t elems = parameters_[static_cast<std::size_t>(p)]->elems;
      tensor = memory_.take(MemoryKind::OptimizerState, plan_.parameter(p).dtype, elems);
      std::fill_n(tensor.data(), elems, T(0));
    }
    tensors[static_cast<std::size_t>(s)] = tensor.data();
  }
  return tensors;
}

template class RankOptimizer<float>;
template class RankOptimizer<double>;

}  // namespace hpsim
