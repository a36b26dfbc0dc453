#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "model/model_spec.h"

namespace hpsim::test {

/// Rows of an activation, or a parameter as a matrix.
template <class T>
struct NaiveTensor {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<T> data;

  NaiveTensor() = default;
  NaiveTensor(std::int64_t num_rows, std::int64_t num_cols)
      : rows(num_rows), cols(num_cols), data(static_cast<std::size_t>(num_rows * num_cols)) {}
  T& at(std::int64_t row, std::int64_t col) {
    return data[static_cast<std::size_t>(row * cols + col)];
  }
  const T& at(std::int64_t row, std::int64_t col) const {
    return data[static_cast<std::size_t>(row * cols + col)];
  }
};

/// Sums of T in a random order (or one after the other), products fused with sums or not.
template <class T>
class NaiveSums {
 public:
  explicit NaiveSums(std::uint32_t seed)
      : random_(seed), shuffles_(seed % 4 != 0), fuses_(seed % 2 != 0) {}

  /// Sum of a(i) b(i) over i < count.
  template <class A, class B>
  [[nodiscard]] T dot(std::int64_t count, const A& a, const B& b) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    if (shuffles_) std::shuffle(order.begin(), order.end(), random_);
    const bool is_faulty = num_sums_++ == faulty_;
    const std::int64_t largest = is_faulty ? largest_term(count, a, b) : -1;
    T sum = 0;
    for (const std::int64_t i : order) {
      const T first = i == largest ? a(i) * T(1.001) : a(i);
      sum = fuses_ ? std::fma(first, b(i), sum) : sum + first * b(i);
    }
    return sum;
  }
  template <class A>
  [[nodiscard]] T sum(std::int64_t count, const A& a) {
    return dot(count, a, [](auto) { return T(1); });
  }

  /// The largest term of sum number `sum`, counted from the beginning, will be off by one part in
  /// 1000.
  void plant(std::int64_t sum) { faulty_ = sum; }
  [[nodiscard]] std::int64_t num_sums() const { return num_sums_; }

 private:
  template <class A, class B>
  [[nodiscard]] static std::int64_t largest_term(std::int64_t count, const A& a, const B& b) {
    std::int64_t largest = 0;
    for (std::int64_t i = 1; i < count; ++i) {
      if (std::abs(a(i) * b(i)) > std::abs(a(largest) * b(largest))) largest = i;
    }
    return largest;
  }

  std::mt19937 random_;
  bool shuffles_;
  bool fuses_;
  std::int64_t num_sums_ = 0;
  std::int64_t faulty_ = -1;
};

/// Operations of ModuleSpec in plain loops of T, written apart from the baseline and the engine.
template <class T>
class NaiveOps : public NaiveSums<T> {
 public:
  using Tensor = NaiveTensor<T>;
  using NaiveSums<T>::NaiveSums;

  Tensor linear(const Tensor& x, const Tensor& weight, const T* bias);
  Tensor input_gradient(const Tensor& dy, const Tensor& weight);
  Tensor weight_gradient(const Tensor& dy, const Tensor& x);
  Tensor bias_gradient(const Tensor& dy);

  Tensor activation(const ModuleSpec& spec, const Tensor& x);
  Tensor activation_gradient(const ModuleSpec& spec, const Tensor& x, const Tensor& dy);

  Tensor embedding(const Tensor& tokens, const Tensor& weight);
  Tensor embedding_gradient(const Tensor& dy, const Tensor& tokens, std::int64_t num_rows);

  Tensor add(const Tensor& a, const Tensor& b);

  Tensor silu_gate(const Tensor& a, const Tensor& b);
  std::vector<Tensor> silu_gate_gradients(const Tensor& a, const Tensor& b, const Tensor& dy);

  Tensor norm(const ModuleSpec& spec, const Tensor& x, const Tensor& weight, const T* bias);
  Tensor norm_weight_gradient(const ModuleSpec& spec, const Tensor& x, const Tensor& dy);
  Tensor norm_input_gradient(const ModuleSpec& spec, const Tensor& x, const Tensor& weight,
                             const Tensor& dy);

  Tensor attention(const ModuleSpec& spec, std::int64_t positions, const Tensor& q, const Tensor& k,
                   const Tensor& v);
  std::vector<Tensor> attention_gradients(const ModuleSpec& spec, std::int64_t positions,
                                          const Tensor& q, const Tensor& k, const Tensor& v,
                                          const Tensor& dy);

  // naive_experts.cc
  Tensor experts(const ModuleSpec& spec, const Tensor& x, const Tensor& logits, const Tensor& w1,
                 const Tensor& w2, const Tensor& w3);
  /// Of x, logits, w1, w2, w3.
  std::vector<Tensor> experts_gradients(const ModuleSpec& spec, const Tensor& x,
                                        const Tensor& logits, const Tensor& w1, const Tensor& w2,
                                        const Tensor& w3, const Tensor& dy);

  /// Of every row.
  Tensor cross_entropy(const Tensor& y, const Tensor& targets);
  Tensor cross_entropy_gradient(const Tensor& y, const Tensor& targets);

 private:
  struct NormRow {
    std::vector<T> h;
    T r = 0;
  };
  NormRow norm_row(const ModuleSpec& spec, const T* x, std::int64_t n);

  /// exp(s - max s) / their sum, and the largest s and the sum.
  struct SoftmaxRow {
    std::vector<T> p;
    T largest = 0;
    T sum = 0;
  };
  SoftmaxRow softmax_row(const std::vector<T>& s);

  /// Of every row p, and the experts that it chose, ascending.
  struct Choices {
    std::vector<std::vector<T>> p;
    std::vector<std::vector<std::int64_t>> experts;
  };
  Choices choices(const ModuleSpec& spec, const Tensor& logits);
  /// An expert, the rows that chose it, and what its layers make of them.
  struct Expert {
    Tensor w1, w2, w3;
    std::vector<std::int64_t> rows;
    Tensor x, a, b, h, y;
  };
  Expert expert(const ModuleSpec& spec, std::int64_t index, const Choices& choices, const Tensor& x,
                const Tensor& w1, const Tensor& w2, const Tensor& w3);

  /// What query row `row` of a head sees: the first position of its sample, and how many.
  struct Sight {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };
  Sight sight_of(const ModuleSpec& spec, std::int64_t positions, std::int64_t row);
  SoftmaxRow attention_row(const ModuleSpec& spec, const Sight& sight, std::int64_t row,
                           std::int64_t head, const Tensor& q, const Tensor& k);
};

}  // namespace hpsim::test
