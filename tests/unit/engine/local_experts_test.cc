#include "engine/local_experts.h"

#include <fmt/format.h>

#include <cstdlib>
#include <memory>

#include "all_to_all_by_hand.h"
#include "kernel_checks.h"
#include "plan/build_plan.h"
#include "plan/token_exchange.h"
#include "scenario/parse.h"
#include "support/catch.h"

namespace hpsim {
namespace {

constexpr std::int64_t kDim = 3;
constexpr std::int64_t kHidden = 4;
constexpr std::int64_t kExperts = 6;
constexpr int kModule = 2;  // a linear, whose output needs a gradient, and the router come first

/// `settings`: further members of the scenario.
Plan plan_on(std::int64_t num_ranks, std::int64_t top_k, const std::string& settings) {
  return build_plan(
      parse_scenario(fmt::format(
                         R"({{"hpsim": 1, "mesh": {{"shape": [{}], "mesh_dim_names": ["ep"]}},
               "model": [{{"type": "linear", "in_features": 2, "out_features": {}}},
                         {{"name": "moe", "type": "moe", "dim": {}, "hidden": {}, "experts": {},
                           "top_k": {}}}],
               "numerics": {{"dtype": "float64"}}, {}}})",
                         num_ranks, kDim, kDim, kHidden, kExperts, top_k, settings),
                     "test.json"));
}

const char* const kExchanged = R"("parallelize": {"moe": "expert"})";
const char* const kReplicated = R"("parallelize": {"moe": "expert"}, "data": {"data_dims": []},
                                  "training": {"global_batch": 2})";

/// Rows of all ranks, one rank's after the other's.
struct Data {
  Data(std::vector<std::int64_t> of_ranks, std::int64_t of_top_k)
      : rows(std::move(of_ranks)), top_k(of_top_k) {
    for (const std::int64_t count : rows)
      num_rows += count;
    x = drawn("x", num_rows * kDim);
    logits = drawn("logits", num_rows * kExperts, 2);
    dy = drawn("dy", num_rows * kDim);
  }

  std::vector<std::int64_t> rows;
  std::int64_t top_k;
  std::int64_t num_rows = 0;
  Reals x, logits, dy;
};

std::vector<double> part_of(const Reals& values, std::int64_t begin, std::int64_t end) {
  std::vector<double> part;
  for (std::int64_t i = begin; i < end; ++i)
    part.push_back(static_cast<double>(values[static_cast<std::size_t>(i)]));
  return part;
}

struct Results {
  std::vector<double> y, dx, dlogits, dw1, dw2, dw3;
  std::vector<std::vector<std::int64_t>> routed;  ///< per rank

  bool operator==(const Results& other) const {
    return same_bits(y, other.y) && same_bits(dx, other.dx) && same_bits(dlogits, other.dlogits) &&
           same_bits(dw1, other.dw1) && same_bits(dw2, other.dw2) && same_bits(dw3, other.dw3);
  }
};

/// The experts of all ranks of a plan, driven step by step.
class Ranks {
 public:
  Ranks(const Plan& plan, const Data& data)
      : plan_(plan),
        result_("test", ResultLayout(plan, true), zeroed(ResultLayout(plan, true).size_bytes())) {
    std::int64_t first = 0;
    for (std::int64_t rank = 0; rank < plan.mesh().num_ranks(); ++rank) {
      const std::int64_t rows = data.rows.at(static_cast<std::size_t>(rank));
      memories_.push_back(std::make_unique<RankMemory<double>>(plan, Rank{rank}, result_));
      memories_.back()->make_parameters();
      experts_.emplace_back(plan, kModule, plan.mesh().coordinate_of(Rank{rank}), rows,
                            *memories_.back());
      x_.push_back(part_of(data.x, first * kDim, (first + rows) * kDim));
      dy_.push_back(part_of(data.dy, first * kDim, (first + rows) * kDim));
      logits_.push_back(part_of(data.logits, first * kExperts, (first + rows) * kExperts));
      if (!is_replicated()) first += rows;
    }
  }

