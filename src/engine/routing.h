#pragma once

#include <cstdint>

namespace hpsim {

// The router of experts: probabilities of all experts for every row, and the top_k of these.
// logits, p and their gradients: [rows, num_experts]; chosen: [rows, top_k]

struct RoutingShape {
  std::int64_t rows = 0;
  std::int64_t num_experts = 0;
  std::int64_t top_k = 0;  ///< at most num_experts
};

/// p = softmax(logits) of every row; p may be the logits.
template <class T>
void routing_probabilities(const RoutingShape& shape, const T* logits, T* p);

/// The top_k experts of every row by falling probability, equal ones by ascending index.
///
///   p 0.2 0.4 0.4, top 2    1 2        p 0.4 0.2 0.4, top 3    0 2 1
template <class T>
void choose_experts(const RoutingShape& shape, const T* p, std::int64_t* chosen);

/// dlogit_e = p_e ([e is chosen] dp_e - sum over chosen c of p_c dp_c), p not renormalised; dp:
/// [rows, top_k], of the chosen probabilities.
template <class T>
void routing_backward(const RoutingShape& shape, const T* p, const std::int64_t* chosen,
                      const T* dp, T* dlogits);

}  // namespace hpsim
