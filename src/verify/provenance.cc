#include "verify/provenance.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "mesh/group.h"
#include "scenario/precision.h"
#include "trace/rank_mean.h"
#include "verify/compare_shard.h"
#include "verify/diagnose.h"
#include "verify/named_numbers.h"

namespace hpsim {
namespace {

void add_to(std::vector<double>& sum, const std::vector<double>& term) {
  sum.resize(term.size());
  for (std::size_t i = 0; i < term.size(); ++i)
    sum[i] += term[i];
}

/// Of the dtypes that the gradient passes through.
double coarsest_roundoff(const Evidence& evidence, int p) {
  const Scenario& scenario = evidence.plan.scenario;
  const PlannedParameter& parameter = evidence.parameter(p);
  return std::max({unit_roundoff(carrier_dtype(scenario)), unit_roundoff(parameter.dtype),
                   unit_roundoff(parameter.compute_dtype),
                   unit_roundoff(reduce_dtype(scenario, p))});
}

/// "rank 6", or, where several fit, "one of rank 0, rank 1, which are alike here".
std::string one_of(const std::vector<std::string>& names) {
  if (names.size() == 1) return names[0];
  constexpr std::size_t kMostNamed = 8;
  if (names.size() > kMostNamed) {
    return fmt::format("one of {} that are alike here, {} the first", names.size(), names[0]);
  }
  return fmt::format("one of {}, which are alike here", join(names));
}

/// Names of those of `count` things for which `fits` holds.
template <class Fits, class Name>
std::vector<std::string> fitting(std::int64_t count, const Fits& fits, const Name& name) {
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < count; ++i) {
    if (fits(i)) names.push_back(name(i));
  }
  return names;
}

/// The shard as the sum of all terms and `factor` times another sum, for factors -1 and 1.
bool is_all_and(const TermTable& table, double factor, const std::vector<double>& part) {
  return table.agrees([&](std::size_t i) { return table.all()[i] + factor * part[i]; },
                      std::max(1.0, 1 + factor));
}

}  // namespace

TermTable::TermTable(const Suspect& suspect, const Contributions& contributions)
    : suspect_(suspect), contributions_(contributions) {
  by_rank_.resize(static_cast<std::size_t>(num_data_ranks()));
  by_micro_batch_.resize(static_cast<std::size_t>(num_micro_batches()));
  for (std::int64_t d = 0; d < num_data_ranks(); ++d) {
    for (std::int64_t m = 0; m < num_micro_batches(); ++m) {
      for (std::int64_t part = 0; part < num_parts(); ++part) {
        HPSIM_CHECK(term(d, m, part).size() == suspect.size(), "{} elements of a term, {} got",
                    term(d, m, part).size(), suspect.size());
        add_to(by_rank_[static_cast<std::size_t>(d)], term(d, m, part));
        add_to(by_micro_batch_[static_cast<std::size_t>(m)], term(d, m, part));
      }
    }
  }
  for (const std::vector<double>& rank : by_rank_)
    add_to(all_, rank);
  const Evidence& evidence = suspect.evidence;
  if (evidence.reference.exact) return;
  const Scenario& scenario = evidence.plan.scenario;
  relative_ = 4 * evidence.reference.unit_roundoff;
  const auto rows =
      static_cast<double>(scenario.training.global_batch * num_positions(scenario.model));
  slack_ = evidence.reference.confidence * coarsest_roundoff(evidence, suspect.place.parameter) *
           std::sqrt(rows / 3);
}

double TermTable::bound(std::size_t i, double value, double largest_factor) const {
  const double expected = suspect_.expected.value[i];
  const double spread = suspect_.expected.bound[i] - relative_ * std::abs(expected);
  return largest_factor * spread + relative_ * std::abs(value) +
         slack_ * std::max(0.0, std::abs(value) - std::abs(expected));
}

double TermTable::factor_of(const std::vector<double>& sum) const {
  if (agrees([&](std::size_t i) { return sum[i]; })) return 1;
  if (suspect_.size() < 2) return 0;
  for (const NamedNumber& number :
       named_numbers(suspect_.evidence.plan.scenario, suspect_.parameter())) {
    const double factor = number.value;
    if (agrees([&](std::size_t i) { return factor * sum[i]; }, std::max(1.0, std::abs(factor))))
      return factor;
  }
  return 0;
}

std::string TermTable::factor_text(double factor) const {
  if (factor == 1) return "";
  const auto names =
      explain(factor, named_numbers(suspect_.evidence.plan.scenario, suspect_.parameter()));
  return names.empty() ? fmt::format("{:.6g} times ", factor) : names[0] + " times ";
}

std::string TermTable::rank_text(std::int64_t data_rank) const {
  const Mesh& mesh = suspect_.evidence.plan.mesh();
  const auto& index =
      suspect_.evidence.ranks.index_along(suspect_.evidence.plan.scenario.data.data_dims);
  std::vector<std::int64_t> ranks;
  for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
    if (index[static_cast<std::size_t>(rank)] == data_rank) ranks.push_back(rank);
  }
  const std::string text = describe_ranks(ranks, mesh.num_ranks());
  return ranks.size() == 1 ? text : fmt::format("{} (data rank {})", text, data_rank);
}

std::int64_t TermTable::own_data_rank() const {
  const Evidence& evidence = suspect_.evidence;
  return evidence.plan.mesh().index_along(evidence.plan.scenario.data.data_dims,
                                          evidence.plan.mesh().coordinate_of(suspect_.rank));
}

