#include "plan/plan.h"

#include "base/check.h"
#include "base/interval.h"

namespace hpsim {

Shape PlannedParameter::padded_shape() const {
  Shape padded = shape;
  if (!padded.empty()) padded[0] = padded_shard_length(shape[0], sharded_group.size);
  return padded;
}

Interval PlannedParameter::rows_of(std::int64_t shard_index) const {
  HPSIM_CHECK(!shape.empty(), "\"{}\" is a scalar", name);
  return shard_interval(shape[0], {shard_index, sharded_group.size});
}

std::int64_t PlannedParameter::shard_elems(std::int64_t shard_index) const {
  return rows_of(shard_index).length() * row_elems(shape);
}

}  // namespace hpsim
