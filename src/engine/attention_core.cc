#include "engine/attention_core.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "engine/lanes.h"
#include "plan/activation_part.h"

namespace hpsim {
namespace {

// kQueryTile positions are worked on at once. Smaller tiles skip more of what a causal head does
// not see, larger ones make better products. 8 samples of 128 positions, 8 heads of 64, float32,
// forward and backward in ms, beside the bare products of whole heads (2 and 5 each):
//
//   tile          32            64            128           bare products
//   causal        4.9   10.3    5.0   10.8    5.9   13.4    4.1   11.1
//   not causal    6.0   14.3    5.7   12.7    5.2   13.0    4.1   11.1

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using HeadMap = Eigen::Map<Matrix<T>, 0, Eigen::OuterStride<>>;
template <class T>
using ConstHeadMap = Eigen::Map<const Matrix<T>, 0, Eigen::OuterStride<>>;

/// Where a sample and head begin in an activation of `heads` heads.
std::int64_t head_offset(const AttentionShape& shape, std::int64_t heads, std::int64_t sample,
                         std::int64_t head) {
  return (sample * shape.seq * heads + head) * shape.head_dim;
}

/// Null where there is no activation.
template <class T>
HeadMap<T> head_of(const AttentionShape& shape, T* x, std::int64_t heads, std::int64_t sample,
                   std::int64_t head) {
  T* const first = x == nullptr ? nullptr : x + head_offset(shape, heads, sample, head);
  return HeadMap<T>(first, shape.seq, shape.head_dim, Eigen::OuterStride<>(heads * shape.head_dim));
}

template <class T>
ConstHeadMap<T> head_of(const AttentionShape& shape, const T* x, std::int64_t heads,
                        std::int64_t sample, std::int64_t head) {
  return ConstHeadMap<T>(x + head_offset(shape, heads, sample, head), shape.seq, shape.head_dim,
                         Eigen::OuterStride<>(heads * shape.head_dim));
}

/// Query positions [first, first + rows) and the keys [0, keys) that some of them see.
struct QueryTile {
  std::int64_t first = 0;
  std::int64_t rows = 0;
  std::int64_t keys = 0;
};

template <class Visit>
void each_tile(const AttentionShape& shape, const Visit& visit) {
  for (std::int64_t first = 0; first < shape.seq; first += kQueryTile) {
    const std::int64_t rows = std::min(kQueryTile, shape.seq - first);
    visit(QueryTile{first, rows, shape.causal ? first + rows : shape.seq});
  }
}

/// Keys that row `row` of a tile sees.
std::int64_t keys_seen(const AttentionShape& shape, const QueryTile& tile, std::int64_t row) {
  return shape.causal ? tile.first + row + 1 : shape.seq;
}

template <class T>
T score_scale(const AttentionShape& shape) {
  return 1 / std::sqrt(static_cast<T>(shape.head_dim));
}

/// Products q kᵀ become probabilities, 0 where a position does not see. Both: [rows, keys]
template <class T>
void softmax_in_place(const AttentionShape& shape, const QueryTile& tile, T* scores) {
  const T scale = score_scale<T>(shape);
  for (std::int64_t r = 0; r < tile.rows; ++r, scores += tile.keys) {
    const std::int64_t seen = keys_seen(shape, tile, r);
    const T max = lane_max(seen, scores);
    const auto shifted = [max, scale](const Lanes<T>& s) -> Lanes<T> {
      return lane_exp<T>((s - max) * scale);
    };
    lane_map(seen, shifted, scores, scores);
    const T sum = lane_sum(seen, scores);
    for (std::int64_t i = 0; i < seen; ++i)
      scores[i] /= sum;
    std::fill(scores + seen, scores + tile.keys, T(0));
  }
}

/// Gradients of probabilities p become those of products q kᵀ. Both: [rows, keys]
template <class T>
void softmax_backward_in_place(const AttentionShape& shape, const QueryTile& tile, const T* p,
                               T* gradient) {
  const T scale = score_scale<T>(shape);
  const auto product = [](const Lanes<T>& a, const Lanes<T>& b) -> Lanes<T> { return a * b; };
  for (std::int64_t r = 0; r < tile.rows; ++r, p += tile.keys, gradient += tile.keys) {
    const T mean = lane_sum(keys_seen(shape, tile, r), product, p, gradient);
    for (std::int64_t i = 0; i < tile.keys; ++i)
      gradient[i] = p[i] * (gradient[i] - mean) * scale;
  }
}

/// dq, and what one query head adds to dk and dv, but those that are null.
template <class T>
struct HeadBackward {
  ConstHeadMap<T> q, k, v, dy;
  HeadMap<T> dq, dk, dv;

