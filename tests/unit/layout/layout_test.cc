#include "base/check.h"
#include "layout/coverage.h"
#include "layout/placement.h"
#include "layout/shard_cut.h"
#include "layout/tensor_layout.h"
#include "support/catch.h"

namespace hpsim {
namespace {

using Boxes = std::vector<Box>;
using Runs = std::vector<ShardRun>;
using Placements = std::vector<Placement>;

/// Rows [begin, end) of tensor dim 0.
Interval rows_at(const TensorLayout& layout, const Mesh& mesh, const Coordinate& coordinate) {
  const Box box = local_box(layout, mesh, coordinate);
  return {box.offset[0], box.offset[0] + box.shape[0]};
}

TEST_CASE("the order in which mesh dims cut a tensor dim: by split factor, then from the left") {
  CHECK(cutting_order({Shard{0}, Shard{0}}, 0) == MeshDims{0, 1});
  CHECK(cutting_order({StridedShard{0, 2}, Shard{0}}, 0) == MeshDims{1, 0});
  CHECK(cutting_order({StridedShard{0, 4}, StridedShard{0, 2}, Shard{0}}, 0) == MeshDims{2, 1, 0});
  CHECK(cutting_order({RaggedStridedShard{{0}, {{3, 2}}, 2}, Shard{0}}, 0) == MeshDims{1, 0});
  CHECK(cutting_order({Replicate{}, Shard{1}}, 0).empty());
  CHECK(cutting_dims({Replicate{}, Shard{1}, RaggedShard{{0}, {1, 2}}}) == MeshDims{1, 2});
  const Mesh mesh({4, 3, 2}, {"a", "b", "c"});
  CHECK(split_factor_at(mesh, {Replicate{}, Shard{0}, Shard{0}}, 0, {0}) == 6);
  CHECK(split_factor_at(mesh, {Replicate{}, Shard{0}, Shard{1}}, 0, {0}) == 3);
  CHECK(split_factor_at(mesh, {Replicate{}, Shard{0}, Shard{1}}, 0, {0, 1}) == 6);
}

TEST_CASE("local boxes are read from the placements alone") {
  const Mesh line({4}, {"fsdp"});
  const TensorLayout ragged{{7, 8}, {RaggedShard{{0}, {2, 2, 2, 1}}}};
  CHECK(local_box(ragged, line, {0}) == Box{{0, 0}, {2, 8}});
  CHECK(local_box(ragged, line, {3}) == Box{{6, 0}, {1, 8}});
  const TensorLayout empties{{2, 3}, {RaggedShard{{0}, {1, 1, 0, 0}}}};
  CHECK(local_box(empties, line, {2}) == Box{{2, 0}, {0, 3}});
  CHECK(local_box(empties, line, {3}) == Box{{2, 0}, {0, 3}});
  for (const Placement& flag : Placements{Shard{0, true}, Shard{0}}) {
    CHECK(local_box({{6, 4}, {flag}}, line, {2}) == Box{{4, 0}, {2, 4}});
    CHECK(local_box({{6, 4}, {flag}}, line, {3}) == Box{{6, 0}, {0, 4}});
  }
  const Mesh grid({2, 4}, {"rep", "fsdp"});
  const TensorLayout hsdp{{32, 64}, {Replicate{}, Shard{0}}};
  CHECK(local_box(hsdp, grid, {1, 2}) == Box{{16, 0}, {8, 64}});
  CHECK(local_box(hsdp, grid, {0, 2}) == local_box(hsdp, grid, {1, 2}));
  CHECK(local_box({{4, 8}, {Partial{}, Shard{1}}}, grid, {0, 1}) == Box{{0, 2}, {4, 2}});
}

TEST_CASE("two mesh dims on one tensor dim: tensor parallelism cuts first, fully_shard its piece") {
  // Rows by rank, from the table of HyperParallel's layouts (row-major ranks on (fsdp, tp)).
  struct Case {
    std::int64_t rows;
    std::vector<std::int64_t> mesh;
    Placements placements;
    std::vector<Interval> by_rank;
  };
  const std::vector<Case> cases = {
      {10,
       {2, 2},
       {RaggedStridedShard{{0}, {{3, 2}}, 2}, Shard{0}},
       {{0, 3}, {5, 8}, {3, 5}, {8, 10}}},
      {10, {2, 2}, {StridedShard{0, 2, true}, Shard{0}}, {{0, 3}, {5, 8}, {3, 5}, {8, 10}}},
      {32,
       {4, 2},
       {StridedShard{0, 2}, Shard{0}},
       {{0, 4}, {16, 20}, {4, 8}, {20, 24}, {8, 12}, {24, 28}, {12, 16}, {28, 32}}},
      {14,
       {4, 2},
       {RaggedStridedShard{{0}, {{2, 2, 2, 1}}, 2}, Shard{0}},
       {{0, 2}, {7, 9}, {2, 4}, {9, 11}, {4, 6}, {11, 13}, {6, 7}, {13, 14}}},
      {7,
       {4, 2},
       {RaggedStridedShard{{0}, {{1, 1, 1, 1}, {1, 1, 1, 0}}, 2}, Shard{0}},
       {{0, 1}, {4, 5}, {1, 2}, {5, 6}, {2, 3}, {6, 7}, {3, 4}, {7, 7}}},
      {8,
       {2, 2, 2},
       {StridedShard{0, 4}, StridedShard{0, 2}, Shard{0}},
       {{0, 1}, {4, 5}, {2, 3}, {6, 7}, {1, 2}, {5, 6}, {3, 4}, {7, 8}}},
      // Lost strides: the first mesh dim cuts first.
      {32,
       {4, 2},
       {Shard{0}, Shard{0}},
       {{0, 4}, {4, 8}, {8, 12}, {12, 16}, {16, 20}, {20, 24}, {24, 28}, {28, 32}}},
  };
  for (const Case& c : cases) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < c.mesh.size(); ++i)
      names.push_back("d" + std::to_string(i));
    const Mesh mesh(c.mesh, names);
    for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
      CAPTURE(c.rows, to_string(c.placements), rank);
      CHECK(rows_at({{c.rows, 3}, c.placements}, mesh, mesh.coordinate_of(Rank{rank})) ==
            c.by_rank[static_cast<std::size_t>(rank)]);
    }
  }
}