std::vector<std::string> without_a_rank(const TermTable& table) {
  const auto names = fitting(
      table.num_data_ranks(), [&](auto d) { return is_all_and(table, -1, table.of_rank(d)); },
      [&](auto d) { return table.rank_text(d); });
  if (names.empty() || table.num_data_ranks() == 1) return {};
  return {"equals the gradient without the contribution of " + one_of(names)};
}

std::vector<std::string> rank_counted_twice(const TermTable& table) {
  const auto names = fitting(
      table.num_data_ranks(), [&](auto d) { return is_all_and(table, 1, table.of_rank(d)); },
      [&](auto d) { return table.rank_text(d); });
  if (names.empty() || table.num_data_ranks() == 1) return {};
  return {fmt::format("counts the contribution of {} twice", one_of(names))};
}

std::vector<std::string> rank_in_place_of_another(const TermTable& table) {
  constexpr std::int64_t kMostRanks = 256;
  if (table.num_data_ranks() > kMostRanks) return {};
  for (std::int64_t in = 0; in < table.num_data_ranks(); ++in) {
    for (std::int64_t out = 0; out < table.num_data_ranks(); ++out) {
      if (in == out) continue;
      const auto value = [&](std::size_t i) {
        return table.all()[i] + table.of_rank(in)[i] - table.of_rank(out)[i];
      };
      if (!table.agrees(value, 2)) continue;
      return {fmt::format("counts the contribution of {} in place of that of {}",
                          table.rank_text(in), table.rank_text(out))};
    }
  }
  return {};
}

std::vector<std::string> another_rank_alone(const TermTable& table) {
  if (table.num_data_ranks() == 1) return {};
  for (std::int64_t d = 0; d < table.num_data_ranks(); ++d) {
    if (d == table.own_data_rank()) continue;
    const double factor = table.factor_of(table.of_rank(d));
    if (factor == 0) continue;
    return {fmt::format("equals {}the contribution of {} alone", table.factor_text(factor),
                        table.rank_text(d))};
  }
  return {};
}

std::vector<std::string> micro_batch_lost_or_twice(const TermTable& table) {
  std::vector<std::string> texts;
  const std::int64_t count = table.num_micro_batches();
  if (count == 1) return texts;
  const auto name = [](std::int64_t m) { return fmt::format("micro-batch {}", m); };
  const auto lost = fitting(
      count, [&](auto m) { return is_all_and(table, -1, table.of_micro_batch(m)); }, name);
  if (!lost.empty()) texts.push_back("equals the gradient without " + one_of(lost));
  double factor = 1;
  const auto alone = fitting(
      count,
      [&](auto m) {
        const double of_this = table.factor_of(table.of_micro_batch(m));
        if (of_this != 0) factor = of_this;
        return of_this != 0;
      },
      name);
  // Of two micro-batches, the sum without one is the other.
  if (!alone.empty() && (lost.empty() || count > 2)) {
    texts.push_back(fmt::format("equals {}{} alone", table.factor_text(factor), one_of(alone)));
  }
  const auto twice = fitting(
      count, [&](auto m) { return is_all_and(table, 1, table.of_micro_batch(m)); }, name);
  if (!twice.empty()) texts.push_back(fmt::format("counts {} twice", one_of(twice)));
  return texts;
}

std::vector<std::string> pass_lost_or_twice(const TermTable& table) {
  if (table.num_micro_batches() == 1 || table.num_data_ranks() == 1 || table.num_parts() > 1)
    return {};
  for (std::int64_t d = 0; d < table.num_data_ranks(); ++d) {
    for (std::int64_t m = 0; m < table.num_micro_batches(); ++m) {
      const std::string name = fmt::format("micro-batch {} of {}", m, table.rank_text(d));
      if (is_all_and(table, -1, table.term(d, m, 0))) {
        return {"equals the gradient without " + name};
      }
      if (is_all_and(table, 1, table.term(d, m, 0))) return {fmt::format("counts {} twice", name)};
    }
  }
  return {};
}

std::vector<std::string> largest_in_place_of_sum(const TermTable& table) {
  if (table.num_data_ranks() == 1) return {};
  std::vector<double> largest = table.of_rank(0);
  for (std::int64_t d = 1; d < table.num_data_ranks(); ++d) {
    for (std::size_t i = 0; i < largest.size(); ++i)
      largest[i] = std::max(largest[i], table.of_rank(d)[i]);
  }
  const double factor = table.factor_of(largest);
  if (factor == 0) return {};
  return {
      fmt::format("is {}the largest contribution of all ranks, element by element: max in "
                  "place of sum",
                  table.factor_text(factor))};
}

std::vector<std::string> error_is_older(const TermTable& table) {
  if (!table.suspect().evidence.reference.exact || table.suspect().place.step == 0) return {};
  if (!table.agrees([&](std::size_t i) { return table.all()[i]; })) return {};
  return {
      "equals the gradient from the parameters that the run held before the step: what is off is "
      "older"};
}

std::vector<std::string> provenance(const TermTable& table) {
  std::vector<std::string> texts;
  for (auto* const cause :
       {&error_is_older, &reduced_over_fewer_dims, &without_a_rank, &rank_counted_twice,
        &micro_batch_lost_or_twice, &another_rank_alone, &pass_lost_or_twice,
        &rank_in_place_of_another, &largest_in_place_of_sum}) {
    for (std::string& text : cause(table))
      texts.push_back(std::move(text));
    if (texts.size() >= kMaxExplanations) return texts;
  }
  if (texts.empty()) texts = weighted_terms(table);
  return texts;
}

}  // namespace hpsim
