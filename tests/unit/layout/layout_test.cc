#include "base/check.h"
#include "layout/coverage.h"
#include "layout/placement.h"
#include "layout/tensor_layout.h"
#include "support/catch.h"

namespace hpsim {
namespace {

TEST_CASE("placements print as in PyTorch and HyperParallel") {
  CHECK(to_string(Placement{Replicate{}}) == "Replicate");
  CHECK(to_string(Placement{Partial{}}) == "Partial(sum)");
  CHECK(to_string(Placement{Shard{1}}) == "Shard(1)");
  CHECK(to_string(Placement{RaggedShard{{0}, {2, 2, 2, 1}}}) == "RaggedShard((0,), (2, 2, 2, 1))");
  CHECK(to_string(std::vector<Placement>{Replicate{}, Shard{0}}) == "[Replicate, Shard(0)]");
}

TEST_CASE("fully_shard keeps Shard(0) for even cuts and writes row counts for uneven ones") {
  CHECK(fsdp_placement(32, 8) == Placement{Shard{0}});
  CHECK(fsdp_placement(7, 4) == Placement{RaggedShard{{0}, {2, 2, 2, 1}}});
  CHECK(fsdp_placement(6, 4) == Placement{RaggedShard{{0}, {2, 2, 2, 0}}});
  CHECK(fsdp_placement(2, 4) == Placement{RaggedShard{{0}, {1, 1, 0, 0}}});
  CHECK(fsdp_placement(5, 1) == Placement{Shard{0}});
}

TEST_CASE("local_box reads placements alone") {
  const Mesh line({4}, {"fsdp"});
  const TensorLayout ragged{{7, 8}, {fsdp_placement(7, 4)}};
  CHECK(local_box(ragged, line, {0}) == Box{{0, 0}, {2, 8}});
  CHECK(local_box(ragged, line, {3}) == Box{{6, 0}, {1, 8}});
  const TensorLayout empties{{2, 3}, {fsdp_placement(2, 4)}};
  CHECK(local_box(empties, line, {2}) == Box{{2, 0}, {0, 3}});
  CHECK(local_box(empties, line, {3}) == Box{{2, 0}, {0, 3}});
  const Mesh grid({2, 4}, {"rep", "fsdp"});
  const TensorLayout hsdp{{32, 64}, {Replicate{}, Shard{0}}};
  CHECK(local_box(hsdp, grid, {1, 2}) == Box{{16, 0}, {8, 64}});
  CHECK(local_box(hsdp, grid, {0, 2}) == local_box(hsdp, grid, {1, 2}));
  const TensorLayout columns{{4, 8}, {Replicate{}, Shard{1}}};
  CHECK(local_box(columns, grid, {0, 1}) == Box{{0, 2}, {4, 2}});
}

TEST_CASE("rows_along gives every coordinate's rows in one pass, as local_box does one by one") {
  using Rows = std::vector<Interval>;
  CHECK(rows_along(fsdp_placement(7, 4), 7, 4) == Rows{{0, 2}, {2, 4}, {4, 6}, {6, 7}});
  CHECK(rows_along(Shard{0}, 8, 4) == Rows{{0, 2}, {2, 4}, {4, 6}, {6, 8}});
  CHECK(rows_along(Replicate{}, 3, 2) == Rows{{0, 3}, {0, 3}});
  CHECK(rows_along(Shard{1}, 3, 2) == Rows{{0, 3}, {0, 3}});
  CHECK_THROWS_AS(rows_along(RaggedShard{{0}, {4}}, 4, 2), InternalError);
  for (std::int64_t rows = 1; rows < 20; ++rows) {
    const Mesh mesh({6}, {"fsdp"});
    const auto parts = rows_along(fsdp_placement(rows, 6), rows, 6);
    for (std::int64_t i = 0; i < 6; ++i) {
      const Box box = local_box({{rows, 2}, {fsdp_placement(rows, 6)}}, mesh, {i});
      CHECK(parts[static_cast<std::size_t>(i)] ==
            Interval{box.offset[0], box.offset[0] + box.shape[0]});
    }
  }
}

TEST_CASE("a layout that does not fit its mesh or tensor is a bug") {
  const Mesh mesh({2}, {"fsdp"});
  CHECK_THROWS_AS(local_box({{4}, {}}, mesh, {0}), InternalError);
  CHECK_THROWS_AS(local_box({{4}, {RaggedShard{{0}, {1, 2}}}}, mesh, {0}), InternalError);
  CHECK_THROWS_AS(local_box({{4}, {RaggedShard{{0}, {4}}}}, mesh, {0}), InternalError);
  const Mesh grid({2, 2}, {"a", "b"});
  CHECK_THROWS_AS(local_box({{4, 4}, {Shard{0}, Shard{0}}}, grid, {0, 0}), InternalError);
}

std::vector<FindingCode> codes(std::int64_t extent, const std::vector<Interval>& shards) {
  std::vector<FindingCode> result;
  for (const Finding& finding : tiling_findings(extent, shards, "w")) {
    result.push_back(finding.code);
    CHECK(finding.param == "w");
  }
  return result;
}

TEST_CASE("tilings: every row once, empty shards anywhere inside") {
  using Codes = std::vector<FindingCode>;
  constexpr auto kGap = FindingCode::LayoutGap;
  constexpr auto kOverlap = FindingCode::LayoutOverlap;
  CHECK(codes(7, {{0, 2}, {2, 4}, {4, 6}, {6, 7}}).empty());
  CHECK(codes(7, {{6, 7}, {2, 4}, {0, 2}, {4, 6}}).empty());
  CHECK(codes(5, {{0, 5}, {5, 5}}).empty());
  CHECK(codes(5, {{0, 2}, {2, 2}, {2, 5}}).empty());
  CHECK(codes(0, {{0, 0}}).empty());
  CHECK(codes(7, {{0, 3}, {2, 5}, {4, 7}}) == Codes{kOverlap, kOverlap});
  CHECK(codes(5, {{0, 2}, {2, 4}}) == Codes{kGap});
  CHECK(codes(5, {{1, 2}, {3, 5}}) == Codes{kGap, kGap});
  CHECK(codes(5, {{0, 5}, {6, 6}}) == Codes{kGap});
  CHECK(codes(5, {{0, 5}, {0, 5}}) == Codes{kOverlap});
  CHECK(codes(5, {}) == Codes{kGap});
}

}  // namespace
}  // namespace hpsim
