#include "engine/activation_exchange.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/add.h"

namespace hpsim {
namespace {

std::size_t position_of(std::int64_t data_rank, const ActivationPart& part) {
  const auto it = std::lower_bound(part.data_ranks.begin(), part.data_ranks.end(), data_rank);
  HPSIM_CHECK(it != part.data_ranks.end() && *it == data_rank, "no samples of data rank {}",
              data_rank);
  return static_cast<std::size_t>(it - part.data_ranks.begin());
}

bool has_from(const Redistribution& redistribution, const std::vector<int>& freed) {
  return std::find(freed.begin(), freed.end(), redistribution.from) != freed.end();
}

}  // namespace

template <class T>
LocalActivation<T> take_activation(RankMemory<T>& memory, DType dtype, std::int64_t elems) {
  return {memory.take(MemoryKind::Activations, dtype, elems), elems, dtype};
}

template <class T>
void give_back(RankMemory<T>& memory, LocalActivation<T>& activation) {
  memory.give_back(MemoryKind::Activations, activation.dtype, activation.data, activation.elems);
  activation.elems = 0;
}

template <class T>
void add_activation(const LocalActivation<T>& from, LocalActivation<T>& to) {
  HPSIM_CHECK(from.elems == to.elems, "{} elements are added to {}", from.elems, to.elems);
  accumulate(from.data.data(), from.elems, to.data.data());
}

template <class T>
void copy_block(std::int64_t batch, const ActivationPart& block, const T* from,
                const ActivationPart& from_part, T* to, const ActivationPart& to_part) {
  const std::int64_t width = block.features.length();
  const std::int64_t count = block.positions.length();
  if (width == 0 || count == 0) return;
  /// Elements of a sample, and before the first of them that is copied.
  const auto sample_elems = [](const ActivationPart& part) {
    return part.positions.length() * part.features.length();
  };
  const auto offset = [&](const ActivationPart& part) {
    return (block.positions.begin - part.positions.begin) * part.features.length() +
           block.features.begin - part.features.begin;
  };
  const bool is_one_run =
      block.features == from_part.features && block.features == to_part.features;
  const bool are_whole_samples =
      is_one_run && block.positions == from_part.positions && block.positions == to_part.positions;
  for (const std::int64_t data_rank : block.data_ranks) {
    const auto first = [&](const ActivationPart& part) {
      return static_cast<std::int64_t>(position_of(data_rank, part)) * batch * sample_elems(part);
    };
    const T* source = from + first(from_part) + offset(from_part);
    T* target = to + first(to_part) + offset(to_part);
    if (are_whole_samples) {
      std::copy_n(source, batch * count * width, target);
      continue;
    }
    for (std::int64_t sample = 0; sample < batch; ++sample) {
      const T* row = source + sample * sample_elems(from_part);
      T* out = target + sample * sample_elems(to_part);
      if (is_one_run) {
        std::copy_n(row, count * width, out);
        continue;
      }
      for (std::int64_t i = 0; i < count; ++i)
        std::copy_n(row + i * from_part.features.length(), width,
                    out + i * to_part.features.length());
    }
  }
}

template <class T>
ActivationExchange<T>::ActivationExchange(const Plan& plan, const Redistribution& redistribution,
                                          const Coordinate& coordinate, RankMemory<T>& memory)
    : memory_(memory),
      batch_(plan.scenario.micro_batch_size()),
      op_(redistribution.transition.op),
      sizes_(redistribution_sizes(plan, redistribution, coordinate)),
      frees_from_in_({has_from(redistribution, redistribution.freed),
                      has_from(redistribution, redistribution.freed_when_recomputed)}),
      is_added_(redistribution.is_added),
      from_dtype_(plan.values.at(static_cast<std::size_t>(redistribution.from)).dtype),
      to_dtype_(plan.values.at(static_cast<std::size_t>(redistribution.to)).dtype) {
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
typename ActivationExchange<T>::Ends ActivationExchange<T>::begin(LocalActivation<T>& from,
                                                                  bool is_recomputed) {
  frees_from_ = frees_from_in_[is_recomputed ? 1 : 0];
  HPSIM_CHECK(from.elems == sizes_.before_elems, "{} elements where the plan has {}", from.elems,
              sizes_.before_elems);
  if (!communicates(op_)) return {};
  if (!is_of_parts()) {
    summed_ = frees_from_ ? std::exchange(from, {}) : copy_of(from);
    return {summed_.data.data(), summed_.data.data()};
  }
  if (sizes_.packs) {
    sent_ = memory_.take(MemoryKind::Activations, from_dtype_, sizes_.wire_in_elems(op_));
    pack(from.data.data());
  }
  arrived_ = memory_.take(MemoryKind::Activations, from_dtype_, sizes_.wire_out_elems(op_));
  return {sizes_.packs ? sent_.data() : from.data.data(), arrived_.data()};
}

template <class T>
bool ActivationExchange<T>::finish(LocalActivation<T>& from, LocalActivation<T>& to) {
  LocalActivation<T> result = take_result(from);
  const bool is_sum = op_ == RedistributeOp::AllReduce || op_ == RedistributeOp::ReduceScatter;
  const bool is_rounded = is_sum || from_dtype_ != to_dtype_;
  bool has_changed = is_rounded && round_to(to_dtype_, result.data.data(), result.elems);
  if (!is_added_) {
    to = std::move(result);
    return has_changed;
  }
  add_activation(result, to);
  give_back(memory_, result);
  return round_to(to_dtype_, to.data.data(), to.elems) || has_changed;
}

/// What the change made of `from`, which is given back where it is of no more use.
template <class T>
LocalActivation<T> ActivationExchange<T>::take_result(LocalActivation<T>& from) {
  if (!communicates(op_)) {
    LocalActivation<T> result = changed_locally(from);
    if (frees_from_) give_back(memory_, from);
    return result;
  }
  if (!is_of_parts()) return std::exchange(summed_, {});
  if (sizes_.packs)
    memory_.give_back(MemoryKind::Activations, from_dtype_, sent_, sizes_.wire_in_elems(op_));
  if (frees_from_) give_back(memory_, from);
  if (!sizes_.unpacks) return {std::move(arrived_), sizes_.wire_out_elems(op_), to_dtype_};
  LocalActivation<T> result = take_activation(memory_, to_dtype_, sizes_.after_elems);
  unpack(arrived_.data(), result.data.data());
  memory_.give_back(MemoryKind::Activations, from_dtype_, arrived_, sizes_.wire_out_elems(op_));
  return result;
}

template <class T>
LocalActivation<T> ActivationExchange<T>::copy_of(const LocalActivation<T>& from) {
  LocalActivation<T> copy = take_activation(memory_, from_dtype_, from.elems);
  std::copy_n(from.data.data(), from.elems, copy.data.data());
  return copy;
}

template <class T>
LocalActivation<T> ActivationExchange<T>::changed_locally(const LocalActivation<T>& from) {
  LocalActivation<T> changed = take_activation(memory_, to_dtype_, sizes_.after_elems);
  T* const data = changed.data.data();
  const bool has_zeros = op_ == RedistributeOp::KeepFirst || op_ == RedistributeOp::Embed;
  if (has_zeros) std::fill_n(data, changed.elems, T(0));
  if (op_ != RedistributeOp::KeepFirst || is_first_) {
    copy_block(batch_, intersection(before_, after_), from.data.data(), before_, data, after_);
  }
  return changed;
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
    copy_block(batch_, block, activation, before_,
               sent_.data() + static_cast<std::int64_t>(i) * slot, block);
  }
}

/// One slot from every member; of a reduce-scatter the one sum.
template <class T>
void ActivationExchange<T>::unpack(const T* slots, T* activation) const {
  if (op_ == RedistributeOp::ReduceScatter)
    return copy_block(batch_, after_, slots, after_, activation, after_);
  for (std::size_t i = 0; i < before_of_.size(); ++i) {
    const ActivationPart block = intersection(before_of_[i], after_);
    copy_block(batch_, block, slots + static_cast<std::int64_t>(i) * sizes_.slot_elems, block,
               activation, after_);
  }
}

#define HPSIM_INSTANTIATE(T)                                                                     \
  template LocalActivation<T> take_activation(RankMemory<T>&, DType, std::int64_t);              \
  template void give_back(RankMemory<T>&, LocalActivation<T>&);                                  \
  template void add_activation(const LocalActivation<T>&, LocalActivation<T>&);                  \
  template void copy_block(std::int64_t, const ActivationPart&, const T*, const ActivationPart&, \
                           T*, const ActivationPart&);                                           \
  template class ActivationExchange<T>;
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
