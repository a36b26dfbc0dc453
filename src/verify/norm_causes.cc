#include "verify/norm_causes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "scenario/gradients.h"
#include "trace/rank_mean.h"
#include "verify/named_numbers.h"

namespace hpsim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Powers of the recorded gradients: what every shard of every parameter adds to a p-norm.
class GradientPowers {
 public:
  GradientPowers(const Evidence& evidence, std::int64_t step, double p)
      : evidence_(evidence), norm_type_(p) {
    for (int i = 0; i < evidence.num_parameters(); ++i) {
      std::vector<double>& powers = powers_.emplace_back();
      if (!has_gradient(evidence.plan.scenario, i, step)) continue;
      const auto view_of = [&](Rank rank) { return evidence.run.gradient(rank, step, i); };
      for (std::int64_t rank = 0; rank < evidence.num_ranks(); ++rank) {
        const bool is_mean = !evidence.plan.averaged_dims(i).empty();
        powers.push_back(is_mean ? power_of(own_mean(evidence.plan, i, Rank{rank}, view_of).mean)
                                 : power_of(view_of(Rank{rank})));
      }
    }
  }

  /// Parts of all ranks for which `counts` holds, each times weight(parameter, rank).
  template <class Counts, class Weight>
  [[nodiscard]] double norm(const Counts& counts, const Weight& weight) const {
    double power = 0;
    for (int i = 0; i < evidence_.num_parameters(); ++i) {
      const std::vector<double>& powers = powers_[static_cast<std::size_t>(i)];
      for (std::size_t rank = 0; rank < powers.size(); ++rank) {
        if (!counts(static_cast<std::int64_t>(rank))) continue;
        const double part = powers[rank];
        const double share = weight(i, rank);
        if (share == 0) continue;
        power = std::isinf(norm_type_) ? std::max(power, part) : power + part * share;
      }
    }
    return root(power);
  }
  [[nodiscard]] double root(double power) const {
    if (std::isinf(norm_type_)) return power;
    return norm_type_ == 2 ? std::sqrt(power) : std::pow(power, 1 / norm_type_);
  }
  /// Copies of every part of a parameter among all ranks.
  [[nodiscard]] double copies(int p) const {
    return static_cast<double>(evidence_.num_ranks() / evidence_.num_parts(p));
  }
  /// Copies of a part of a parameter among ranks that differ along `dims` only.
  [[nodiscard]] double copies_along(int p, const MeshDims& dims) const {
    const MeshDims cut = evidence_.parameter(p).cut_dims();
    double count = 1;
    for (const int dim : dims) {
      const bool is_cut = std::find(cut.begin(), cut.end(), dim) != cut.end();
      if (!is_cut) count *= static_cast<double>(evidence_.plan.mesh().size(dim));
    }
    return count;
  }

