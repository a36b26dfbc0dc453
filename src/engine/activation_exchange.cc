#include "engine/activation_exchange.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace hpsim {
namespace {

std::size_t position_of(std::int64_t data_rank, const ActivationPart& part) {
  const auto it = std::lower_bound(part.data_ranks.begin(), part.data_ranks.end(), data_rank);
  HPSIM_CHECK(it != part.data_ranks.end() && *it == data_rank, "no samples of data rank {}",
              data_rank);
  return static_cast<std::size_t>(it - part.data_ranks.begin());
}

}  // namespace

template <class T>
LocalActivation<T> take_activation(RankMemory<T>& memory, std::int64_t elems) {
  return {memory.take(MemoryKind::Activations, elems), elems};
}

template <class T>
void give_back(RankMemory<T>& memory, LocalActivation<T>& activation) {
  memory.give_back(MemoryKind::Activations, activation.data, activation.elems);
  activation.elems = 0;
}

template <class T>
void copy_block(std::int64_t local_batch, const ActivationPart& block, const T* from,
                const ActivationPart& from_part, T* to, const ActivationPart& to_part) {
  const std::int64_t count = block.features.length();
  if (count == 0) return;
  const std::int64_t from_width = from_part.features.length();
  const std::int64_t to_width = to_part.features.length();
  for (const std::int64_t data_rank : block.data_ranks) {
    const auto row = [&](const ActivationPart& part) {
      return static_cast<std::int64_t>(position_of(data_rank, part)) * local_batch;
    };
    const T* source =
        from + row(from_part) * from_width + block.features.begin - from_part.features.begin;
    T* target = to + row(to_part) * to_width + block.features.begin - to_part.features.begin;
    if (count == from_width && count == to_width) {
      std::copy_n(source, local_batch * count, target);
      continue;
    }
    for (std::int64_t sample = 0; sample < local_batch; ++sample)
      std::copy_n(source + sample * from_width, count, target + sample * to_width);
  }
}

template <class T>
ActivationExchange<T>::ActivationExchange(const Plan& plan, const Redistribution& redistribution,
                                          const Coordinate& coordinate, RankMemory<T>& memory)
    : memory_(memory),
      local_batch_(plan.scenario.local_batch()),
      op_(redistribution.transition.op),
      sizes_(redistribution_sizes(plan, redistribution, coordinate)) {
  const Transition& transition = redistribution.transition;
  const auto part = [&](const std::vector<Placement>& layout, const Coordinate& of) {
    return activation_part(plan.scenario, layout, redistribution.features, of);
  };
  before_ = part(transition.before, coordinate);
  after_ = part(transition.after, coordinate);
  is_first_ = plan.mesh().index_along(transition.mesh_dims, coordinate) == 0;
  if (!is_of_parts()) return;
  for (const Coordinate& member :
       group_coordinates(plan.mesh(), transition.mesh_dims, coordinate)) {
    before_of_.push_back(part(transition.before, member));
    after_of_.push_back(part(transition.after, member));
  }
}

template <class T>
typename ActivationExchange<T>::Ends ActivationExchange<T>::begin(LocalActivation<T>& activation) {
  HPSIM_CHECK(activation.elems == sizes_.before_elems, "{} elements where the plan has {}",
              activation.elems, sizes_.before_elems);
  if (!communicates(op_)) {
    change_locally(activation);
    return {};
  }
  if (!is_of_parts()) return {activation.data.data(), activation.data.data()};
  if (sizes_.packs) {
    sent_ = memory_.take(MemoryKind::Activations, sizes_.wire_in_elems(op_));
    pack(activation.data.data());
  }
  arrived_ = memory_.take(MemoryKind::Activations, sizes_.wire_out_elems(op_));
  return {sizes_.packs ? sent_.data() : activation.data.data(), arrived_.data()};
}

template <class T>
void ActivationExchange<T>::finish(LocalActivation<T>& activation) {
  if (!is_of_parts()) return;
  if (sizes_.packs) memory_.give_back(MemoryKind::Activations, sent_, sizes_.wire_in_elems(op_));
  give_back(memory_, activation);
  if (!sizes_.unpacks) {
    activation = {std::move(arrived_), sizes_.wire_out_elems(op_)};
    return;
  }
  activation = take_activation(memory_, sizes_.after_elems);
  unpack(arrived_.data(), activation.data.data());
  memory_.give_back(MemoryKind::Activations, arrived_, sizes_.wire_out_elems(op_));
}

template <class T>
void ActivationExchange<T>::change_locally(LocalActivation<T>& activation) {
  LocalActivation<T> changed = take_activation(memory_, sizes_.after_elems);
  T* const data = changed.data.data();
  if (op_ != RedistributeOp::Slice) std::fill_n(data, changed.elems, T(0));
  if (op_ != RedistributeOp::KeepFirst || is_first_) {
    copy_block(local_batch_, intersection(before_, after_), activation.data.data(), before_, data,
               after_);
  }
  give_back(memory_, activation);
  activation = std::move(changed);
}

/// One slot for every member that gets something else; one for all in a gather.
template <class T>
void ActivationExchange<T>::pack(const T* activation) {
  const std::int64_t slot = sizes_.slot_elems;
  const auto num_slots =
      static_cast<std::size_t>(sizes_.wire_in_elems(op_) / std::max<std::int64_t>(slot, 1));
  std::fill_n(sent_.data(), sizes_.wire_in_elems(op_), T(0));
  for (std::size_t i = 0; i < num_slots; ++i) {
    const ActivationPart block = intersection(before_, after_of_[i]);
    copy_block(local_batch_, block, activation, before_,
               sent_.data() + static_cast<std::int64_t>(i) * slot, block);
  }
}

/// One slot from every member; of a reduce-scatter the one sum.
template <class T>
void ActivationExchange<T>::unpack(const T* slots, T* activation) const {
  if (op_ == RedistributeOp::ReduceScatter)
    return copy_block(local_batch_, after_, slots, after_, activation, after_);
  for (std::size_t i = 0; i < before_of_.size(); ++i) {
    const ActivationPart block = intersection(before_of_[i], after_);
    copy_block(local_batch_, block, slots + static_cast<std::int64_t>(i) * sizes_.slot_elems, block,
               activation, after_);
  }
}

#define HPSIM_INSTANTIATE(T)                                                                     \
  template LocalActivation<T> take_activation(RankMemory<T>&, std::int64_t);                     \
  template void give_back(RankMemory<T>&, LocalActivation<T>&);                                  \
  template void copy_block(std::int64_t, const ActivationPart&, const T*, const ActivationPart&, \
                           T*, const ActivationPart&);                                           \
  template class ActivationExchange<T>;
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
