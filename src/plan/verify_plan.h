#pragma once

#include <stdexcept>
#include <vector>

#include "base/finding.h"
#include "plan/plan.h"

namespace hpsim {

/// A plan that must not run, with every finding of verify_plan.
class PlanRejected : public std::runtime_error {
 public:
  PlanRejected(std::vector<Finding> findings, PlanChecks checks);
  [[nodiscard]] const std::vector<Finding>& findings() const { return findings_; }
  [[nodiscard]] const PlanChecks& checks() const { return checks_; }

 private:
  std::vector<Finding> findings_;
  PlanChecks checks_;
};

/// Checks a plan before anything runs:
///   coverage        the shards of every parameter tile it once; slots of a bucket do not overlap
///                   and hold every shard; padding lies behind it
///   sync-set        the mesh dims on which a gradient is Partial, derived from the data flow, are
///                   each reduced exactly once per step, none besides, and the scale is applied
///                   once
///   plan-agreement  every collective has a group larger than one, the sizes and dtype of its
///                   bucket, and comes when its operands exist: the order is possible
///   placements      the rows that the placements imply are the rows that the cut gives, and the
///                   placements of unsharded parameters differ in the fully_shard dims only
/// Where a layout cannot be read (plan/well_formed.h), that alone is told.
/// \throws PlanRejected
[[nodiscard]] VerifiedPlan verify_plan(Plan plan);

}  // namespace hpsim
