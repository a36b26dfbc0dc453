#pragma once

#include <cstdint>
#include <vector>

#include "base/interval.h"
#include "plan/plan.h"

namespace hpsim {

/// A block of an activation [global batch, positions, features]: the samples of some data ranks, a
/// run of positions and a run of features. Stored row-major: sample after sample, data ranks
/// ascending.
struct ActivationPart {
  std::vector<std::int64_t> data_ranks;  ///< ascending; micro_batch_size samples each
  Interval positions;
  Interval features;
  bool operator==(const ActivationPart&) const = default;
};

/// What the rank at `coordinate` holds of an activation with that layout.
///
///   mesh (fsdp 2, tp 2), 6 features    [Shard(0), Shard(1)]    (1, 0) -> {1}, [0, 1), [0, 3)
///   5 positions of 6 features          [Shard(0), Shard(1)]    (1, 0) -> {1}, [0, 3), [0, 6)
///   the batch split over both          [Shard(0), Shard(0)]    (1, 0) -> {2}, [0, 6)
///                                      [Shard(0), Replicate]   (1, 0) -> {2, 3}, [0, 6)
///                                      [Replicate, Shard(0)]   (1, 0) -> {0, 2}, [0, 6)
[[nodiscard]] ActivationPart activation_part(const Scenario& scenario,
                                             const std::vector<Placement>& layout,
                                             std::int64_t features, const Coordinate& coordinate);

/// What both hold.
[[nodiscard]] ActivationPart intersection(const ActivationPart& a, const ActivationPart& b);

/// Samples, rows (a row is a position of a sample) and elements of a part.
[[nodiscard]] std::int64_t num_samples(const Scenario& scenario, const ActivationPart& part);
[[nodiscard]] std::int64_t num_rows(const Scenario& scenario, const ActivationPart& part);
[[nodiscard]] std::int64_t num_elems(const Scenario& scenario, const ActivationPart& part);

/// What a redistribution moves on one rank. A collective of parts exchanges slots of equal size,
/// one per member of the group, padded with zeros behind what they carry: what member i holds
/// before and member j after goes from i to j (torch.distributed.tensor pads uneven shards so).
struct RedistributionSizes {
  std::int64_t before_elems = 0;  ///< of what the rank holds
  std::int64_t after_elems = 0;
  std::int64_t slot_elems = 0;  ///< collectives of parts
  std::int64_t group_size = 1;
  bool packs = false;    ///< what is sent is copied into slots; else it is sent as it is held
  bool unpacks = false;  ///< what arrives is copied out of slots; else it is held as it arrives

  [[nodiscard]] std::int64_t wire_in_elems(RedistributeOp op) const;
  [[nodiscard]] std::int64_t wire_out_elems(RedistributeOp op) const;
  bool operator==(const RedistributionSizes&) const = default;
};

/// Sizes at `coordinate`.
///
///   all_gather of [b, 3] and [b, 2] into [b, 5]    slot 3 b: packed where a rank holds 2, unpacked
///   all_gather of samples                          sent as held, held as it arrives
///   all_reduce                                     in place: neither
[[nodiscard]] RedistributionSizes redistribution_sizes(const Plan& plan,
                                                       const Redistribution& redistribution,
                                                       const Coordinate& coordinate);

/// Its collective; none where nothing is sent. Cost does not depend on the number of ranks.
[[nodiscard]] std::optional<CollectiveSpec> redistribution_collective(
    const Plan& plan, const Redistribution& redistribution);

/// Queries whose scores attention works on at once; engine/attention_core.cc tells why so many.
inline constexpr std::int64_t kQueryTile = 64;

/// Scratch of attention on one rank, lent to one sample and head after the other: scores of a tile
/// of queries and all keys; backward, which works them out again, also holds their gradients.
///
///   seq 128    forward 64 * 128, backward 2 * 64 * 128      seq 5    forward 5 * 5
[[nodiscard]] std::int64_t attention_scratch_elems(std::int64_t seq, bool is_backward);

/// Coordinates of the members of the group of `coordinate` along `dims`, in group order.
[[nodiscard]] std::vector<Coordinate> group_coordinates(const Mesh& mesh, const MeshDims& dims,
                                                        const Coordinate& coordinate);

}  // namespace hpsim
