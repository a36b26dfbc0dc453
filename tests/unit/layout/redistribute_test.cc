#include "layout/redistribute.h"

#include <random>

#include "layout/tensor_layout.h"
#include "support/catch.h"

namespace hpsim {
namespace {

using Layout = std::vector<Placement>;

TEST_CASE("the rule table has an answer for every pair") {
  struct Row {
    Placement from;
    Placement to;
    RedistributeOp op;
  };
  const Placement whole = Replicate{};
  const Placement terms = Partial{};
  const Placement samples = Shard{0};
  const Placement features = Shard{1};
  const Row rows[] = {
      {whole, whole, RedistributeOp::Keep},
      {whole, samples, RedistributeOp::Slice},
      {whole, features, RedistributeOp::Slice},
      {whole, terms, RedistributeOp::KeepFirst},
      {samples, whole, RedistributeOp::AllGather},
      {samples, samples, RedistributeOp::Keep},
      {samples, features, RedistributeOp::AllToAll},
      {samples, terms, RedistributeOp::Embed},
      {features, whole, RedistributeOp::AllGather},
      {features, samples, RedistributeOp::AllToAll},
      {features, features, RedistributeOp::Keep},
      {features, terms, RedistributeOp::Embed},
      {terms, whole, RedistributeOp::AllReduce},
      {terms, samples, RedistributeOp::ReduceScatter},
      {terms, features, RedistributeOp::ReduceScatter},
      {terms, terms, RedistributeOp::Keep},
  };
  for (const Row& row : rows) {
    CAPTURE(to_string(row.from), to_string(row.to));
    CHECK(name_of(redistribute_op(row.from, row.to)) == name_of(row.op));
  }
  CHECK(redistribute_op(Shard{1}, StridedShard{1, 2}) == RedistributeOp::AllToAll);
}

TEST_CASE("only these four communicate") {
  using enum RedistributeOp;
  for (const RedistributeOp op : {AllGather, AllToAll, AllReduce, ReduceScatter})
    CHECK(communicates(op));
  for (const RedistributeOp op : {Keep, Slice, KeepFirst, Embed})
    CHECK_FALSE(communicates(op));
}

TEST_CASE("the backward of a redistribution is the transposed one") {
  // The matrix of a redistribution, from what the ranks hold to what they hold after, and that of
  // what brings the gradient back, are transposes: a sum over copies goes back as copies, a part
  // that is taken goes back into its place.
  struct Row {
    Placement from;
    Placement to;
    RedistributeOp forward;
    RedistributeOp backward_of_whole;    ///< the gradient comes as gradient_placement(to)
    RedistributeOp backward_of_partial;  ///< it comes as terms
  };
  using enum RedistributeOp;
  const Row rows[] = {
      {Replicate{}, Replicate{}, Keep, Keep, AllReduce},
      {Partial{}, Replicate{}, AllReduce, Keep, AllReduce},
      {Shard{0}, Replicate{}, AllGather, Slice, ReduceScatter},
      {Shard{1}, Replicate{}, AllGather, Slice, ReduceScatter},
      {Replicate{}, Shard{1}, Slice, AllGather, AllReduce},
      {Partial{}, Shard{1}, ReduceScatter, AllGather, AllReduce},
      {Shard{0}, Shard{1}, AllToAll, AllToAll, ReduceScatter},
  };
  for (const Row& row : rows) {
    CAPTURE(to_string(row.from), to_string(row.to));
    CHECK(redistribute_op(row.from, row.to) == row.forward);
    const Placement back = gradient_placement(row.from);
    CHECK(redistribute_op(gradient_placement(row.to), back) == row.backward_of_whole);
    CHECK(redistribute_op(Partial{}, back) == row.backward_of_partial);
  }
  CHECK(gradient_placements({Partial{}, Shard{0}, Replicate{}}) ==
        Layout{Replicate{}, Shard{0}, Replicate{}});
}

std::vector<std::string> steps_of(const Layout& from, const Layout& to) {
  std::vector<std::string> steps;
  for (const Transition& transition : redistribute(from, to)) {
    std::string text(name_of(transition.op));
    for (const int dim : transition.mesh_dims)
      text += " " + std::to_string(dim);
    steps.push_back(text);
  }
  return steps;
}

TEST_CASE("nested cuts are put together from the inside, and cut again") {
  using Steps = std::vector<std::string>;
  CHECK(steps_of({Shard{1}}, {Shard{1}}).empty());
  CHECK(steps_of({Shard{1}}, {Replicate{}}) == Steps{"all_gather 0"});
  CHECK(steps_of({Partial{}, Partial{}}, {Replicate{}, Replicate{}}) == Steps{"all_reduce 0 1"});
  CHECK(steps_of({Shard{1}, Shard{1}}, {Replicate{}, Replicate{}}) ==
        Steps{"all_gather 1", "all_gather 0"});
  CHECK(steps_of({Shard{1}, Shard{1}}, {Replicate{}, Shard{1}}) ==
        Steps{"all_gather 1", "all_gather 0", "slice 1"});
  CHECK(steps_of({Shard{1}, Shard{1}}, {Shard{1}, Replicate{}}) == Steps{"all_gather 1"});
  CHECK(steps_of({Replicate{}, Shard{1}}, {Shard{1}, Shard{1}}) ==
        Steps{"all_gather 1", "slice 0", "slice 1"});
  CHECK(steps_of({Partial{}, Shard{1}}, {Shard{1}, Replicate{}}) ==
        Steps{"all_gather 1", "reduce_scatter 0"});
}

TEST_CASE("the batch is cut by data ranks, so that any of its cuts can be undone alone") {
  using Steps = std::vector<std::string>;
  CHECK(steps_of({Shard{0}, Shard{0}}, {Replicate{}, Shard{0}}) == Steps{"all_gather 0"});
  CHECK(steps_of({Shard{0}, Shard{0}}, {Shard{1}, Shard{0}}) == Steps{"all_to_all 0"});
}

TEST_CASE("every pair of layouts is joined by steps that follow one another") {
  std::mt19937 dice(7);
  const Placement choices[] = {Replicate{}, Partial{}, Shard{0}, Shard{1}};
  const auto roll = [&] { return choices[std::uniform_int_distribution<std::size_t>(0, 3)(dice)]; };
  for (int round = 0; round < 2000; ++round) {
    const auto num_dims = static_cast<std::size_t>(1 + round % 4);
    Layout from;
    Layout to;
    for (std::size_t dim = 0; dim < num_dims; ++dim) {
      from.push_back(roll());
      to.push_back(roll());
    }
    CAPTURE(to_string(from), to_string(to));
    Layout now = from;
    const auto transitions = redistribute(from, to);
    REQUIRE(transitions.size() <= 3 * num_dims);
    for (const Transition& transition : transitions) {
      REQUIRE(transition.before == now);
      Layout changed = now;
      for (const int dim : transition.mesh_dims) {
        const auto at = static_cast<std::size_t>(dim);
        changed[at] = transition.after[at];
        CHECK(redistribute_op(now[at], changed[at]) == transition.op);
        CHECK(transition.op != RedistributeOp::Keep);
        // What others have cut further cannot be put together, nor what others cut first be cut.
        for (const Layout* layout : {&now, &changed}) {
          const std::vector<int> cut = cut_dims((*layout)[at]);
          if (cut != std::vector<int>{1}) continue;
          CHECK(cutting_order(*layout, 1).back() == dim);
        }
      }
      CHECK(changed == transition.after);
      now = changed;
    }
    CHECK(now == to);
  }
}

}  // namespace
}  // namespace hpsim
