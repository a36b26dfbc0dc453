#include "engine/activation_exchange.h"

#include <fmt/format.h>

#include <random>

#include "plan/build_plan.h"
#include "plan/verify_plan.h"
#include "scenario/parse.h"
#include "support/catch.h"

namespace hpsim {
namespace {

using Layout = std::vector<Placement>;

Plan plan_on(const std::string& shape, const std::string& names, const std::string& data_dims,
             std::int64_t features, std::int64_t batch) {
  return build_plan(parse_scenario(
      fmt::format(R"x({{"hpsim": 1, "mesh": {{"shape": [{}], "mesh_dim_names": [{}]}},
                        "roles": {{"fsdp_shard_dim": null, "tp_dim": "a"}},
                        "model": [{{"type": "linear", "in_features": {}, "out_features": 1}}],
                        "data": {{"data_dims": [{}]}}, "training": {{"global_batch": {}}},
                        "numerics": {{"dtype": "float64"}}}})x",
                  shape, names, features, data_dims, batch),
      "test.json"));
}

/// An activation [batch, features] on all ranks of a mesh.
class Ranks {
 public:
  Ranks(const Plan& plan, std::int64_t features)
      : plan_(plan),
        features_(features),
        result_("test", ResultLayout(plan, /*records_tensors=*/false),
                zeroed(ResultLayout(plan, false).size_bytes())) {
    for (std::int64_t rank = 0; rank < plan.mesh().num_ranks(); ++rank) {
      memories_.push_back(std::make_unique<RankMemory<double>>(plan, Rank{rank}, result_));
      memories_.back()->make_parameters();
    }
  }

  /// Value of an element of the whole activation.
  static double value(std::int64_t sample, std::int64_t feature) {
    return static_cast<double>(1 + 100 * sample + feature);
  }

  [[nodiscard]] ActivationPart part(const Layout& layout, std::int64_t rank) const {
    return activation_part(plan_.scenario, layout, features_, coordinate(rank));
  }

  /// What every rank holds in `layout`; of a sum over n ranks, number i holds the value times
  /// 2^i / (2^n - 1), so that no part of them is the sum.
  void draw(const Layout& layout) {
    held_.clear();
    for (std::int64_t rank = 0; rank < plan_.mesh().num_ranks(); ++rank) {
      const std::vector<double> wanted = expected(layout, rank);
      double weight = 1;
      for (std::size_t dim = 0; dim < layout.size(); ++dim) {
        if (!std::holds_alternative<Partial>(layout[dim])) continue;
        const std::int64_t size = plan_.mesh().size(static_cast<int>(dim));
        weight *= std::ldexp(1.0, static_cast<int>(coordinate(rank)[dim])) /
                  (std::ldexp(1.0, static_cast<int>(size)) - 1);
      }
      held_.push_back(take_activation(*memories_[static_cast<std::size_t>(rank)], DType::Float64,
                                      static_cast<std::int64_t>(wanted.size())));
      for (std::size_t i = 0; i < wanted.size(); ++i)
        held_.back().data.data()[i] = wanted[i] * weight;
    }
  }

  /// What the ranks hold of the whole.
  [[nodiscard]] std::vector<double> expected(const Layout& layout, std::int64_t rank) const {
    std::vector<double> values;
    const ActivationPart held = part(layout, rank);
    const std::int64_t batch = plan_.scenario.local_batch();
    for (const std::int64_t data_rank : held.data_ranks) {
      for (std::int64_t sample = data_rank * batch; sample < (data_rank + 1) * batch; ++sample) {
        for (std::int64_t f = held.features.begin; f < held.features.end; ++f)
          values.push_back(value(sample, f));
      }
    }
    return values;
  }