  Results run() {
    if (experts_[0].exchanges()) {
      exchange(sizeof(std::int64_t),
               [&](std::size_t r) { return experts_[r].begin_route(logits_[r].data()); });
      each([](LocalExperts<double>& experts, std::size_t) { experts.finish_route(); });
    }
    dispatch(Phase::Forward, x_);
    each([&](LocalExperts<double>& experts, std::size_t r) {
      experts.forward(x_[r].data(), logits_[r].data());
    });
    combine(Phase::Forward);
    Results results;
    each([&](LocalExperts<double>& experts, std::size_t r) {
      std::vector<double> y(x_[r].size());
      experts.outputs(y.data());
      append(results.y, y);
      results.routed.push_back(experts.routed_counts());
    });
    backward(results);
    each([&](LocalExperts<double>&, std::size_t r) {
      const auto& live = result_.rank_record(Rank{static_cast<std::int64_t>(r)}).ledger.live();
      CHECK(live[static_cast<std::size_t>(MemoryKind::Activations)] == 0);
    });
    return results;
  }

  [[nodiscard]] Reals weight(int index) {
    Reals all;
    each([&](LocalExperts<double>&, std::size_t r) {
      const RowBlocks<double> blocks = memories_[r]->whole(parameter(index));
      all.insert(all.end(), blocks.data, blocks.data + blocks.rows * blocks.row_elems);
    });
    return all;
  }

 private:
  static std::shared_ptr<std::byte> zeroed(std::int64_t bytes) {
    return {static_cast<std::byte*>(std::calloc(1, static_cast<std::size_t>(bytes))),
            [](std::byte* data) { std::free(data); }};
  }
  [[nodiscard]] bool is_replicated() const {
    return plan_.mesh().num_ranks() > 1 && exchange_dims(plan_, kModule).empty();
  }
  [[nodiscard]] int parameter(int index) const {
    return parameters_of_modules(plan_.scenario).at(kModule).at(static_cast<std::size_t>(index));
  }

  [[nodiscard]] const Step& backward_of_experts() const {
    const auto found = std::find_if(plan_.steps.begin(), plan_.steps.end(), [](const Step& step) {
      return step.kind == StepKind::Backward && step.module == kModule;
    });
    REQUIRE(found != plan_.steps.end());
    return *found;
  }

  /// Ranks that hold the same rows have terms of them.
  void append(std::vector<double>& all, const std::vector<double>& part) const {
    if (!is_replicated()) {
      all.insert(all.end(), part.begin(), part.end());
      return;
    }
    all.resize(part.size(), 0.0);
    for (std::size_t i = 0; i < part.size(); ++i)
      all[i] += part[i];
  }

  template <class Visit>
  void each(const Visit& visit) {
    for (std::size_t r = 0; r < experts_.size(); ++r)
      visit(experts_[r], r);
  }

  template <class Begin>
  void exchange(std::size_t elem_bytes, const Begin& begin) {
    std::vector<TokenEnds> ends;
    each([&](LocalExperts<double>&, std::size_t r) { ends.push_back(begin(r)); });
    all_to_all_by_hand(ends, elem_bytes);
  }

  void dispatch(Phase phase, const std::vector<std::vector<double>>& rows) {
    if (!experts_[0].exchanges()) return;
    exchange(sizeof(double),
             [&](std::size_t r) { return experts_[r].begin_dispatch(phase, rows[r].data()); });
    each([&](LocalExperts<double>& experts, std::size_t) { experts.finish_dispatch(phase); });
  }

  void combine(Phase phase) {
    if (!experts_[0].exchanges()) return;
    exchange(sizeof(double), [&](std::size_t r) { return experts_[r].begin_combine(phase); });
    each([&](LocalExperts<double>& experts, std::size_t) { experts.finish_combine(); });
  }

  void backward(Results& results) {
    dispatch(Phase::Backward, dy_);
    each([&](LocalExperts<double>& experts, std::size_t r) {
      memories_[r]->begin_gradients(backward_of_experts());
      experts.backward(dy_[r].data());
    });
    combine(Phase::Backward);
    each([&](LocalExperts<double>& experts, std::size_t r) {
      std::vector<double> dx(x_[r].size()), dlogits(logits_[r].size());
      experts.input_gradients(dx.data(), dlogits.data());
      append(results.dx, dx);
      append(results.dlogits, dlogits);
      int index = 0;
      for (std::vector<double>* all : {&results.dw1, &results.dw2, &results.dw3}) {
        const RowBlocks<double> blocks = memories_[r]->whole_gradient(parameter(index++));
        all->insert(all->end(), blocks.data, blocks.data + blocks.rows * blocks.row_elems);
      }
    });
  }

