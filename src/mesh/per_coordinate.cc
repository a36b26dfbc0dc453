#include "mesh/per_coordinate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace hpsim {

PerCoordinate PerCoordinate::tabulate(const Mesh& mesh, const MeshDims& dims,
                                      const std::function<std::int64_t(const Coordinate&)>& of) {
  const auto values_along = [&](const MeshDims& along) {
    std::vector<std::int64_t> values;
    Coordinate coordinate(static_cast<std::size_t>(mesh.num_dims()), 0);
    do {
      values.push_back(of(coordinate));
    } while (advance(mesh, along, coordinate));
    return values;
  };
  PerCoordinate number;
  number.dims_ = dims;
  number.values_ = values_along(dims);
  for (const int dim : dims) {
    MeshDims rest = number.dims_;
    rest.erase(std::find(rest.begin(), rest.end(), dim));
    const std::vector<std::int64_t> without = values_along(rest);
    Coordinate coordinate(static_cast<std::size_t>(mesh.num_dims()), 0);
    std::size_t i = 0;
    bool changes = false;
    do {
      changes =
          changes || number.values_[i++] !=
                         without[static_cast<std::size_t>(mesh.index_along(rest, coordinate))];
    } while (advance(mesh, number.dims_, coordinate));
    if (changes) continue;
    number.dims_ = std::move(rest);
    number.values_ = without;
  }
  return number;
}

std::int64_t PerCoordinate::largest() const {
  return *std::max_element(values_.begin(), values_.end());
}

PerCoordinate PerCoordinate::times(std::int64_t factor) const {
  PerCoordinate product = *this;
  for (std::int64_t& value : product.values_)
    value *= factor;
  return product;
}

PerCoordinate PerCoordinate::plus(const Mesh& mesh, const PerCoordinate& other) const {
  if (is_uniform() && other.is_uniform()) return values_[0] + other.values_[0];
  return tabulate(mesh, union_of(dims_, other.dims_), [&](const Coordinate& coordinate) {
    return at(mesh, coordinate) + other.at(mesh, coordinate);
  });
}

std::string to_string(const Mesh& mesh, const PerCoordinate& number) {
  if (number.is_uniform()) return fmt::format("{}", number.values()[0]);
  constexpr std::size_t kMostListed = 64;
  if (number.values().size() > kMostListed) {
    return fmt::format("({}: {} to {})", mesh.names(number.dims()),
                       *std::min_element(number.values().begin(), number.values().end()),
                       number.largest());
  }
  return fmt::format("({}: {})", mesh.names(number.dims()), fmt::join(number.values(), ", "));
}

}  // namespace hpsim
