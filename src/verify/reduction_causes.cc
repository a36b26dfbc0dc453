// Sums over some mesh dims only, and sums with weights.

#include <fmt/format.h>

#include <Eigen/QR>
#include <utility>

#include "base/check.h"
#include "verify/named_numbers.h"
#include "verify/provenance.h"

namespace hpsim {
namespace {

/// Mesh dims, larger than 1, along which the terms of a gradient differ.
MeshDims summed_dims(const TermTable& table) {
  const Evidence& evidence = table.suspect().evidence;
  MeshDims dims = evidence.plan.scenario.data.data_dims;
  if (table.num_parts() > 1) dims = union_of(dims, table.suspect().parameter().partial_group.dims);
  std::sort(dims.begin(), dims.end());
  std::erase_if(dims, [&](int dim) { return evidence.plan.mesh().size(dim) == 1; });
  return dims;
}

/// All sets of `dims` but the empty one, smaller ones first.
std::vector<MeshDims> subsets_of(const MeshDims& dims) {
  std::vector<MeshDims> subsets;
  for (std::size_t bits = 1; bits < (std::size_t{1} << dims.size()); ++bits) {
    MeshDims& subset = subsets.emplace_back();
    for (std::size_t i = 0; i < dims.size(); ++i) {
      if ((bits >> i & 1) != 0) subset.push_back(dims[i]);
    }
  }
  std::stable_sort(subsets.begin(), subsets.end(),
                   [](const MeshDims& a, const MeshDims& b) { return a.size() < b.size(); });
  return subsets;
}

/// The coordinate whose samples, and positions of them, make a term.
Coordinate place_of_term(const TermTable& table, std::int64_t data_rank, std::int64_t part) {
  const Evidence& evidence = table.suspect().evidence;
  const Mesh& mesh = evidence.plan.mesh();
  const MeshDims& data_dims = evidence.plan.scenario.data.data_dims;
  Coordinate place = mesh.coordinate_along(data_dims, data_rank);
  if (table.num_parts() == 1) return place;
  const MeshDims& partial = table.suspect().parameter().partial_group.dims;
  const Coordinate along = mesh.coordinate_along(partial, part);
  for (const int dim : partial)
    place[static_cast<std::size_t>(dim)] = along[static_cast<std::size_t>(dim)];
  return place;
}

/// Sum of the terms whose place is that of the shard's rank along `dims`.
std::vector<double> terms_at(const TermTable& table, const MeshDims& dims) {
  const Coordinate own = table.suspect().evidence.plan.mesh().coordinate_of(table.suspect().rank);
  std::vector<double> sum(table.suspect().size());
  for (std::int64_t d = 0; d < table.num_data_ranks(); ++d) {
    for (std::int64_t part = 0; part < table.num_parts(); ++part) {
      const Coordinate place = place_of_term(table, d, part);
      const bool is_here = std::all_of(dims.begin(), dims.end(), [&](int dim) {
        return place[static_cast<std::size_t>(dim)] == own[static_cast<std::size_t>(dim)];
      });
      if (!is_here) continue;
      for (std::int64_t m = 0; m < table.num_micro_batches(); ++m) {
        for (std::size_t i = 0; i < sum.size(); ++i)
          sum[i] += table.term(d, m, part)[i];
      }
    }
  }
  return sum;
}

/// "rep=1, fsdp=2"
std::string place_text(const TermTable& table, const MeshDims& dims) {
  const Mesh& mesh = table.suspect().evidence.plan.mesh();
  const Coordinate own = mesh.coordinate_of(table.suspect().rank);
  std::vector<std::string> parts;
  for (const int dim : dims)
    parts.push_back(fmt::format("{}={}", mesh.name(dim), own[static_cast<std::size_t>(dim)]));
  return join(parts);
}

/// The nearest factor that a mistake makes: small integers, and named numbers.
double nearest_factor(double factor, const std::vector<NamedNumber>& numbers) {
  double nearest = 0;
  const auto offer = [&](double candidate) {
    if (std::abs(candidate - factor) < std::abs(nearest - factor)) nearest = candidate;
  };
  for (const double candidate : {-1.0, 1.0, 2.0, 3.0})
    offer(candidate);
  for (const NamedNumber& number : numbers)
    offer(number.value);
  return nearest;
}

/// Weights of the terms with which they are the shard, as far as their numbers tell, or none.
std::vector<double> solve_weights(const TermTable& table,
                                  const std::vector<const std::vector<double>*>& terms) {
  constexpr std::size_t kMostTerms = 128;
  constexpr std::size_t kMostElems = 4096;
  const std::size_t elems = table.suspect().size();
  if (terms.size() < 2 || terms.size() > kMostTerms || elems < 2 * terms.size()) return {};
  const std::size_t stride = std::max<std::size_t>(1, elems / kMostElems);
  const auto rows = static_cast<Eigen::Index>((elems + stride - 1) / stride);
  if (static_cast<std::size_t>(rows) < 2 * terms.size()) return {};
  Eigen::MatrixXd matrix(rows, static_cast<Eigen::Index>(terms.size()));
  Eigen::VectorXd got(rows);
  for (Eigen::Index row = 0; row < rows; ++row) {
    const auto i = static_cast<std::size_t>(row) * stride;
    if (!std::isfinite(table.suspect().got[i])) return {};
    got[row] = table.suspect().got[i];
    for (std::size_t t = 0; t < terms.size(); ++t)
      matrix(row, static_cast<Eigen::Index>(t)) = (*terms[t])[i];
  }
  const Eigen::ColPivHouseholderQR<Eigen::MatrixXd> solver(matrix);
  if (solver.rank() < static_cast<Eigen::Index>(terms.size())) return {};
  const Eigen::VectorXd solution = solver.solve(got);
  return {solution.data(), solution.data() + solution.size()};
}

/// "0, 1, 2 times 1, 2, 0"; nothing if no named factors explain the shard, or all are 1.
std::optional<std::string> weights_text(const TermTable& table,
                                        const std::vector<const std::vector<double>*>& terms) {
  std::vector<double> weights = solve_weights(table, terms);
  if (weights.empty()) return std::nullopt;
  const auto numbers =
      named_numbers(table.suspect().evidence.plan.scenario, table.suspect().parameter());
  double largest = 1;
  for (double& weight : weights) {
    weight = nearest_factor(weight, numbers);
    largest = std::max(largest, std::abs(weight));
  }
  const bool fits = table.agrees(
      [&](std::size_t i) {
        double sum = 0;
        for (std::size_t t = 0; t < terms.size(); ++t)
          sum += weights[t] * (*terms[t])[i];
        return sum;
      },
      largest);
  if (!fits) return std::nullopt;
  std::vector<std::string> names;
  std::vector<std::string> factors;
  for (std::size_t t = 0; t < weights.size(); ++t) {
    if (weights[t] == 1) continue;
    names.push_back(fmt::format("{}", t));
    factors.push_back(fmt::format("{:.6g}", weights[t]));
  }
  return fmt::format("{} times {}", join(names), join(factors));
}

}  // namespace

std::vector<std::string> reduced_over_fewer_dims(const TermTable& table) {
  const Mesh& mesh = table.suspect().evidence.plan.mesh();
  std::vector<std::string> texts;
  const MeshDims summed = summed_dims(table);
  for (const MeshDims& kept : subsets_of(summed)) {
    const double factor = table.factor_of(terms_at(table, kept));
    if (factor == 0) continue;
    if (kept == summed && table.num_parts() == 1) {
      texts.push_back(fmt::format("equals {}the contribution of {} alone: not reduced",
                                  table.factor_text(factor),
                                  table.rank_text(table.own_data_rank())));
    } else {
      texts.push_back(fmt::format("equals {}what {} alone adds: not reduced over {}",
                                  table.factor_text(factor), place_text(table, kept),
                                  mesh.names(kept)));
    }
    break;
  }
  return texts;
}

std::vector<std::string> weighted_terms(const TermTable& table) {
  std::vector<const std::vector<double>*> ranks;
  for (std::int64_t d = 0; d < table.num_data_ranks(); ++d)
    ranks.push_back(&table.of_rank(d));
  if (const auto text = weights_text(table, ranks)) {
    return {fmt::format("counts the contributions of data ranks {}, others once", *text)};
  }
  std::vector<const std::vector<double>*> micro_batches;
  for (std::int64_t m = 0; m < table.num_micro_batches(); ++m)
    micro_batches.push_back(&table.of_micro_batch(m));
  if (const auto text = weights_text(table, micro_batches)) {
    return {fmt::format("counts micro-batches {}, others once", *text)};
  }
  return {};
}

}  // namespace hpsim