  void change(const Transition& transition) {
    const Redistribution redistribution{.from = 0,
                                        .to = 1,
                                        .asked_by = 0,
                                        .features = features_,
                                        .transition = transition,
                                        .freed = {0}};
    const auto spec = redistribution_collective(plan_, redistribution);
    CHECK(spec.has_value() == communicates(transition.op));
    std::vector<ActivationExchange<double>> exchanges;
    std::vector<ActivationExchange<double>::Ends> ends;
    for (std::int64_t rank = 0; rank < plan_.mesh().num_ranks(); ++rank)
      exchanges.emplace_back(plan_, redistribution, coordinate(rank), memory(rank));
    for (std::int64_t rank = 0; rank < plan_.mesh().num_ranks(); ++rank)
      ends.push_back(exchanges[index(rank)].begin(held_[index(rank)]));
    if (spec) communicate(*spec, ends);
    for (std::int64_t rank = 0; rank < plan_.mesh().num_ranks(); ++rank)
      CHECK_FALSE(exchanges[index(rank)].finish(held_[index(rank)], held_[index(rank)]));
  }

  /// What a rank sends, in memory that was used before.
  [[nodiscard]] std::vector<double> sent(const Transition& transition, std::int64_t rank) {
    const Redistribution redistribution{
        .from = 0, .to = 1, .features = features_, .transition = transition, .freed = {0}};
    const auto spec = redistribution_collective(plan_, redistribution);
    const std::int64_t elems = spec.value().elems_in.at(plan_.mesh(), coordinate(rank));
    Buffer<double> used = memory(rank).take(MemoryKind::Activations, DType::Float64, elems);
    std::fill_n(used.data(), elems, -7.0);
    memory(rank).give_back(MemoryKind::Activations, DType::Float64, used, elems);
    ActivationExchange<double> exchange(plan_, redistribution, coordinate(rank), memory(rank));
    const auto ends = exchange.begin(held_[index(rank)]);
    std::vector<double> values(ends.input, ends.input + elems);
    CHECK_FALSE(exchange.finish(held_[index(rank)], held_[index(rank)]));
    return values;
  }

  /// Sums over the ranks along Partial dims of what they hold, where `layout` has any.
  void check(const Layout& layout) const {
    MeshDims terms;
    for (std::size_t dim = 0; dim < layout.size(); ++dim) {
      if (std::holds_alternative<Partial>(layout[dim])) terms.push_back(static_cast<int>(dim));
    }
    for (std::int64_t rank = 0; rank < plan_.mesh().num_ranks(); ++rank) {
      const std::vector<double> wanted = expected(layout, rank);
      REQUIRE(held_[index(rank)].elems == static_cast<std::int64_t>(wanted.size()));
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        double sum = 0;
        for (const Coordinate& member : group_coordinates(plan_.mesh(), terms, coordinate(rank)))
          sum += held_[index(plan_.mesh().rank_at(member).value)].data.data()[i];
        // A few roundings of the weights.
        REQUIRE(std::abs(sum - wanted[i]) <= 0x1p-45 * wanted[i]);
      }
    }
  }

  /// Bytes of activations that a rank holds.
  [[nodiscard]] std::int64_t live_bytes(std::int64_t rank) const {
    return result_.rank_record(Rank{rank})
        .ledger.live()[static_cast<std::size_t>(MemoryKind::Activations)];
  }
  [[nodiscard]] std::int64_t held_elems(std::int64_t rank) const {
    return held_[index(rank)].elems;
  }

 private:
  static std::size_t index(std::int64_t rank) { return static_cast<std::size_t>(rank); }
  static std::shared_ptr<std::byte> zeroed(std::int64_t bytes) {
    return {static_cast<std::byte*>(std::calloc(1, static_cast<std::size_t>(bytes))),
            [](std::byte* data) { std::free(data); }};
  }
  [[nodiscard]] Coordinate coordinate(std::int64_t rank) const {
    return plan_.mesh().coordinate_of(Rank{rank});
  }
  [[nodiscard]] RankMemory<double>& memory(std::int64_t rank) { return *memories_[index(rank)]; }

  /// By the definitions of the collectives.
  void communicate(const CollectiveSpec& spec,
                   const std::vector<ActivationExchange<double>::Ends>& ends) {
    const Mesh& mesh = plan_.mesh();
    std::vector<std::vector<double>> outputs;
    for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
      const std::int64_t in = spec.elems_in.at(mesh, coordinate(rank));
      const std::int64_t out = spec.elems_out.at(mesh, coordinate(rank));
      const auto group = group_coordinates(mesh, spec.dims, coordinate(rank));
      const std::int64_t me = mesh.index_along(spec.dims, coordinate(rank));
      std::vector<double> output(static_cast<std::size_t>(out), 0.0);
      for (std::size_t member = 0; member < group.size(); ++member) {
        const auto from = mesh.rank_at(group[member]).value;
        REQUIRE(spec.elems_in.at(mesh, group[member]) == in);
        const double* const input = ends[index(from)].input;
        const auto slot = static_cast<std::int64_t>(member);
        for (std::int64_t i = 0; i < out; ++i) {
          double& element = output[static_cast<std::size_t>(i)];
          if (spec.op == CollectiveOp::AllReduce) element += input[i];
          if (spec.op == CollectiveOp::ReduceScatter) element += input[me * out + i];
          if (spec.op == CollectiveOp::AllGather && i / std::max<std::int64_t>(in, 1) == slot)
            element = input[i - slot * in];
          const std::int64_t part =
              std::max<std::int64_t>(1, in / static_cast<std::int64_t>(group.size()));
          if (spec.op == CollectiveOp::AllToAll && i / part == slot)
            element = input[me * part + i - slot * part];
        }
      }
      outputs.push_back(std::move(output));
    }
    for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank)
      std::copy(outputs[index(rank)].begin(), outputs[index(rank)].end(), ends[index(rank)].output);
  }

  const Plan& plan_;
  std::int64_t features_;
  RunResult result_;
  std::vector<std::unique_ptr<RankMemory<double>>> memories_;
  std::vector<LocalActivation<double>> held_;
};

