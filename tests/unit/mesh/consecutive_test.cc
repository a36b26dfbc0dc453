// Groups in runs of consecutive members, and the run that a rank is in.

#include "mesh/group.h"
#include "support/catch.h"

namespace hpsim {
namespace {

using Groups = std::vector<std::vector<std::int64_t>>;

Groups runs(const Mesh& mesh, const MeshDims& dims, std::int64_t consecutive) {
  Groups result;
  for (const std::vector<Rank>& group : groups_along(mesh, dims, consecutive)) {
    result.emplace_back();
    for (const Rank rank : group)
      result.back().push_back(rank.value);
  }
  return result;
}

TEST_CASE("runs of members along one dim, along both, and along one that is not the last") {
  const Mesh mesh({2, 4}, {"rep", "fsdp"});
  CHECK(runs(mesh, {1}, 2) == Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  CHECK(runs(mesh, {0, 1}, 4) == Groups{{0, 1, 2, 3}, {4, 5, 6, 7}});
  CHECK(runs(mesh, {0, 1}, 2) == Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  // Members of a group, not neighbours by number.
  const Mesh outer({4, 2}, {"fsdp", "tp"});
  CHECK(runs(outer, {0}, 2) == Groups{{0, 2}, {4, 6}, {1, 3}, {5, 7}});
}

TEST_CASE("runs follow the order of the mesh, not of rank numbers") {
  const Mesh mesh({2, 4}, {"rep", "fsdp"}, {7, 6, 5, 4, 3, 2, 1, 0});
  CHECK(runs(mesh, {1}, 2) == Groups{{7, 6}, {5, 4}, {3, 2}, {1, 0}});
  const Mesh mixed({4}, {"fsdp"}, {3, 0, 2, 1});
  CHECK(runs(mixed, {0}, 2) == Groups{{3, 0}, {2, 1}});
}

TEST_CASE("no runs are whole groups, runs of a whole group too, runs of one all ranks") {
  const Mesh mesh({2, 4}, {"rep", "fsdp"});
  CHECK(groups_along(mesh, {1}, 0) == groups_along(mesh, {1}));
  CHECK(groups_along(mesh, {1}, 4) == groups_along(mesh, {1}));
  CHECK(runs(mesh, {0}, 1) == Groups{{0}, {4}, {1}, {5}, {2}, {6}, {3}, {7}});
}

TEST_CASE("the run of a rank, by hand") {
  const Mesh mesh({2, 4}, {"rep", "fsdp"}, {7, 6, 5, 4, 3, 2, 1, 0});
  // Rank 1 is at (1, 2): the second half of the second group.
  const GroupOfRank group = group_along(mesh, {1}, 2, Rank{1});
  CHECK(group.members == std::vector<Rank>{Rank{1}, Rank{0}});
  CHECK(group.index == 3);
  const GroupOfRank whole = group_along(mesh, {1}, 0, Rank{1});
  CHECK(whole.members == std::vector<Rank>{Rank{3}, Rank{2}, Rank{1}, Rank{0}});
  CHECK(whole.index == 1);
}

TEST_CASE("the run of a rank is the one among all runs that has it") {
  const Mesh mesh({2, 6, 2}, {"a", "b", "c"}, {11, 0,  5,  2,  9,  4,  7,  6,  1,  8,  3,  10,
                                               12, 23, 14, 21, 16, 19, 18, 17, 20, 15, 22, 13});
  std::int64_t checked = 0;
  for (const MeshDims& dims : {MeshDims{1}, {0, 1}, {1, 2}, {0, 1, 2}}) {
    for (const std::int64_t consecutive : {0, 1, 2, 3, 6}) {
      const auto groups = groups_along(mesh, dims, consecutive);
      for (std::int64_t rank = 0; rank < 24; ++rank) {
        const GroupOfRank group = group_along(mesh, dims, consecutive, Rank{rank});
        CHECK(groups.at(static_cast<std::size_t>(group.index)) == group.members);
        CHECK(std::count(group.members.begin(), group.members.end(), Rank{rank}) == 1);
        ++checked;
      }
    }
  }
  CHECK(checked == 4 * 5 * 24);
}

}  // namespace
}  // namespace hpsim
