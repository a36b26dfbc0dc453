#include "baseline/expert_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "scenario/locate.h"
#include "scenario/precision.h"

namespace hpsim {
namespace {

/// One row's logits and what rounding may do to them.
struct RouterRow {
  std::span<const double> p;
  std::span<const double> logits;
  std::vector<double> reach;  ///< k sqrt(E + 2c)
  std::vector<bool> is_exact;
  double smallest_p = 0;  ///< below it numbers of the dtype have no relative error
};

RouterRow router_row(const Rounding& rounding, const TrackedSoftmax& softmax,
                     const TrackedTensor& logits, std::int64_t row) {
  const std::int64_t count = logits.value.cols;
  RouterRow result;
  result.p = {softmax.p.data() + row * count, static_cast<std::size_t>(count)};
  result.logits = {logits.value.data.data() + row * count, static_cast<std::size_t>(count)};
  for (std::int64_t i = 0; i < count; ++i) {
    const double variance = softmax.exponent(row, i) + 2 * rounding.variance();
    result.reach.push_back(rounding.confidence * std::sqrt(variance));
    result.is_exact.push_back(logits.is_exact() || logits.variance_map()(row, i) == 0);
  }
  result.smallest_p = rounding.unit_roundoff <= 0x1p-53 ? 0x1p-1021 : 0x1p-125;
  return result;
}

bool is_near_tie(const RouterRow& row, std::size_t chosen, std::size_t other) {
  const double gap = row.logits[chosen] - row.logits[other];
  if (gap == 0 && row.is_exact[chosen] && row.is_exact[other]) return false;
  return gap <= row.reach[chosen] + row.reach[other];
}

/// Of `order`, the chosen experts by falling p, then the others: the k-th chosen is looked at
/// first.
std::optional<NearTie> near_tie_of(const RouterRow& row, const std::vector<std::int32_t>& order,
                                   std::int64_t top_k, std::int64_t index) {
  for (auto i = static_cast<std::size_t>(top_k); i-- > 0;) {
    const auto chosen = static_cast<std::size_t>(order[i]);
    if (row.p[chosen] < row.smallest_p) {
      return NearTie{index, order[i], -1, row.p[chosen], 0};
    }
    for (auto j = static_cast<std::size_t>(top_k); j < order.size(); ++j) {
      const auto other = static_cast<std::size_t>(order[j]);
      if (!is_near_tie(row, chosen, other)) continue;
      return NearTie{index, order[i], order[j], row.p[chosen], row.p[other]};
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::int32_t> largest_first(std::span<const double> p, std::int64_t top_k) {
  std::vector<std::int32_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  // The numbers of a training that diverged may be NaN: these come last, whatever the others are.
  const auto rank_of = [&](std::int32_t i) {
    const double value = p[static_cast<std::size_t>(i)];
    return std::isnan(value) ? -1.0 : value;
  };
  std::partial_sort(order.begin(), order.begin() + top_k, order.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      return rank_of(a) != rank_of(b) ? rank_of(a) > rank_of(b) : a < b;
                    });
  order.resize(static_cast<std::size_t>(top_k));
  return order;
}

ExpertRoutes route_by(const Rounding& rounding, const TrackedSoftmax& softmax,
                      const TrackedTensor& logits, std::int64_t top_k,
                      const std::vector<std::int64_t>& unused) {
  ExpertRoutes routes;
  for (std::int64_t i = 0; i < logits.value.rows; ++i) {
    const RouterRow row = router_row(rounding, softmax, logits, i);
    std::vector<std::int32_t> order = largest_first(row.p, top_k);
    routes.experts.insert(routes.experts.end(), order.begin(), order.end());
    if (routes.near_tie || std::binary_search(unused.begin(), unused.end(), i)) continue;
    std::vector<bool> is_chosen(row.p.size(), false);
    for (const std::int32_t expert : order)
      is_chosen[static_cast<std::size_t>(expert)] = true;
    for (std::size_t expert = 0; expert < row.p.size(); ++expert) {
      if (!is_chosen[expert]) order.push_back(static_cast<std::int32_t>(expert));
    }
    routes.near_tie = near_tie_of(row, order, top_k, i);
  }
  return routes;
}

void require_certain(const Scenario& scenario, std::int64_t step,
                     const std::vector<ExpertRoutes>& routes) {
  const std::vector<int> modules = experts_modules(scenario.model);
  for (std::size_t i = 0; i < routes.size(); ++i) {
    if (!routes[i].near_tie) continue;
    const NearTie& tie = *routes[i].near_tie;
    const std::int64_t positions = num_positions(scenario.model);
    // In which the logits come.
    const DType logits =
        module_dtypes(scenario).at(static_cast<std::size_t>(modules.at(i))).inputs.at(1);
    const bool is_float64 = logits == DType::Float64;
    const bool is_narrow = promoted(logits, DType::Float32) != logits;
    Diagnostic diagnostic;
    diagnostic.file = scenario.file;
    diagnostic.pointer = module_pointer(scenario.model, modules.at(i));
    const auto dtype = name_of(logits);
    diagnostic.message = fmt::format(
        "NEAR_TIE: at step {} \"{}\" sends sample {}, position {} to expert {} of probability "
        "{:.9g}",
        step, module_name(scenario.model, modules[i]), tie.row / positions, tie.row % positions,
        tie.chosen, tie.chosen_p);
    if (tie.other < 0) {
      diagnostic.message += fmt::format(", too small for {}", dtype);
      diagnostic.help = "logits are too far apart: make the bound of data.init, or lr, smaller";
    } else {
      diagnostic.message +=
          fmt::format(", not to expert {} of {:.9g}; rounding in {} may swap them", tie.other,
                      tie.other_p, dtype);
      diagnostic.help = fmt::format("take another data.seed{}",
                                    is_float64  ? ""
                                    : is_narrow ? ", fewer positions, or a wider dtype"
                                                : ", or dtype \"float64\"");
    }
    throw Error(ErrorKind::InvalidScenario, {diagnostic});
  }
}

}  // namespace hpsim
