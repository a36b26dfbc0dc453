#include "plan/plan.h"

namespace hpsim {

PerCoordinate partial_elems(const Plan& plan, const Bucket& bucket, const PartialRange& range) {
  PerCoordinate elems;
  for (std::int64_t i = range.members.begin; i < range.members.end; ++i) {
    const int p = bucket.parameters.at(static_cast<std::size_t>(i));
    elems = elems.plus(plan.mesh(), plan.parameter(p).padded_elems);
  }
  return elems;
}

}  // namespace hpsim
