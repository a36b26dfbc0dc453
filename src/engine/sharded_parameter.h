#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace hpsim {

/// The parameter that an optimizer updates: the true shard of this rank, no padding. Optimizers
/// take the object once, before parameters are made; whatever swaps its tensor later
/// (materialisation, a load, a change of dtype: RankMemory::reset_sharded_param) changes what it
/// views, never which object it is.
template <class T>
struct ShardedParameter {
  T* data = nullptr;  ///< prefix of its padded slot; on meta nothing
  std::int64_t elems = 0;
  DType dtype = DType::Float32;
  bool is_on_meta = true;  ///< shape and dtype are known, storage there is none
};

}  // namespace hpsim
