#include "baseline/tracked_optimizer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace hpsim {
namespace {

/// Elements that are updated together, small enough for the first-level cache.
constexpr int kChunk = 256;
using Chunk = Eigen::Array<double, Eigen::Dynamic, 1, Eigen::ColMajor, kChunk, 1>;

struct TrackedChunk {
  Chunk value;
  Chunk variance;
  Chunk scatter = {};  ///< over ranks that hold their own; empty: all hold the same
};

TrackedChunk load(const TrackedTensor& tensor, std::int64_t begin, std::int64_t count) {
  using Map = Eigen::Map<const Eigen::ArrayXd>;
  TrackedChunk chunk{Map(tensor.value.data.data() + begin, count), Chunk::Zero(count)};
  if (!tensor.is_exact()) chunk.variance = Map(tensor.variance.data() + begin, count);
  return chunk;
}

void store(const TrackedChunk& chunk, TrackedTensor& tensor, std::int64_t begin) {
  using Map = Eigen::Map<Eigen::ArrayXd>;
  Map(tensor.value.data.data() + begin, chunk.value.size()) = chunk.value;
  Map(tensor.variance.data() + begin, chunk.variance.size()) = chunk.variance;
}

TrackedTensor like(const TrackedTensor& tensor) {
  TrackedTensor result{PlainTensor<double>(tensor.value.rows, tensor.value.cols), {}};
  result.variance = zeroed_vector<double>(result.value.data.size());
  return result;
}

/// Scatter of a x + b y, at most: what ranks have in common is not known.
Chunk scatter_of_sum(double a, const TrackedChunk& x, double b, const TrackedChunk& y) {
  if (x.scatter.size() == 0) return b * b * y.scatter;
  if (y.scatter.size() == 0) return a * a * x.scatter;
  return (std::abs(a) * x.scatter.sqrt() + std::abs(b) * y.scatter.sqrt()).square();
}

Chunk join(const Rounding& rounding, const Chunk& a, const Chunk& b) {
  if (rounding.is_shared) return (a.sqrt() + b.sqrt()).square();
  return a + b;
}

/// a x + b y with rounded factors, in the most that any order of operations rounds: the factors and
/// the products relative to their terms, the sum to itself. A factor of 1 is not a product. Where
/// ranks hold their own terms, squares are the means of theirs.
TrackedChunk combine(const Rounding& rounding, double a, const TrackedChunk& x, double b,
                     const TrackedChunk& y) {
  const auto product_roundings = [](double factor) { return factor == 1 ? 0.0 : 2.0; };
  TrackedChunk sum;
  sum.value = a * x.value + b * y.value;
  sum.variance =
      join(rounding, a * a * x.variance, b * b * y.variance) +
      rounding.variance() * (product_roundings(a) * (a * x.value).square() +
                             product_roundings(b) * (b * y.value).square() + sum.value.square());
  sum.scatter = scatter_of_sum(a, x, b, y);
  if (sum.scatter.size() == 0) return sum;
  Chunk squares = sum.scatter;
  if (x.scatter.size() != 0) squares += product_roundings(a) * a * a * x.scatter;
  if (y.scatter.size() != 0) squares += product_roundings(b) * b * b * y.scatter;
  sum.variance += rounding.variance() * squares;
  return sum;
}

/// How far the gradients and the state of ranks are from their means.
void load_scatter(const RankMeans& ranks, const Rounding& rounding, std::int64_t begin,
                  TrackedChunk& gradient, std::vector<TrackedChunk>& state) {
  const double share =
      static_cast<double>(ranks.num_ranks) / static_cast<double>(ranks.num_samples);
  gradient.scatter = share / rounding.variance() * gradient.variance;
  for (std::size_t i = 0; ranks.scatter != nullptr && i < ranks.scatter->size(); ++i) {
    const std::vector<double>& given = (*ranks.scatter)[i];
    if (given.empty()) continue;
    state[i].scatter =
        Eigen::Map<const Eigen::ArrayXd>(given.data() + begin, gradient.value.size());
  }
}

/// The mean of what the ranks hold of a weight.
void take_mean(std::int64_t num_ranks, const Rounding& rounding, TrackedChunk& weight) {
  const bool is_power_of_two = std::has_single_bit(static_cast<std::uint64_t>(num_ranks));
  const double product_roundings = is_power_of_two ? 0 : 2;
  const Chunk of_sum =
      static_cast<double>(num_ranks + 1) / 2 * weight.value.abs() + weight.scatter.sqrt();
  weight.variance +=
      rounding.variance() * (of_sum.square() + product_roundings * weight.value.square());
  weight.scatter = {};
}

void update_sgd(const OptimizerSpec& spec, std::int64_t num_updates, const Rounding& rounding,
                TrackedChunk& weight, std::vector<TrackedChunk>& state, TrackedChunk gradient) {
  if (spec.weight_decay != 0) {
    gradient = combine(rounding, 1, gradient, spec.weight_decay, weight);
  }
  TrackedChunk direction = gradient;
  if (spec.momentum != 0) {
    TrackedChunk& buffer = state[0];
    buffer = num_updates == 0 ? gradient : combine(rounding, spec.momentum, buffer, 1, gradient);
    Rounding same_errors = rounding;  // the buffer contains the gradient
    same_errors.is_shared = true;
    direction = spec.nesterov ? combine(same_errors, 1, gradient, spec.momentum, buffer) : buffer;
  }
  weight = combine(rounding, 1, weight, -spec.lr, direction);
}

/// The numbers of Adam's rule at one update.
struct AdamNumbers {
  double beta1, rest1, beta2, rest2, step_size, correction2, eps;
};

AdamNumbers adam_numbers(const OptimizerSpec& spec, std::int64_t num_updates) {
  const auto t = static_cast<double>(num_updates + 1);
  return {.beta1 = spec.beta1,
          .rest1 = 1 - spec.beta1,
          .beta2 = spec.beta2,
          .rest2 = 1 - spec.beta2,
          .step_size = spec.lr / (1 - std::pow(spec.beta1, t)),
          .correction2 = 1 - std::pow(spec.beta2, t),
          .eps = spec.eps};
}

/// What Adam subtracts from the weight: step_size m' / (sqrt(v' / correction2) + eps), with m' and
/// v' made from m, v and g.
Chunk adam_change(const AdamNumbers& n, const Chunk& m, const Chunk& v, const Chunk& g) {
  return n.step_size * (n.beta1 * m + n.rest1 * g) /
         (((n.beta2 * v + n.rest2 * g.square()) / n.correction2).sqrt() + n.eps);
}

/// The two g at which adam_change may be stationary. With numerator a + b g and denominator
/// S + e, S² = c + d g², it is where b c + b e S = a d g; squared, that is
/// (a²d² - b²e²d) g² - 2abcd g + b²c² - b²e²c = 0. Not a number where there is none.
std::array<Chunk, 2> stationary_points(const AdamNumbers& n, const Chunk& m, const Chunk& v) {
  const double b = n.rest1;
  const double d = n.rest2 / n.correction2;
  const Chunk a = n.beta1 * m;
  const Chunk c = n.beta2 * v / n.correction2;
  const double be_square = b * b * n.eps * n.eps;
  const Chunk quadratic = (a * d).square() - be_square * d;
  const Chunk half_linear = a * b * c * d;
  const Chunk constant = b * b * c.square() - be_square * c;
  const Chunk root = (half_linear.square() - quadratic * constant).sqrt();
  return {(half_linear + root) / quadratic, (half_linear - root) / quadratic};
}

/// Largest |change - centre| over g within `reach` of its value and the given m, v.
void widen(const AdamNumbers& n, const Chunk& m, const Chunk& v, const Chunk& g, const Chunk& reach,
           const Chunk& centre, Chunk& largest) {
  const Chunk low = g - reach;
  const Chunk high = g + reach;
  const auto try_at = [&](const Chunk& at) {
    // Any point of the interval may be tried; min and max drop what is not a number.
    const Chunk inside = at.isFinite().select(at, g).cwiseMax(low).cwiseMin(high);
    largest = largest.cwiseMax((adam_change(n, m, v, inside) - centre).abs());
  };
  try_at(low);
  try_at(g);
  try_at(high);
  try_at(Chunk::Zero(g.size()));
  for (const Chunk& point : stationary_points(n, m, v)) {
    try_at(point);
  }
}

/// Largest |change - centre| over all errors of g, m and v.
Chunk change_spread(const AdamNumbers& n, const Rounding& rounding, const TrackedChunk& m,
                    const TrackedChunk& v, const TrackedChunk& g, const Chunk& centre) {
  const double k = rounding.confidence;
  const Chunk reach = k * g.variance.sqrt();
  Chunk largest = Chunk::Zero(centre.size());
  if ((m.variance == 0).all() && (v.variance == 0).all()) {
    widen(n, m.value, v.value, g.value, reach, centre, largest);
    return largest;
  }
  for (const double m_side : {-k, k}) {
    for (const double v_side : {-k, k}) {
      widen(n, m.value + m_side * m.variance.sqrt(),
            (v.value + v_side * v.variance.sqrt()).cwiseMax(0), g.value, reach, centre, largest);
    }
  }
  return largest;
}

void update_adam(const OptimizerSpec& spec, const AdamNumbers& n, const Rounding& rounding,
                 TrackedChunk& weight, std::vector<TrackedChunk>& state, TrackedChunk g) {
  const double k = rounding.confidence;
  const double unit = rounding.variance();
  if (spec.weight_decay != 0) {
    if (spec.kind == OptimizerSpec::Kind::AdamW) {
      const double keep = 1 - spec.lr * spec.weight_decay;
      weight.value *= keep;
      weight.variance = keep * keep * weight.variance + 2 * unit * weight.value.square();
    } else {
      g = combine(rounding, 1, g, spec.weight_decay, weight);
    }
  }
  TrackedChunk& m = state[0];
  TrackedChunk& v = state[1];
  const Chunk change = adam_change(n, m.value, v.value, g.value);
  const Chunk spread = change_spread(n, rounding, m, v, g, change);

  // torch writes m as m + (1 - b1)(g - m): one more rounding, of the difference.
  const TrackedChunk exact_m{m.value, Chunk::Zero(m.value.size())};
  const TrackedChunk exact_g{g.value, Chunk::Zero(g.value.size())};
  const Chunk m_rounding = combine(rounding, n.beta1, exact_m, n.rest1, exact_g).variance +
                           unit * (n.rest1 * (g.value - m.value)).square();
  m.variance =
      join(rounding, n.beta1 * n.beta1 * m.variance, n.rest1 * n.rest1 * g.variance) + m_rounding;
  m.value = n.beta1 * m.value + n.rest1 * g.value;

  const Chunk reach = k * g.variance.sqrt();
  const Chunk v_reach =
      n.beta2 * k * v.variance.sqrt() + n.rest2 * (2 * g.value.abs() * reach + reach.square());
  const Chunk v_new = n.beta2 * v.value + n.rest2 * g.value.square();
  v.variance =
      (v_reach / k).square() + unit * (2 * (n.beta2 * v.value).square() +
                                       3 * (n.rest2 * g.value.square()).square() + v_new.square());
  v.value = v_new;

  // Relative to the change: v' (six roundings, halved by the root), the root, sqrt(1 - b2^t), the
  // quotient, eps, the sum, the quotient, the step size, the product.
  constexpr double kChangeRoundings = 6.0 / 4 + 8;
  const Chunk denominator = (v.value / n.correction2).sqrt() + n.eps;
  const Chunk change_variance = (spread / k).square() +
                                (n.step_size / denominator).square() * m_rounding +
                                kChangeRoundings * unit * change.square();
  weight.value -= change;
  weight.variance = join(rounding, weight.variance, change_variance) + unit * weight.value.square();
}

}  // namespace

