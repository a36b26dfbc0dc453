#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>
#include <limits>

namespace hpsim {

// Sums, maxima and exponentials over a row that depend on its values alone. Eigen's begin with the
// first aligned element, so that the order of a sum, and which elements a vector exponential takes,
// depend on the address; but copies of a result must agree in every bit on all ranks.
//
// Element i belongs to lane i mod kLanes. Functions see whole lanes; behind the end of a row they
// see zeros, and what they give for these is dropped.

inline constexpr int kLanes = 16;

template <class T>
using Lanes = Eigen::Array<T, kLanes, 1>;

/// x[0, count), then zeros.
template <class T>
[[nodiscard]] Lanes<T> lanes_of(const T* x, std::int64_t count) {
  Lanes<T> lanes = Lanes<T>::Zero();
  std::copy_n(x, count, lanes.data());
  return lanes;
}

template <class T>
[[nodiscard]] Lanes<T> lanes_of(const T* x) {
  return Eigen::Map<const Lanes<T>>(x);
}

/// Sum over i of term(x[i]...): every lane in order, then the lanes in a fixed order.
template <class T, class Term, class... Row>
[[nodiscard]] T lane_sum(std::int64_t elems, const Term& term, const T* x, const Row*... more) {
  Lanes<T> sum = Lanes<T>::Zero();
  std::int64_t i = 0;
  for (; i + kLanes <= elems; i += kLanes)
    sum += term(lanes_of(x + i), lanes_of(more + i)...);
  if (i < elems) {
    const Lanes<T> last = term(lanes_of(x + i, elems - i), lanes_of(more + i, elems - i)...);
    for (int lane = 0; lane < elems - i; ++lane)
      sum[lane] += last[lane];
  }
  return sum.sum();
}

template <class T>
[[nodiscard]] T lane_sum(std::int64_t elems, const T* x) {
  return lane_sum(
      elems, [](const Lanes<T>& lanes) { return lanes; }, x);
}

/// The largest element; minus infinity if there is none.
template <class T>
[[nodiscard]] T lane_max(std::int64_t elems, const T* x) {
  Lanes<T> max = Lanes<T>::Constant(-std::numeric_limits<T>::infinity());
  std::int64_t i = 0;
  for (; i + kLanes <= elems; i += kLanes)
    max = max.max(lanes_of(x + i));
  for (int lane = 0; lane < elems - i; ++lane)
    max[lane] = std::max(max[lane], x[i + lane]);
  return max.maxCoeff();
}

/// y[i] = f(x[i]...); y may be one of the rows that are read.
template <class T, class Function, class... Row>
void lane_map(std::int64_t elems, const Function& f, T* y, const T* x, const Row*... more) {
  std::int64_t i = 0;
  for (; i + kLanes <= elems; i += kLanes) {
    Eigen::Map<Lanes<T>> to(y + i);
    to = f(lanes_of(x + i), lanes_of(more + i)...);
  }
  if (i < elems) {
    const Lanes<T> last = f(lanes_of(x + i, elems - i), lanes_of(more + i, elems - i)...);
    std::copy_n(last.data(), elems - i, y + i);
  }
}

/// Within two units in the last place of exp(x) where that is a normal number; below, between 0 and
/// the smallest of these.
template <class T>
[[nodiscard]] Lanes<T> lane_exp(const Lanes<T>& x) {
  return x.exp();
}

}  // namespace hpsim
