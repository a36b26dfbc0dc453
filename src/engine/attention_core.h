#pragma once

#include <cstdint>

namespace hpsim {

// softmax(q kᵀ / sqrt(head_dim)) v for the heads that one rank holds, one sample and head at a
// time. q, y: [samples seq, heads head_dim]; k, v: [samples seq, kv_heads head_dim]; query head h
// reads key and value head h / (heads / kv_heads); with `causal`, position i sees 0..i.

struct AttentionShape {
  std::int64_t samples = 0;
  std::int64_t seq = 0;
  std::int64_t heads = 0;     ///< of queries, a multiple of kv_heads; 0: the rank holds none
  std::int64_t kv_heads = 0;  ///< of keys and values
  std::int64_t head_dim = 0;
  bool causal = true;
};

/// Elements of scratch that the caller lends: scores of up to kQueryTile positions and all keys of
/// one head; backward, which works them out again, also holds their gradients.
///
///   seq 128, forward    64 * 128        seq 5, forward      5 * 5
///   seq 128, backward   2 * 64 * 128    no heads            0
[[nodiscard]] std::int64_t attention_forward_scratch(const AttentionShape& shape);
[[nodiscard]] std::int64_t attention_backward_scratch(const AttentionShape& shape);

template <class T>
void attention_core_forward(const AttentionShape& shape, const T* q, const T* k, const T* v, T* y,
                            T* scratch);

/// dq, dk and dv, overwriting, but those that are null; query heads of a group are added in order.
/// \pre these overlap nothing that is read
template <class T>
void attention_core_backward(const AttentionShape& shape, const T* q, const T* k, const T* v,
                             const T* dy, T* dq, T* dk, T* dv, T* scratch);

}  // namespace hpsim
