#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mesh/mesh.h"

namespace hpsim {

/// A number that may depend on the coordinates along some mesh dims, such as the size of what
/// tensor parallelism leaves to a rank where it cuts unevenly: 7 rows over tp 2 are (tp: 4, 3).
class PerCoordinate {
 public:
  /// The same number everywhere.
  PerCoordinate(std::int64_t value = 0) : values_{value} {}  // NOLINT: a number is one

  /// `of(coordinate)` for every coordinate along `dims`; the entries along other dims are 0. Dims
  /// along which nothing changes are left out.
  [[nodiscard]] static PerCoordinate tabulate(
      const Mesh& mesh, const MeshDims& dims,
      const std::function<std::int64_t(const Coordinate&)>& of);

  [[nodiscard]] bool is_uniform() const { return dims_.empty(); }
  [[nodiscard]] const MeshDims& dims() const { return dims_; }
  /// Row-major over `dims`.
  [[nodiscard]] const std::vector<std::int64_t>& values() const { return values_; }

  [[nodiscard]] std::int64_t at(const Mesh& mesh, const Coordinate& coordinate) const {
    if (dims_.empty()) return values_[0];
    return values_.at(static_cast<std::size_t>(mesh.index_along(dims_, coordinate)));
  }
  [[nodiscard]] std::int64_t largest() const;

  [[nodiscard]] PerCoordinate times(std::int64_t factor) const;
  [[nodiscard]] PerCoordinate plus(const Mesh& mesh, const PerCoordinate& other) const;

  bool operator==(const PerCoordinate&) const = default;

 private:
  MeshDims dims_;
  std::vector<std::int64_t> values_;
};

/// "16", or "(tp: 16, 8)" where it depends on tp; of more than 64 numbers "(tp: 8 to 16)".
[[nodiscard]] std::string to_string(const Mesh& mesh, const PerCoordinate& number);

}  // namespace hpsim