TEST_CASE("with permuted ranks the position in the mesh decides") {
  const Mesh mesh({4}, {"fsdp"}, {2, 0, 3, 1});
  const TensorLayout layout{{7, 8}, {RaggedShard{{0}, {2, 2, 2, 1}}}};
  CHECK(rows_at(layout, mesh, mesh.coordinate_of(Rank{2})) == Interval{0, 2});
  CHECK(rows_at(layout, mesh, mesh.coordinate_of(Rank{1})) == Interval{6, 7});
}

TEST_CASE("a ragged cut of several dims is up to 2n - 1 boxes") {
  const Mesh mesh({4}, {"fsdp"});
  const auto boxes = [&](const Shape& shape, const RaggedShard& ragged, std::int64_t i) {
    return local_boxes({shape, {ragged}}, mesh, {i});
  };
  const RaggedShard two{{0, 1}, {21, 21, 22, 0}};
  CHECK(boxes({2, 64}, two, 0) == Boxes{{{0, 0}, {1, 42}}});
  CHECK(boxes({2, 64}, two, 1) == Boxes{{{0, 42}, {1, 22}}, {{1, 0}, {1, 20}}});
  CHECK(boxes({2, 64}, two, 2) == Boxes{{{1, 20}, {1, 44}}});
  CHECK(boxes({2, 64}, two, 3) == Boxes{{{2, 0}, {0, 64}}});
  const RaggedShard four{{0, 1}, {3, 7, 4, 1}};
  CHECK(boxes({5, 3, 6, 7}, four, 0) == Boxes{{{0, 0, 0, 0}, {1, 3, 6, 7}}});
  CHECK(boxes({5, 3, 6, 7}, four, 1) ==
        Boxes{{{1, 0, 0, 0}, {2, 3, 6, 7}}, {{3, 0, 0, 0}, {1, 1, 6, 7}}});
  CHECK(boxes({5, 3, 6, 7}, four, 2) ==
        Boxes{{{3, 1, 0, 0}, {1, 2, 6, 7}}, {{4, 0, 0, 0}, {1, 2, 6, 7}}});
  CHECK(boxes({5, 3, 6, 7}, four, 3) == Boxes{{{4, 2, 0, 0}, {1, 1, 6, 7}}});
  // An empty rank inside says where it stands.
  CHECK(boxes({4, 3}, {{0, 1}, {5, 0, 6, 1}}, 1) == Boxes{{{1, 2}, {0, 3}}});
  const Mesh grid({2, 2}, {"fsdp", "tp"});
  // tp leaves columns [3, 6); of their 4 x 3 cells the second rank holds the last two thirds.
  CHECK(local_boxes({{4, 6}, {RaggedStridedShard{{0, 1}, {{1, 2}}, 2}, Shard{1}}}, grid, {1, 1}) ==
        Boxes{{{1, 4}, {1, 2}}, {{2, 3}, {2, 3}}});
}