 private:
  template <class Element>
  [[nodiscard]] double sum_of(std::int64_t count, const Element& element) const {
    double power = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const double size = std::abs(element(i));
      if (std::isinf(norm_type_)) {
        power = std::max(power, size);
      } else {
        power += norm_type_ == 2 ? size * size : std::pow(size, norm_type_);
      }
    }
    return power;
  }
  [[nodiscard]] double power_of(const TensorView& view) const {
    return sum_of(view.elems, [&](std::int64_t i) { return view.at(i); });
  }
  [[nodiscard]] double power_of(const std::vector<double>& values) const {
    return sum_of(static_cast<std::int64_t>(values.size()),
                  [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
  }

  const Evidence& evidence_;
  double norm_type_;
  std::vector<std::vector<double>> powers_;  ///< [parameter][rank]
};

constexpr auto kAllRanks = [](std::int64_t) { return true; };

/// Tries candidates against one norm.
class NormCauses {
 public:
  NormCauses(const Evidence& evidence, std::int64_t step, double got, Rank rank)
      : evidence_(evidence),
        step_(step),
        got_(got),
        rank_(rank),
        powers_(evidence, step, norm_type()) {
    std::int64_t elems = 0;
    for (int p = 0; p < evidence.num_parameters(); ++p)
      elems +=
          num_elems(evidence.parameter(p).shape) * evidence.num_ranks() / evidence.num_parts(p);
    relative_ = 2 * std::ldexp(static_cast<double>(elems + 8), -53);
  }

  [[nodiscard]] std::vector<std::string> run() {
    offer(powers_.norm(kAllRanks, [&](int p, std::size_t) { return 1 / powers_.copies(p); }),
          "is the norm of the gradients as recorded");
    if (!texts_.empty()) return std::move(texts_);
    try_counted_copies();
    try_groups();
    try_sums_of_norms();
    try_other_norms();
    try_without_parameters();
    return std::move(texts_);
  }

 private:
  [[nodiscard]] double norm_type() const {
    const auto& clip = evidence_.plan.scenario.training.clip_grad_norm;
    return clip ? clip->norm_type : 2;
  }
  void offer(double candidate, const std::string& text) {
    if (texts_.size() >= kMaxExplanations || !(candidate > 0)) return;
    if (std::abs(candidate - got_) <= relative_ * candidate) texts_.push_back(text);
  }
  [[nodiscard]] const Mesh& mesh() const { return evidence_.plan.mesh(); }

  void try_counted_copies() {
    std::vector<MeshDims> sets;
    for (int dim = 0; dim < mesh().num_dims(); ++dim) {
      if (mesh().size(dim) > 1 && has_copies_along(dim)) sets.push_back({dim});
    }
    MeshDims all;
    for (const MeshDims& set : sets)
      all = union_of(all, set);
    if (sets.size() > 1) sets.push_back(all);
    for (const MeshDims& dims : sets) {
      const double norm = powers_.norm(kAllRanks, [&](int p, std::size_t) {
        return powers_.copies_along(p, dims) / powers_.copies(p);
      });
      offer(norm, fmt::format("counts copies along {}: gradients that all its ranks hold count {} "
                              "times",
                              mesh().names(dims), mesh().size(dims)));
    }
  }

  [[nodiscard]] bool has_copies_along(int dim) const {
    for (int p = 0; p < evidence_.num_parameters(); ++p) {
      if (powers_.copies_along(p, {dim}) > 1) return true;
    }
    return false;
  }

  void try_groups() {
    const Coordinate own = mesh().coordinate_of(rank_);
    offer(powers_.norm([&](std::int64_t rank) { return rank == rank_.value; },
                       [](int, std::size_t) { return 1.0; }),
          fmt::format("is the norm of what rank {} holds alone", rank_.value));
    for (int dim = 0; dim < mesh().num_dims() && mesh().num_dims() > 1; ++dim) {
      if (mesh().size(dim) == 1) continue;
      const auto at = own[static_cast<std::size_t>(dim)];
      const auto is_here = [&](std::int64_t rank) {
        return mesh().coordinate_of(Rank{rank})[static_cast<std::size_t>(dim)] == at;
      };
      // Copies among the ranks there: all but those along the dim.
      const double norm = powers_.norm(is_here, [&](int p, std::size_t) {
        return powers_.copies_along(p, {dim}) / powers_.copies(p);
      });
      offer(norm, fmt::format("is the norm of what {}={} holds alone: not summed over {}",
                              mesh().name(dim), at, mesh().name(dim)));
    }
  }

  void try_sums_of_norms() {
    double sum = 0;
    for (std::int64_t rank = 0; rank < evidence_.num_ranks(); ++rank) {
      sum += powers_.norm([&](std::int64_t of) { return of == rank; },
                          [](int, std::size_t) { return 1.0; });
    }
    offer(sum, "is the sum of the norms of ranks");
    offer(sum / static_cast<double>(evidence_.num_ranks()), "is the mean of the norms of ranks");
  }

  void try_other_norms() {
    const auto once = [&](const GradientPowers& powers) {
      return powers.norm(kAllRanks, [&](int p, std::size_t) { return 1 / powers.copies(p); });
    };
    const double right = once(powers_);
    if (!std::isinf(norm_type())) {
      offer(std::pow(right, norm_type()),
            fmt::format("is the sum of powers of {}, without its root", norm_type()));
    }
    for (const double p : {1.0, 2.0, kInfinity}) {
      if (p == norm_type()) continue;
      offer(once(GradientPowers(evidence_, step_, p)),
            std::isinf(p) ? std::string("is the largest gradient, the norm of \"inf\"")
                          : fmt::format("is the {}-norm", p));
    }
  }

  void try_without_parameters() {
    for (int left_out = 0; left_out < evidence_.num_parameters(); ++left_out) {
      if (evidence_.num_parameters() == 1) return;
      const double norm = powers_.norm(kAllRanks, [&](int p, std::size_t) {
        return p == left_out ? 0.0 : 1 / powers_.copies(p);
      });
      offer(norm, fmt::format("is without \"{}\"", evidence_.parameter(left_out).name));
    }
  }

  const Evidence& evidence_;
  std::int64_t step_;
  double got_;
  Rank rank_;
  GradientPowers powers_;
  double relative_ = 0;
  std::vector<std::string> texts_;
};

}  // namespace

std::vector<std::string> norm_causes(const Evidence& evidence, std::int64_t step, double got,
                                     Rank rank) {
  return NormCauses(evidence, step, got, rank).run();
}

}  // namespace hpsim
