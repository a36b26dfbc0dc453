#include "engine/routing.h"

#include "kernel_checks.h"
#include "support/catch.h"

namespace hpsim {
namespace {

using Experts = std::vector<std::int64_t>;

Reals softmax(const Reals& logits, std::int64_t num_experts) {
  Reals p;
  for (std::size_t first = 0; first < logits.size(); first = p.size()) {
    long double sum = 0;
    for (std::int64_t e = 0; e < num_experts; ++e)
      sum += std::exp(logits[first + static_cast<std::size_t>(e)]);
    for (std::int64_t e = 0; e < num_experts; ++e)
      p.push_back(std::exp(logits[first + static_cast<std::size_t>(e)]) / sum);
  }
  return p;
}

template <class T>
Experts chosen_of(std::vector<T> p, std::int64_t num_experts, std::int64_t top_k) {
  const auto rows = static_cast<std::int64_t>(p.size()) / num_experts;
  Experts chosen(static_cast<std::size_t>(rows * top_k), -1);
  choose_experts<T>({rows, num_experts, top_k}, p.data(), chosen.data());
  return chosen;
}

TEMPLATE_TEST_CASE("routing: by falling probability, ties to the lower index", "", float, double) {
  using P = std::vector<TestType>;
  CHECK(chosen_of(P{0.25, 0.5, 0.125, 0.125}, 4, 1) == Experts{1});
  CHECK(chosen_of(P{0.25, 0.5, 0.125, 0.125}, 4, 3) == Experts{1, 0, 2});
  CHECK(chosen_of(P{0.25, 0.25, 0.25, 0.25}, 4, 2) == Experts{0, 1});
  CHECK(chosen_of(P{0.125, 0.375, 0.125, 0.375}, 4, 3) == Experts{1, 3, 0});
  CHECK(chosen_of(P{0.125, 0.375, 0.125, 0.375}, 4, 4) == Experts{1, 3, 0, 2});
  CHECK(chosen_of(P{0.25, 0.75, 0.75, 0.25, 0.5, 0.5}, 2, 1) == Experts{1, 0, 0});
  CHECK(chosen_of(P{1}, 1, 1) == Experts{0});
  CHECK(chosen_of(P{}, 4, 2).empty());
}

TEMPLATE_TEST_CASE("routing: equal logits tie, whatever lanes they stand in", "", float, double) {
  // 37 experts: two whole groups of lanes and a part of one.
  constexpr std::int64_t kExperts = 37;
  for (std::int64_t other : {0, 5, 15, 16, 31, 35}) {
    std::vector<TestType> logits(kExperts, TestType(-1));
    logits[static_cast<std::size_t>(other)] = logits[36] = TestType(0.3);
    std::vector<TestType> p(kExperts);
    routing_probabilities<TestType>({1, kExperts, 3}, logits.data(), p.data());
    CHECK(p[static_cast<std::size_t>(other)] == p[36]);
    CHECK(chosen_of(p, kExperts, 3) == Experts{other, 36, other == 0 ? 1 : 0});
  }
}

struct RoutingData {
  explicit RoutingData(const RoutingShape& of)
      : shape(of),
        logits(drawn("logits", of.rows * of.num_experts, 2)),
        dp(drawn("dp", of.rows * of.top_k)) {}

  /// sum over chosen pairs of dp p; what is chosen is given.
  [[nodiscard]] long double loss(const Experts& chosen) const {
    const Reals p = softmax(logits, shape.num_experts);
    long double sum = 0;
    for (std::size_t pair = 0; pair < chosen.size(); ++pair) {
      const std::int64_t row = static_cast<std::int64_t>(pair) / shape.top_k;
      sum += dp[pair] * p[static_cast<std::size_t>(row * shape.num_experts + chosen[pair])];
    }
    return sum;
  }

