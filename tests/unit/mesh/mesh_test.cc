#include "mesh/mesh.h"
#include "base/check.h"
#include "mesh/group.h"
#include "support/catch.h"

namespace hpsim {
namespace {

std::vector<std::vector<std::int64_t>> numbers(const std::vector<std::vector<Rank>>& groups) {
  std::vector<std::vector<std::int64_t>> result;
  for (const auto& group : groups) {
    result.emplace_back();
    for (const Rank rank : group)
      result.back().push_back(rank.value);
  }
  return result;
}

using Groups = std::vector<std::vector<std::int64_t>>;

TEST_CASE("coordinates are row-major, and position decides, never the rank number") {
  const Mesh mesh({2, 4}, {"rep", "fsdp"});
  CHECK(mesh.num_ranks() == 8);
  CHECK(mesh.coordinate_of(Rank{6}) == Coordinate{1, 2});
  const Mesh reversed({2, 4}, {"rep", "fsdp"}, {7, 6, 5, 4, 3, 2, 1, 0});
  CHECK(reversed.coordinate_of(Rank{6}) == Coordinate{0, 1});
  CHECK(reversed.rank_at({0, 1}) == Rank{6});
}

TEST_CASE("rank and coordinate are inverse for any shape and permutation") {
  const std::vector<std::int64_t> ranks = {5, 3, 0, 1, 4, 2};
  for (const auto& permutation : {std::vector<std::int64_t>{}, ranks}) {
    const Mesh mesh({3, 1, 2}, {"a", "b", "c"}, permutation);
    for (std::int64_t rank = 0; rank < 6; ++rank) {
      CHECK(mesh.rank_at(mesh.coordinate_of(Rank{rank})) == Rank{rank});
    }
  }
}

TEST_CASE("groups along dims, in coordinate order") {
  const Mesh mesh({2, 4}, {"rep", "fsdp"});
  CHECK(numbers(groups_along(mesh, {1})) == Groups{{0, 1, 2, 3}, {4, 5, 6, 7}});
  CHECK(numbers(groups_along(mesh, {0})) == Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
  CHECK(numbers(groups_along(mesh, {0, 1})) == Groups{{0, 1, 2, 3, 4, 5, 6, 7}});
  CHECK(groups_along(mesh, {}).size() == 8);
  const Mesh permuted({2, 2}, {"rep", "fsdp"}, {3, 1, 2, 0});
  CHECK(numbers(groups_along(permuted, {1})) == Groups{{3, 1}, {2, 0}});
  CHECK(numbers(groups_along(permuted, {0})) == Groups{{3, 2}, {1, 0}});
  CHECK(numbers({group_of(permuted, {0}, Rank{0})}) == Groups{{1, 0}});
}

TEST_CASE("every group along dims is the group of each of its members") {
  const Mesh mesh({2, 3, 2}, {"a", "b", "c"}, {11, 0, 5, 2, 9, 4, 7, 6, 1, 8, 3, 10});
  for (const MeshDims& dims : {MeshDims{}, {0}, {1}, {2}, {0, 2}, {1, 2}, {0, 1, 2}}) {
    std::size_t members = 0;
    for (const auto& group : groups_along(mesh, dims)) {
      members += group.size();
      for (std::size_t i = 0; i < group.size(); ++i) {
        CHECK(group_of(mesh, dims, group[i]) == group);
        CHECK(mesh.index_along(dims, mesh.coordinate_of(group[i])) == static_cast<std::int64_t>(i));
      }
    }
    CHECK(members == 12);
  }
}

TEST_CASE("index_along counts row-major along the dims given") {
  const Mesh mesh({2, 4}, {"rep", "fsdp"});
  CHECK(mesh.index_along({1}, {1, 2}) == 2);
  CHECK(mesh.index_along({0}, {1, 2}) == 1);
  CHECK(mesh.index_along({0, 1}, {1, 2}) == 6);
  CHECK(mesh.index_along({}, {1, 2}) == 0);
  CHECK(mesh.size(MeshDims{0, 1}) == 8);
  CHECK(mesh.names({0, 1}) == "rep, fsdp");
  CHECK(mesh.find("fsdp") == 1);
  CHECK_FALSE(mesh.find("tp").has_value());
}

TEST_CASE("a mesh that no reader would let through is a bug") {
  CHECK_THROWS_AS(Mesh({2}, {"a", "b"}), InternalError);
  CHECK_THROWS_AS(Mesh({0}, {"a"}), InternalError);
  CHECK_THROWS_AS(Mesh({2}, {"a"}, {0, 0}), InternalError);
  CHECK_THROWS_AS(Mesh({2}, {"a"}, {0}), InternalError);
  CHECK_THROWS_AS(Mesh({2}, {"a"}).coordinate_of(Rank{2}), InternalError);
}

}  // namespace
}  // namespace hpsim