/// Every layout of the choices along each of `num_dims` mesh dims.
std::vector<Layout> layouts_of(std::size_t num_dims,
                               const std::vector<std::vector<Placement>>& choices) {
  std::vector<Layout> layouts = {{}};
  for (std::size_t dim = 0; dim < num_dims; ++dim) {
    std::vector<Layout> more;
    for (const Layout& layout : layouts) {
      for (const Placement& placement : choices[dim]) {
        more.push_back(layout);
        more.back().push_back(placement);
      }
    }
    layouts = std::move(more);
  }
  return layouts;
}

/// All pairs of layouts, on real numbers.
std::int64_t check_all_pairs(const Plan& plan, std::int64_t features,
                             const std::vector<Layout>& layouts) {
  Ranks ranks(plan, features);
  std::int64_t num_pairs = 0;
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) {
      CAPTURE(to_string(from), to_string(to), features);
      ranks.draw(from);
      ranks.check(from);
      for (const Transition& transition : redistribute(from, to)) {
        ranks.change(transition);
        ranks.check(transition.after);
      }
      ranks.check(to);
      ++num_pairs;
    }
  }
  return num_pairs;
}

const std::vector<Placement> kAll = {Replicate{}, Partial{}, Shard{0}, Shard{1}};
const std::vector<Placement> kNoSamples = {Replicate{}, Partial{}, Shard{1}};

TEST_CASE("every pair of layouts on one mesh dim, for features that divide and that do not") {
  for (const int size : {1, 2, 3, 4}) {
    for (const std::int64_t features : {1, 2, 5, 8}) {
      const Plan plan = plan_on(std::to_string(size), R"("a")", R"("a")", features, 2 * size);
      CHECK(check_all_pairs(plan, features, layouts_of(1, {kAll})) == 16);
    }
  }
}

TEST_CASE("every pair of layouts on two mesh dims that both split the batch") {
  for (const char* shape : {"2, 3", "3, 2"}) {
    const Plan plan = plan_on(shape, R"("a", "dp")", R"("a", "dp")", 7, 12);
    CHECK(check_all_pairs(plan, 7, layouts_of(2, {kAll, kAll})) == 256);
  }
}

TEST_CASE("every pair of layouts where only one of three mesh dims splits the batch") {
  const Plan plan = plan_on("2, 2, 2", R"("a", "dp", "ep")", R"("dp")", 3, 2);
  CHECK(check_all_pairs(plan, 3, layouts_of(3, {kNoSamples, kAll, kNoSamples})) == 36 * 36);
}