  RoutingShape shape;
  Reals logits, dp;
};

/// p and its gradients are at most 1 and 2; a sum has at most num_experts terms, fifth derivatives
/// of a product of a softmax and dp are under 100.
template <class T>
long double tolerance(const RoutingShape& shape) {
  const auto terms = static_cast<long double>(shape.num_experts + 8);
  return 8 * terms * std::numeric_limits<T>::epsilon() + 100 * std::pow(kStep, 4) / 30;
}

TEMPLATE_TEST_CASE("routing: values and gradients of its formula", "", float, double) {
  for (const RoutingShape& shape : {RoutingShape{1, 1, 1},
                                    {5, 4, 1},
                                    {7, 5, 2},
                                    {3, 4, 4},
                                    {4, 16, 3},
                                    {6, 37, 8},
                                    {0, 4, 2}}) {
    RoutingData data(shape);
    const std::int64_t offset = shape.rows;
    Placed<TestType> logits(data.logits, offset), p(shape.rows * shape.num_experts, offset + 1);
    Placed<TestType> dp(data.dp, offset + 2), dlogits(shape.rows * shape.num_experts, offset + 3);
    Experts chosen(static_cast<std::size_t>(shape.rows * shape.top_k), -1);
    routing_probabilities(shape, logits.data(), p.data());
    choose_experts(shape, p.data(), chosen.data());
    routing_backward(shape, p.data(), chosen.data(), dp.data(), dlogits.data());
    CAPTURE(shape.rows, shape.num_experts, shape.top_k);
    const Reals expected = softmax(data.logits, shape.num_experts);
    CHECK(largest_difference(p.values(), expected) <= tolerance<TestType>(shape));
    const auto loss = [&] { return data.loss(chosen); };
    const Reals derivatives = gradient(loss, data.logits);
    CHECK(largest_difference(dlogits.values(), derivatives) <= tolerance<TestType>(shape));
    CHECK(p.is_intact_around());
    CHECK(dlogits.is_intact_around());
    for (std::size_t pair = 0; pair < chosen.size(); ++pair) {
      if (static_cast<std::int64_t>(pair) % shape.top_k == 0) continue;
      const auto first = static_cast<std::int64_t>(pair) / shape.top_k * shape.num_experts;
      CHECK(p.data()[first + chosen[pair - 1]] >= p.data()[first + chosen[pair]]);
    }
  }
}

TEST_CASE("routing: the check sees a renormalised probability and a gradient that lacks p") {
  const RoutingShape shape{5, 4, 2};
  RoutingData data(shape);
  Placed<double> logits(data.logits, 0), p(20, 0), dp(data.dp, 0), dlogits(20, 0);
  Experts chosen(10);
  routing_probabilities(shape, logits.data(), p.data());
  choose_experts(shape, p.data(), chosen.data());
  const auto loss = [&] { return data.loss(chosen); };
  const Reals derivatives = gradient(loss, data.logits);
  const auto difference = [&](const Experts& experts, double* dp_at) {
    routing_backward(shape, p.data(), experts.data(), dp_at, dlogits.data());
    return largest_difference(dlogits.values(), derivatives);
  };
  CHECK(difference(chosen, dp.data()) <= tolerance<double>(shape));

  Experts wrong = chosen;
  std::swap(wrong[0], wrong[1]);
  CHECK(difference(wrong, dp.data()) > 1000 * tolerance<double>(shape));

  std::vector<double> scaled = dp.values();
  for (std::size_t pair = 0; pair < scaled.size(); ++pair)
    scaled[pair] /= p.data()[static_cast<std::int64_t>(pair) / 2 * 4 + chosen[pair]];
  CHECK(difference(chosen, scaled.data()) > 1000 * tolerance<double>(shape));

  for (std::int64_t row = 0; row < 5; ++row) {
    double sum = 0;
    for (std::int64_t k = 0; k < 2; ++k)
      sum += p.data()[row * 4 + chosen[static_cast<std::size_t>(row * 2 + k)]];
    for (std::int64_t e = 0; e < 4; ++e)
      p.data()[row * 4 + e] /= sum;
  }
  CHECK(difference(chosen, dp.data()) > 1000 * tolerance<double>(shape));
  CHECK(largest_difference(p.values(), softmax(data.logits, 4)) > 1000 * tolerance<double>(shape));
}

}  // namespace
}  // namespace hpsim
