#pragma once

// How RankMemory walks the slots of its rows: for its own sources only.

#include "engine/rank_memory.h"

namespace hpsim {

template <class T>
template <class Visit>
void RankMemory<T>::each_slot(const Rows& rows, int p, const Visit& visit) const {
  for (std::int64_t index = 0; index < parameter_at(p).shard_size(); ++index)
    visit(rows.data + index * rows.row_elems + rows.offset, index);
}

template <class T>
template <class Visit>
void RankMemory<T>::each_padding(const Rows& rows, int p, const Visit& visit) const {
  const Slot& slot = slot_at(p);
  each_slot(rows, p, [&](T* data, std::int64_t index) {
    const std::int64_t held = hpsim::shard_elems(parameter_at(p).cut, slot.held.whole.shape, index);
    if (held < slot.padded_elems) visit(data + held, slot.padded_elems - held);
  });
}

}  // namespace hpsim