TEST_CASE("cuts of fully_shard: runs, slots, boxes") {
  const ShardCut ceil{.num_shards = 4};
  const ShardCut balanced{.num_shards = 4, .chunking = Chunking::Balanced};
  CHECK(num_cells(ceil, {7, 8}) == 7);
  CHECK(num_cells({.num_shards = 2, .dims = {1}}, {7, 8}) == 8);
  CHECK(num_cells({.num_shards = 4, .dims = {0, 1}, .local_units = {1, 1, 1, 2}}, {5, 3, 6}) == 15);
  CHECK(shard_runs(ceil, {7, 8}) == Runs{{{0, 3}, 0, 2}, {{3, 4}, 6, 1}});
  CHECK(shard_runs(balanced, {6, 8}) == Runs{{{0, 2}, 0, 2}, {{2, 4}, 4, 1}});
  CHECK(shard_runs({.num_shards = 2, .local_units = {1, 2}}, {6, 4}) ==
        Runs{{{0, 1}, 0, 2}, {{1, 2}, 2, 4}});
  CHECK(padded_shape(ceil, {7, 8}) == Shape{2, 8});
  CHECK(padded_shape(ceil, {2, 3}) == Shape{1, 3});
  CHECK(padded_shape(ceil, {0, 3}) == Shape{0, 3});
  CHECK(padded_shape({.num_shards = 8, .dims = {1}}, {32, 64}) == Shape{32, 8});
  const ShardCut flat{.num_shards = 4, .dims = {0, 1}, .local_units = {21, 21, 22, 0}};
  CHECK(padded_shape(flat, {2, 64}) == Shape{44});
  CHECK(shard_elems(flat, {2, 64}, 1) == 42);
  CHECK(shard_boxes(flat, {2, 64}, 1) == Boxes{{{0, 42}, {1, 22}}, {{1, 0}, {1, 20}}});
  CHECK(shard_boxes({.num_shards = 2, .dims = {1}}, {3, 4}, 1) == Boxes{{{0, 2}, {3, 2}}});
  CHECK(shard_cells(balanced, {5, 2}, 1) == Interval{2, 3});
  CHECK_THROWS_AS(shard_runs({.num_shards = 2, .local_units = {1, 2}}, {7}), InternalError);
  CHECK_THROWS_AS(shard_cells({.num_shards = 3, .local_units = {1, 2}}, {6}, 0), InternalError);
}