TEST_CASE("an activation on its way holds no memory but itself once it has arrived") {
  const Plan plan = plan_on("3", R"("a")", R"("a")", 5, 6);
  for (const Layout& from : layouts_of(1, {kAll})) {
    for (const Layout& to : layouts_of(1, {kAll})) {
      Ranks ranks(plan, 5);
      ranks.draw(from);
      for (const Transition& transition : redistribute(from, to))
        ranks.change(transition);
      for (std::int64_t rank = 0; rank < 3; ++rank)
        CHECK(ranks.live_bytes(rank) == 8 * ranks.held_elems(rank));
    }
  }
}

TEST_CASE("slots are padded with zeros behind what they carry") {
  // 5 features over 3 ranks are 2, 2, 1: slots of 6 samples by 2, of which the last rank fills
  // half.
  const Plan plan = plan_on("3", R"("a")", R"("a")", 5, 6);
  Ranks ranks(plan, 5);
  ranks.draw({Shard{1}});
  const std::vector<double> gathered = ranks.sent(redistribute({Shard{1}}, {Replicate{}}).at(0), 2);
  REQUIRE(gathered.size() == 12);
  for (std::int64_t i = 0; i < 12; ++i)
    CHECK(gathered[static_cast<std::size_t>(i)] == (i < 6 ? Ranks::value(i, 4) : 0));

  // Two samples of all features go to three ranks: slots of 2 samples by 2.
  ranks.draw({Shard{0}});
  const std::vector<double> exchanged = ranks.sent(redistribute({Shard{0}}, {Shard{1}}).at(0), 1);
  CHECK(exchanged == std::vector<double>{Ranks::value(2, 0), Ranks::value(2, 1), Ranks::value(3, 0),
                                         Ranks::value(3, 1), Ranks::value(2, 2), Ranks::value(2, 3),
                                         Ranks::value(3, 2), Ranks::value(3, 3), Ranks::value(2, 4),
                                         Ranks::value(3, 4), 0, 0});
}

TEST_CASE("what is sent lies in slots only where it is not stored so") {
  // 6 features over 3 ranks: parts of 2 are sent as held, and put between one another; 5 are 2, 2,
  // 1: the last rank pads. Samples arrive in the order in which they are stored.
  const Plan even = plan_on("3", R"("a")", R"("a")", 6, 6);
  const auto sizes = [](const Plan& plan, std::int64_t features, const Layout& from,
                        const Layout& to, std::int64_t rank) {
    return redistribution_sizes(
        plan, {.features = features, .transition = redistribute(from, to).at(0)}, {rank});
  };
  CHECK(sizes(even, 6, {Shard{1}}, {Replicate{}}, 0) ==
        RedistributionSizes{12, 36, 12, 3, false, true});
  CHECK(sizes(even, 6, {Shard{0}}, {Replicate{}}, 0) ==
        RedistributionSizes{12, 36, 12, 3, false, false});
  CHECK(sizes(even, 6, {Partial{}}, {Shard{0}}, 2) ==
        RedistributionSizes{36, 12, 12, 3, false, false});
  CHECK(sizes(even, 6, {Partial{}}, {Shard{1}}, 2) ==
        RedistributionSizes{36, 12, 12, 3, true, false});
  CHECK(sizes(even, 6, {Shard{0}}, {Shard{1}}, 1) == RedistributionSizes{12, 12, 4, 3, true, true});
  CHECK(sizes(even, 6, {Partial{}}, {Replicate{}}, 1) ==
        RedistributionSizes{36, 36, 0, 3, false, false});
  const Plan uneven = plan_on("3", R"("a")", R"("a")", 5, 6);
  CHECK(sizes(uneven, 5, {Shard{1}}, {Replicate{}}, 0) ==
        RedistributionSizes{12, 30, 12, 3, false, true});
  CHECK(sizes(uneven, 5, {Shard{1}}, {Replicate{}}, 2) ==
        RedistributionSizes{6, 30, 12, 3, true, true});
  CHECK(sizes(uneven, 5, {Partial{}}, {Shard{1}}, 2) ==
        RedistributionSizes{30, 6, 12, 3, true, true});
}

}  // namespace
}  // namespace hpsim
