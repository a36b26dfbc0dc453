#include "mesh/mesh.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace hpsim {

bool contains(const MeshDims& dims, int dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

Mesh::Mesh(std::vector<std::int64_t> shape, std::vector<std::string> names,
           std::vector<std::int64_t> ranks)
    : shape_(std::move(shape)), names_(std::move(names)), ranks_(std::move(ranks)) {
  HPSIM_CHECK(shape_.size() == names_.size(), "{} sizes, {} names", shape_.size(), names_.size());
  for (const std::int64_t size : shape_) {
    HPSIM_CHECK(size >= 1, "mesh dim of size {}", size);
    num_ranks_ *= size;
  }
  if (ranks_.empty()) return;
  HPSIM_CHECK(static_cast<std::int64_t>(ranks_.size()) == num_ranks_, "{} ranks for {} positions",
              ranks_.size(), num_ranks_);
  positions_.assign(ranks_.size(), -1);
  for (std::size_t position = 0; position < ranks_.size(); ++position) {
    const std::int64_t rank = ranks_[position];
    HPSIM_CHECK(rank >= 0 && rank < num_ranks_ && positions_[static_cast<std::size_t>(rank)] < 0,
                "ranks are no permutation at position {}", position);
    positions_[static_cast<std::size_t>(rank)] = static_cast<std::int64_t>(position);
  }
}

std::optional<int> Mesh::find(std::string_view name) const {
  for (int dim = 0; dim < num_dims(); ++dim) {
    if (this->name(dim) == name) return dim;
  }
  return std::nullopt;
}

std::int64_t Mesh::size(const MeshDims& dims) const {
  std::int64_t product = 1;
  for (const int dim : dims)
    product *= size(dim);
  return product;
}

std::string Mesh::names(const MeshDims& dims) const {
  std::string text;
  for (const int dim : dims) {
    if (!text.empty()) text += ", ";
    text += name(dim);
  }
  return text;
}

Coordinate Mesh::coordinate_of(Rank rank) const {
  HPSIM_CHECK(rank.value >= 0 && rank.value < num_ranks_, "rank {} of {}", rank.value, num_ranks_);
  std::int64_t position =
      positions_.empty() ? rank.value : positions_[static_cast<std::size_t>(rank.value)];
  Coordinate coordinate(shape_.size());
  for (std::size_t dim = shape_.size(); dim-- > 0;) {
    coordinate[dim] = position % shape_[dim];
    position /= shape_[dim];
  }
  return coordinate;
}

Rank Mesh::rank_at(const Coordinate& coordinate) const {
  HPSIM_CHECK(coordinate.size() == shape_.size(), "coordinate of {} entries, mesh of {} dims",
              coordinate.size(), shape_.size());
  std::int64_t position = 0;
  for (std::size_t dim = 0; dim < shape_.size(); ++dim) {
    HPSIM_CHECK(coordinate[dim] >= 0 && coordinate[dim] < shape_[dim], "entry {} of size {}",
                coordinate[dim], shape_[dim]);
    position = position * shape_[dim] + coordinate[dim];
  }
  return Rank{ranks_.empty() ? position : ranks_[static_cast<std::size_t>(position)]};
}

std::int64_t Mesh::index_along(const MeshDims& dims, const Coordinate& coordinate) const {
  std::int64_t index = 0;
  for (const int dim : dims) {
    index = index * size(dim) + coordinate.at(static_cast<std::size_t>(dim));
  }
  return index;
}

Coordinate Mesh::coordinate_along(const MeshDims& dims, std::int64_t index) const {
  Coordinate coordinate(shape_.size(), 0);
  for (std::size_t i = dims.size(); i-- > 0;) {
    coordinate.at(static_cast<std::size_t>(dims[i])) = index % size(dims[i]);
    index /= size(dims[i]);
  }
  return coordinate;
}

MeshDims union_of(const MeshDims& a, const MeshDims& b) {
  MeshDims dims;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(dims));
  return dims;
}

bool advance(const Mesh& mesh, const MeshDims& dims, Coordinate& coordinate) {
  for (std::size_t i = dims.size(); i-- > 0;) {
    std::int64_t& entry = coordinate[static_cast<std::size_t>(dims[i])];
    if (++entry < mesh.size(dims[i])) return true;
    entry = 0;
  }
  return false;
}

}  // namespace hpsim
