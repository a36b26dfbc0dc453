#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace hpsim {

/// Indices of mesh dims, ascending, without repeats: "over fsdp", "over (rep, fsdp)".
using MeshDims = std::vector<int>;

[[nodiscard]] bool contains(const MeshDims& dims, int dim);

/// Ascending, each dim once.
[[nodiscard]] MeshDims union_of(const MeshDims& a, const MeshDims& b);

/// One entry per mesh dim, 0 <= entry < size of the dim.
using Coordinate = std::vector<std::int64_t>;

/// A named, row-major array of ranks: the last dim varies fastest. With `ranks`, the position of a
/// rank in that list decides where it sits, never its number.
///
///   shape (2, 4), names (rep, fsdp)           coordinate of rank 6 is (1, 2)
///   the same, ranks 7,6,5,4,3,2,1,0           coordinate of rank 6 is (0, 1)
class Mesh {
 public:
  /// \pre one name per dim, sizes >= 1, product of sizes fits 63 bits; `ranks` empty (identity) or
  ///      a permutation of 0..N-1. The scenario reader checks all this; here it is a bug.
  Mesh(std::vector<std::int64_t> shape, std::vector<std::string> names,
       std::vector<std::int64_t> ranks = {});

  [[nodiscard]] int num_dims() const { return static_cast<int>(shape_.size()); }
  [[nodiscard]] std::int64_t num_ranks() const { return num_ranks_; }
  [[nodiscard]] const std::vector<std::int64_t>& shape() const { return shape_; }
  [[nodiscard]] std::int64_t size(int dim) const {
    return shape_.at(static_cast<std::size_t>(dim));
  }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] const std::string& name(int dim) const {
    return names_.at(static_cast<std::size_t>(dim));
  }
  /// Ranks by position; empty: identity.
  [[nodiscard]] const std::vector<std::int64_t>& ranks() const { return ranks_; }
  [[nodiscard]] std::optional<int> find(std::string_view name) const;

  /// Product of the sizes of `dims`; 1 for no dims.
  [[nodiscard]] std::int64_t size(const MeshDims& dims) const;
  /// Names joined for people: "fsdp", "rep, fsdp".
  [[nodiscard]] std::string names(const MeshDims& dims) const;

  [[nodiscard]] Coordinate coordinate_of(Rank rank) const;
  [[nodiscard]] Rank rank_at(const Coordinate& coordinate) const;

  /// Row-major position of `coordinate` among the coordinates along `dims` only: the index of a
  /// rank inside its group, or of a shard among shards. 0 for no dims.
  ///
  ///   shape (2, 4), coordinate (1, 2)    dims {1} -> 2    dims {0} -> 1    dims {0, 1} -> 6
  [[nodiscard]] std::int64_t index_along(const MeshDims& dims, const Coordinate& coordinate) const;
  /// The coordinate with that index along `dims`; entries along other dims are 0.
  [[nodiscard]] Coordinate coordinate_along(const MeshDims& dims, std::int64_t index) const;

 private:
  std::vector<std::int64_t> shape_;
  std::vector<std::string> names_;
  std::vector<std::int64_t> ranks_;      // position -> rank; empty: identity
  std::vector<std::int64_t> positions_;  // rank -> position; empty: identity
  std::int64_t num_ranks_ = 1;
};

/// Moves the entries of `coordinate` along `dims` to the next row-major position; false, and all
/// these entries 0, at the end.
bool advance(const Mesh& mesh, const MeshDims& dims, Coordinate& coordinate);

}  // namespace hpsim
