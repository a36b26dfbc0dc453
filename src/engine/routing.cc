#include "engine/routing.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/lanes.h"

namespace hpsim {

template <class T>
void routing_probabilities(const RoutingShape& shape, const T* logits, T* p) {
  const std::int64_t count = shape.num_experts;
  for (std::int64_t row = 0; row < shape.rows; ++row, logits += count, p += count) {
    const T max = lane_max(count, logits);
    const auto shifted = [max](const Lanes<T>& z) -> Lanes<T> { return lane_exp<T>(z - max); };
    lane_map(count, shifted, p, logits);
    const T sum = lane_sum(count, p);
    for (std::int64_t e = 0; e < count; ++e)
      p[e] /= sum;
  }
}

template <class T>
void choose_experts(const RoutingShape& shape, const T* p, std::int64_t* chosen) {
  std::vector<std::int64_t> experts(static_cast<std::size_t>(shape.num_experts));
  for (std::int64_t row = 0; row < shape.rows; ++row, p += shape.num_experts) {
    std::iota(experts.begin(), experts.end(), std::int64_t{0});
    const auto is_before = [p](std::int64_t a, std::int64_t b) {
      return p[a] > p[b] || (p[a] == p[b] && a < b);
    };
    std::partial_sort(experts.begin(), experts.begin() + shape.top_k, experts.end(), is_before);
    chosen = std::copy_n(experts.begin(), shape.top_k, chosen);
  }
}

template <class T>
void routing_backward(const RoutingShape& shape, const T* p, const std::int64_t* chosen,
                      const T* dp, T* dlogits) {
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    T sum = 0;
    for (std::int64_t k = 0; k < shape.top_k; ++k)
      sum += p[chosen[k]] * dp[k];
    for (std::int64_t e = 0; e < shape.num_experts; ++e)
      dlogits[e] = -p[e] * sum;
    for (std::int64_t k = 0; k < shape.top_k; ++k)
      dlogits[chosen[k]] = p[chosen[k]] * (dp[k] - sum);
    p += shape.num_experts;
    dlogits += shape.num_experts;
    chosen += shape.top_k;
    dp += shape.top_k;
  }
}

#define HPSIM_INSTANTIATE(T)                                                                      \
  template void routing_probabilities<T>(const RoutingShape&, const T*, T*);                      \
  template void choose_experts<T>(const RoutingShape&, const T*, std::int64_t*);                  \
  template void routing_backward<T>(const RoutingShape&, const T*, const std::int64_t*, const T*, \
                                    T*);
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