  const Plan& plan_;
  RunResult result_;
  std::vector<std::unique_ptr<RankMemory<double>>> memories_;
  std::vector<LocalExperts<double>> experts_;
  std::vector<std::vector<double>> x_, dy_, logits_;
};

/// The same rows on one rank.
Data on_one_rank(Data data) {
  data.rows = {data.num_rows};
  return data;
}

/// What the sum over the chosen experts may be done wrong.
enum class Mistake { None, LacksP, Renormalised, WrongExpert };

/// y by its formula, plainly.
struct Formula {
  Data data;
  Reals w1, w2, w3;
  Mistake mistake = Mistake::None;

  Formula(const Data& of, Ranks& ranks)
      : data(of), w1(ranks.weight(0)), w2(ranks.weight(1)), w3(ranks.weight(2)) {}

  [[nodiscard]] Reals probabilities(std::int64_t row) const {
    Reals p;
    long double sum = 0;
    for (std::int64_t e = 0; e < kExperts; ++e) {
      p.push_back(std::exp(data.logits[static_cast<std::size_t>(row * kExperts + e)]));
      sum += p.back();
    }
    for (long double& of_expert : p)
      of_expert /= sum;
    return p;
  }
  [[nodiscard]] std::vector<std::size_t> chosen(const Reals& p) const {
    std::vector<std::size_t> experts(p.size());
    for (std::size_t e = 0; e < p.size(); ++e)
      experts[e] = e;
    std::stable_sort(experts.begin(), experts.end(),
                     [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
    experts.resize(static_cast<std::size_t>(data.top_k));
    return experts;
  }
  void add_expert(std::int64_t row, std::size_t expert, long double p, long double* y) const {
    constexpr std::size_t kMatrix = kDim * kHidden;
    const long double* const x = data.x.data() + row * kDim;
    for (std::size_t h = 0; h < kHidden; ++h) {
      long double a = 0, b = 0;
      for (std::size_t d = 0; d < kDim; ++d) {
        a += w1[expert * kMatrix + h * kDim + d] * x[d];
        b += w3[expert * kMatrix + h * kDim + d] * x[d];
      }
      for (std::size_t d = 0; d < kDim; ++d)
        y[d] += p * w2[expert * kMatrix + d * kHidden + h] * a / (1 + std::exp(-a)) * b;
    }
  }
  [[nodiscard]] Reals y() const {
    Reals all(static_cast<std::size_t>(data.num_rows * kDim), 0);
    for (std::int64_t row = 0; row < data.num_rows; ++row) {
      const Reals p = probabilities(row);
      const std::vector<std::size_t> experts = chosen(p);
      long double sum = 0;
      for (const std::size_t expert : experts)
        sum += p[expert];
      for (const std::size_t expert : experts) {
        long double factor = p[expert];
        if (mistake == Mistake::LacksP) factor = 1;
        if (mistake == Mistake::Renormalised) factor /= sum;
        const bool is_wrong = mistake == Mistake::WrongExpert && row == 0;
        add_expert(row, is_wrong ? (expert + 1) % kExperts : expert, factor,
                   all.data() + row * kDim);
      }
    }
    return all;
  }
};

/// Numbers are under 2 dim² max(hidden, rows) top_k, sums of at most as many terms as are counted
/// here; fifth derivatives are under 100 times that.
long double tolerance(const Data& data) {
  const std::int64_t most = std::max(kHidden, data.num_rows);
  const auto largest = static_cast<long double>(2 * kDim * kDim * most * data.top_k);
  const auto terms = static_cast<long double>(kDim + kHidden + kExperts + data.num_rows + 8);
  return largest *
         (16 * terms * std::numeric_limits<double>::epsilon() + 100 * std::pow(kStep, 4) / 30);
}

/// The largest difference of any result from the formula, in tolerances.
long double difference(const Results& got, Formula& formula) {
  const auto loss = [&] { return dot(formula.y(), formula.data.dy); };
  const long double differences[] = {
      largest_difference(got.y, formula.y()),
      largest_difference(got.dx, gradient(loss, formula.data.x)),
      largest_difference(got.dlogits, gradient(loss, formula.data.logits)),
      largest_difference(got.dw1, gradient(loss, formula.w1)),
      largest_difference(got.dw2, gradient(loss, formula.w2)),
      largest_difference(got.dw3, gradient(loss, formula.w3))};
  return *std::max_element(std::begin(differences), std::end(differences)) /
         tolerance(formula.data);
}

/// Every row prefers the same experts.
void route_all_alike(Data& data) {
  for (std::size_t i = 0; i < data.logits.size(); ++i)
    data.logits[i] += i % kExperts == 4 ? 20 : 0;
}

TEST_CASE("experts of one rank: values and gradients of their formula") {
  for (const std::int64_t top_k : {1, 2, 6}) {
    Data data({7}, top_k);
    const Plan plan = plan_on(1, top_k, kExchanged);
    Ranks ranks(plan, data);
    Formula formula(data, ranks);
    CAPTURE(top_k);
    CHECK(difference(ranks.run(), formula) <= 1);
  }
}

TEST_CASE("experts: the check sees a missing p, a renormalised one and a wrong expert") {
  const Data data({7}, 2);
  const Plan plan = plan_on(1, 2, kExchanged);
  Ranks ranks(plan, data);
  Formula formula(data, ranks);
  const Results got = ranks.run();
  CHECK(difference(got, formula) <= 1);
  for (const Mistake mistake : {Mistake::LacksP, Mistake::Renormalised, Mistake::WrongExpert}) {
    formula.mistake = mistake;
    CHECK(largest_difference(got.y, formula.y()) > 1000 * tolerance(data));
    CHECK(difference(got, formula) > 1000);
  }
}

TEST_CASE("experts exchanged by several ranks have the bits of one rank") {
  for (const std::int64_t top_k : {1, 2, 6}) {
    for (const bool is_alike : {false, true}) {
      for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{4, 4},
                                                    {9, 2},
                                                    {0, 5},
                                                    {0, 0},
                                                    {3, 3, 3},
                                                    {7, 0, 1},
                                                    {1, 12, 5}}) {
        Data data(rows, top_k);
        if (is_alike) route_all_alike(data);
        const Data whole = on_one_rank(data);
        const Plan plan = plan_on(static_cast<std::int64_t>(rows.size()), top_k, kExchanged);
        const Plan plan_of_one = plan_on(1, top_k, kExchanged);
        CAPTURE(rows, top_k, is_alike);
        const Results got = Ranks(plan, data).run();
        const Results expected = Ranks(plan_of_one, whole).run();
        CHECK(got == expected);
        for (std::size_t e = 0; e < kExperts; ++e) {
          std::int64_t sum = 0;
          for (const auto& of_rank : got.routed)
            sum += of_rank.at(e);
          CHECK(sum == expected.routed.at(0).at(e));
          if (is_alike && e == 4) CHECK(sum == data.num_rows);
        }
      }
    }
  }
}

