#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "plan/spec_difference.h"

namespace hpsim {

/// How many facts bucket_collective_differences looks at.
inline constexpr std::int64_t kFactsOfBucketCollective = 7;

/// In what the collective of a step that is about a bucket is not the one that its bucket, and its
/// row of gradients, ask for; nothing if it is. `is_post_forward`: a part of the bucket is kept
/// since forward, so that as many consecutive ranks as there are parts gather it.
///
///   step             op               over                 elements
///   Unshard          all_gather       the sharded group    a row in, all rows out
///   ReduceScatter    reduce_scatter   the sharded group    as many rows as shards in, one out
///   AllReduce        all_reduce       all_reduce_dims, or  its row, or the range of it
///                                     those of its range
///   AverageWeights   all_reduce       average_dims         its row
///
/// A collective of another step, another op, or the largest for the sum, is COMM_ORDER, and no more
/// is said of it.
/// \pre the step has a bucket and a collective
[[nodiscard]] std::vector<SpecDifference> bucket_collective_differences(const Plan& plan,
                                                                        const Step& step,
                                                                        bool is_post_forward);

}  // namespace hpsim