TEST_CASE("the placement that fully_shard writes, in three vocabularies") {
  struct Case {
    Shape shape;
    std::vector<std::int64_t> mesh;  // (fsdp) or (fsdp, tp)
    Placement tp;
    int dim;
    Chunking chunking;
    std::string ragged, flag, torch;
  };
  constexpr auto kCeil = Chunking::Ceil;
  constexpr auto kBalanced = Chunking::Balanced;
  const std::vector<Case> cases = {
      {{32, 64}, {8}, {}, 0, kCeil, "Shard(0)", "Shard(0)", "Shard(0)"},
      {{7, 8},
       {4},
       {},
       0,
       kCeil,
       "RaggedShard((0,), (2, 2, 2, 1))",
       "Shard(0, uneven)",
       "Shard(0)"},
      {{6, 4},
       {4},
       {},
       0,
       kCeil,
       "RaggedShard((0,), (2, 2, 2, 0))",
       "Shard(0, uneven)",
       "Shard(0)"},
      {{6, 4},
       {4},
       {},
       0,
       kBalanced,
       "RaggedShard((0,), (2, 2, 1, 1))",
       "Shard(0, uneven)",
       "Shard(0)"},
      {{2, 3},
       {4},
       {},
       0,
       kCeil,
       "RaggedShard((0,), (1, 1, 0, 0))",
       "Shard(0, uneven)",
       "Shard(0)"},
      {{7, 2}, {1}, {}, 0, kCeil, "Shard(0)", "Shard(0)", "Shard(0)"},
      {{32, 64}, {8}, {}, 1, kCeil, "Shard(1)", "Shard(1)", "Shard(1)"},
      {{32, 64},
       {4, 2},
       Shard{0},
       0,
       kCeil,
       "StridedShard(0, 2)",
       "StridedShard(0, 2)",
       "_StridedShard(0, 2)"},
      {{32, 64}, {4, 2}, Shard{1}, 0, kCeil, "Shard(0)", "Shard(0)", "Shard(0)"},
      {{8, 16},
       {2, 4},
       Shard{1},
       1,
       kCeil,
       "StridedShard(1, 4)",
       "StridedShard(1, 4)",
       "_StridedShard(1, 4)"},
      {{10, 3},
       {2, 2},
       Shard{0},
       0,
       kCeil,
       "RaggedStridedShard((0,), (3, 2), 2)",
       "StridedShard(0, 2, uneven)",
       "_StridedShard(0, 2)"},
      // tp leaves 4 and 3 rows: uneven on some rank is uneven on all.
      {{7, 2},
       {4, 2},
       Shard{0},
       0,
       kCeil,
       "RaggedStridedShard((0,), ((1, 1, 1, 1), (1, 1, 1, 0)), 2)",
       "StridedShard(0, 2, uneven)",
       "_StridedShard(0, 2)"},
      // tp leaves 2, 2, 2, 0 rows: all divide.
      {{6, 2},
       {2, 4},
       Shard{0},
       0,
       kCeil,
       "StridedShard(0, 4)",
       "StridedShard(0, 4)",
       "_StridedShard(0, 4)"},
      // A tp dim of one rank contributes factor 1.
      {{7, 2},
       {4, 1},
       Shard{0},
       0,
       kCeil,
       "RaggedShard((0,), (2, 2, 2, 1))",
       "Shard(0, uneven)",
       "Shard(0)"},
  };
  for (const Case& c : cases) {
    const bool has_tp = c.mesh.size() == 2;
    const Mesh mesh(
        c.mesh, has_tp ? std::vector<std::string>{"fsdp", "tp"} : std::vector<std::string>{"fsdp"});
    TensorLayout unsharded{c.shape, {Replicate{}}};
    if (has_tp) unsharded.placements.push_back(c.tp);
    const ShardCut cut{.num_shards = c.mesh[0], .dims = {c.dim}, .chunking = c.chunking};
    const auto text = [&](Vocabulary vocabulary) {
      return to_string(fully_shard_placement(cut, unsharded, mesh, vocabulary), vocabulary);
    };
    CHECK(text(Vocabulary::Ragged) == c.ragged);
    CHECK(text(Vocabulary::UnevenFlag) == c.flag);
    CHECK(text(Vocabulary::Torch) == c.torch);
  }
}