TEST_CASE("experts: a row that goes to another rank's experts is seen") {
  const Data data({4, 4}, 2);
  const Plan plan = plan_on(2, 2, kExchanged);
  const Data whole = on_one_rank(data);
  const Plan plan_of_one = plan_on(1, 2, kExchanged);
  const Results expected = Ranks(plan_of_one, whole).run();
  Data changed = data;
  std::swap(changed.logits[0], changed.logits[5]);
  CHECK_FALSE(Ranks(plan, changed).run() == expected);
  changed = data;
  changed.x[0] += 0x1p-23L;
  CHECK_FALSE(Ranks(plan, changed).run() == expected);
}

TEST_CASE("experts of ranks that hold the same rows give terms of sums") {
  for (const std::int64_t top_k : {1, 2, 6}) {
    for (const std::int64_t num_ranks : {2, 3}) {
      const Data data(std::vector<std::int64_t>(static_cast<std::size_t>(num_ranks), 5), top_k);
      Data whole = data;
      whole.rows = {5};
      whole.num_rows = 5;
      whole.x.resize(5 * kDim);
      whole.dy.resize(5 * kDim);
      whole.logits.resize(5 * kExperts);
      const Plan plan = plan_on(num_ranks, top_k, kReplicated);
      Ranks ranks(plan, data);
      Formula formula(whole, ranks);
      const Results got = ranks.run();
      CAPTURE(num_ranks, top_k);
      CHECK(difference(got, formula) <= 1);
      for (const auto& of_rank : got.routed)
        CHECK(of_rank == got.routed.at(0));
    }
  }
}

}  // namespace
}  // namespace hpsim