  void run(const AttentionShape& shape, T* scratch) {
    each_tile(shape, [&](const QueryTile& tile) {
      Eigen::Map<Matrix<T>> p(scratch, tile.rows, tile.keys);
      Eigen::Map<Matrix<T>> ds(scratch + tile.rows * tile.keys, tile.rows, tile.keys);
      const auto q_tile = q.middleRows(tile.first, tile.rows);
      const auto dy_tile = dy.middleRows(tile.first, tile.rows);
      const auto k_seen = k.topRows(tile.keys);
      p.noalias() = q_tile * k_seen.transpose();
      softmax_in_place(shape, tile, p.data());
      if (dv.data() != nullptr) dv.topRows(tile.keys).noalias() += p.transpose() * dy_tile;
      if (dq.data() == nullptr && dk.data() == nullptr) return;
      ds.noalias() = dy_tile * v.topRows(tile.keys).transpose();
      softmax_backward_in_place(shape, tile, p.data(), ds.data());
      if (dq.data() != nullptr) dq.middleRows(tile.first, tile.rows).noalias() = ds * k_seen;
      if (dk.data() != nullptr) dk.topRows(tile.keys).noalias() += ds.transpose() * q_tile;
    });
  }
};

/// Calls visit(sample, query head, key head), heads of a group one after the other.
template <class Visit>
void each_head(const AttentionShape& shape, const Visit& visit) {
  for (std::int64_t sample = 0; sample < shape.samples; ++sample) {
    for (std::int64_t head = 0; head < shape.heads; ++head)
      visit(sample, head, head / (shape.heads / shape.kv_heads));
  }
}

}  // namespace

std::int64_t attention_forward_scratch(const AttentionShape& shape) {
  return shape.heads == 0 ? 0 : attention_scratch_elems(shape.seq, false);
}

std::int64_t attention_backward_scratch(const AttentionShape& shape) {
  return shape.heads == 0 ? 0 : attention_scratch_elems(shape.seq, true);
}

template <class T>
void attention_core_forward(const AttentionShape& shape, const T* q, const T* k, const T* v, T* y,
                            T* scratch) {
  each_head(shape, [&](std::int64_t sample, std::int64_t head, std::int64_t kv_head) {
    const auto q_head = head_of(shape, q, shape.heads, sample, head);
    const auto k_head = head_of(shape, k, shape.kv_heads, sample, kv_head);
    const auto v_head = head_of(shape, v, shape.kv_heads, sample, kv_head);
    auto y_head = head_of(shape, y, shape.heads, sample, head);
    each_tile(shape, [&](const QueryTile& tile) {
      Eigen::Map<Matrix<T>> p(scratch, tile.rows, tile.keys);
      p.noalias() =
          q_head.middleRows(tile.first, tile.rows) * k_head.topRows(tile.keys).transpose();
      softmax_in_place(shape, tile, p.data());
      y_head.middleRows(tile.first, tile.rows).noalias() = p * v_head.topRows(tile.keys);
    });
  });
}

template <class T>
void attention_core_backward(const AttentionShape& shape, const T* q, const T* k, const T* v,
                             const T* dy, T* dq, T* dk, T* dv, T* scratch) {
  const std::int64_t kv_elems = shape.samples * shape.seq * shape.kv_heads * shape.head_dim;
  for (T* const sum : {dk, dv}) {
    if (sum != nullptr) std::fill_n(sum, kv_elems, T(0));
  }
  each_head(shape, [&](std::int64_t sample, std::int64_t head, std::int64_t kv_head) {
    HeadBackward<T>{.q = head_of(shape, q, shape.heads, sample, head),
                    .k = head_of(shape, k, shape.kv_heads, sample, kv_head),
                    .v = head_of(shape, v, shape.kv_heads, sample, kv_head),
                    .dy = head_of(shape, dy, shape.heads, sample, head),
                    .dq = head_of(shape, dq, shape.heads, sample, head),
                    .dk = head_of(shape, dk, shape.kv_heads, sample, kv_head),
                    .dv = head_of(shape, dv, shape.kv_heads, sample, kv_head)}
        .run(shape, scratch);
  });
}

#define HPSIM_INSTANTIATE(T)                                                                       \
  template void attention_core_forward<T>(const AttentionShape&, const T*, const T*, const T*, T*, \
                                          T*);                                                     \
  template void attention_core_backward<T>(const AttentionShape&, const T*, const T*, const T*,    \
                                           const T*, T*, T*, T*, T*);
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