TrackedUpdate update_tracked(const OptimizerSpec& spec, std::int64_t num_updates,
                             const Rounding& rounding, const TrackedTensor& parameter,
                             const std::vector<TrackedTensor>& state, const TrackedTensor& gradient,
                             const RankMeans& ranks) {
  HPSIM_CHECK(static_cast<int>(state.size()) == spec.num_state_tensors(),
              "{} state tensors, not {}", state.size(), spec.num_state_tensors());
  const bool is_mean = ranks.num_ranks > 1;
  HPSIM_CHECK(!is_mean || spec.kind == OptimizerSpec::Kind::Sgd, "means of updates but sgd's");
  TrackedUpdate result{like(parameter), {}, {}};
  for (const TrackedTensor& tensor : state) {
    result.state.push_back(like(tensor));
    if (is_mean)
      result.scatter.push_back(
          zeroed_vector<double, std::allocator<double>>(tensor.value.data.size()));
  }
  const AdamNumbers numbers = adam_numbers(spec, num_updates);
  std::vector<TrackedChunk> state_chunks(state.size());
  for (std::int64_t begin = 0; begin < parameter.value.elems(); begin += kChunk) {
    const std::int64_t count = std::min<std::int64_t>(kChunk, parameter.value.elems() - begin);
    TrackedChunk weight = load(parameter, begin, count);
    for (std::size_t i = 0; i < state.size(); ++i)
      state_chunks[i] = load(state[i], begin, count);
    TrackedChunk gradient_chunk = load(gradient, begin, count);
    if (is_mean) load_scatter(ranks, rounding, begin, gradient_chunk, state_chunks);
    if (spec.kind == OptimizerSpec::Kind::Sgd) {
      update_sgd(spec, num_updates, rounding, weight, state_chunks, std::move(gradient_chunk));
    } else {
      update_adam(spec, numbers, rounding, weight, state_chunks, std::move(gradient_chunk));
    }
    if (is_mean) take_mean(ranks.num_ranks, rounding, weight);
    store(weight, result.parameter, begin);
    for (std::size_t i = 0; i < state.size(); ++i) {
      store(state_chunks[i], result.state[i], begin);
      if (!is_mean) continue;
      Eigen::Map<Eigen::ArrayXd>(result.scatter[i].data() + begin, count) = state_chunks[i].scatter;
    }
  }
  return result;
}

}  // namespace hpsim