TEST_CASE("placements of fully_shard imply its cut, on every rank, for any shape and mesh") {
  std::int64_t num_checked = 0;
  for (const std::vector<std::int64_t>& shape :
       std::vector<Shape>{{1, 4}, {2, 3}, {5, 4}, {6, 6}, {7, 8}, {9, 2}, {11, 1}, {13, 12}}) {
    for (const std::vector<std::int64_t>& sizes :
         std::vector<Shape>{{2, 3}, {3, 2}, {4, 2}, {2, 2}, {1, 3}, {3, 1}, {4, 4}}) {
      for (const Placement& tp : Placements{Replicate{}, Shard{0}, Shard{1}}) {
        for (const Chunking chunking : {Chunking::Ceil, Chunking::Balanced}) {
          const Mesh mesh(sizes, {"fsdp", "tp"});
          const TensorLayout unsharded{shape, {Replicate{}, tp}};
          const ShardCut cut{.num_shards = sizes[0], .chunking = chunking};
          const TensorLayout sharded{
              shape, {fully_shard_placement(cut, unsharded, mesh, Vocabulary::Ragged), tp}};
          std::vector<int> times(static_cast<std::size_t>(num_elems(shape)), 0);
          for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
            const Coordinate coordinate = mesh.coordinate_of(Rank{rank});
            const Box whole = local_box(unsharded, mesh, coordinate);
            Box held = shard_boxes(cut, whole.shape, coordinate[0]).at(0);
            for (std::size_t dim = 0; dim < 2; ++dim)
              held.offset[dim] += whole.offset[dim];
            CHECK(local_box(sharded, mesh, coordinate) == held);
            each_run(shape, held, [&](std::int64_t first, std::int64_t count) {
              for (std::int64_t i = first; i < first + count; ++i)
                ++times[static_cast<std::size_t>(i)];
            });
            ++num_checked;
          }
          const int copies = std::holds_alternative<Replicate>(tp) ? static_cast<int>(sizes[1]) : 1;
          CHECK(times == std::vector<int>(times.size(), copies));
        }
      }
    }
  }
  CHECK(num_checked > 1000);
}

TEST_CASE("a layout that does not fit its mesh or tensor is a bug") {
  const Mesh mesh({2}, {"fsdp"});
  CHECK_THROWS_AS(local_box({{4}, {}}, mesh, {0}), InternalError);
  CHECK_THROWS_AS(local_box({{4}, {RaggedShard{{0}, {1, 2}}}}, mesh, {0}), InternalError);
  CHECK_THROWS_AS(local_box({{4}, {RaggedShard{{0}, {4}}}}, mesh, {0}), InternalError);
  CHECK_THROWS_AS(local_box({{4}, {Shard{1}}}, mesh, {0}), InternalError);
  CHECK_THROWS_AS(local_box({{4, 2}, {RaggedShard{{0, 1}, {3, 5}}}}, mesh, {0}), InternalError);
}

std::vector<FindingCode> codes_of(const std::vector<Finding>& findings) {
  std::vector<FindingCode> result;
  for (const Finding& finding : findings) {
    result.push_back(finding.code);
    CHECK(finding.param == "w");
  }
  return result;
}

std::vector<FindingCode> codes(std::int64_t extent, const std::vector<Interval>& shards) {
  return codes_of(tiling_findings(extent, shards, "w"));
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

TEST_CASE("tilings by runs: the same proof for any number of shards") {
  using Codes = std::vector<FindingCode>;
  const auto codes_by_run = [](std::int64_t extent, std::int64_t num_shards, const Runs& runs) {
    return codes_of(tiling_findings(extent, num_shards, runs, "w"));
  };
  constexpr auto kGap = FindingCode::LayoutGap;
  CHECK(codes_by_run(7, 4, {{{0, 3}, 0, 2}, {{3, 4}, 6, 1}}).empty());
  CHECK(codes_by_run(7, 4, {{{0, 3}, 0, 2}, {{3, 4}, 5, 1}}) ==
        Codes{FindingCode::LayoutOverlap, kGap});
  CHECK(codes_by_run(6, 4, {{{0, 3}, 0, 2}}) == Codes{kGap});
  // A fifth shard, which reaches row 8 of 7: its number, and rows that are nobody's.
  CHECK(codes_by_run(7, 4, {{{0, 3}, 0, 2}, {{3, 5}, 6, 1}}) == Codes{kGap, kGap, kGap});
  CHECK(codes_by_run(7, 4, {{{1, 4}, 0, 2}}) == Codes{kGap, kGap});
  const std::int64_t many = 131072;
  CHECK(codes_by_run(1000003, many, shard_runs(1000003, many)).empty());
  CHECK(codes_by_run(1000004, many, shard_runs(1000003, many)) == Codes{kGap});
}

}  // namespace
}  // namespace hpsim
