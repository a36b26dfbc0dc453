#include <algorithm>
#include <array>

#include "plan/faults/operators.h"

namespace hpsim {
namespace {

/// The dtype of the first parameter of a bucket, if all have it; nothing: they have several.
std::optional<DType> own_dtype(const Plan& plan, const Bucket& bucket) {
  const DType dtype = plan.parameter(bucket.parameters.at(0)).dtype;
  const bool is_one = std::all_of(bucket.parameters.begin(), bucket.parameters.end(),
                                  [&](int p) { return plan.parameter(p).dtype == dtype; });
  return is_one ? std::optional(dtype) : std::nullopt;
}

/// Buckets are gathered as they are stored.
bool no_cast(Plan& plan, const FaultSpec& fault) {
  bool has_place = false;
  for (Bucket& bucket : plan.buckets) {
    const auto dtype = own_dtype(plan, bucket);
    const bool is_gathered = bucket.sharded_group.size > 1 && bucket.row_elems.largest() > 0;
    if (!fault.is_in_unit(bucket.unit) || !is_gathered || !bucket.casts || !dtype) continue;
    if (unit_roundoff(bucket.dtype) <= unit_roundoff(*dtype)) continue;
    bucket.dtype = *dtype;
    bucket.casts = false;
    has_place = true;
  }
  return has_place;
}

}  // namespace

std::span<const NamedPlanFault> storage_operators() {
  static constexpr std::array<NamedPlanFault, 1> kOperators = {{{"no_cast", no_cast}}};
  return kOperators;
}

}  // namespace hpsim
