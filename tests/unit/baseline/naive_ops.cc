#include "naive_ops.h"

namespace hpsim::test {
namespace {

template <class T>
T activate(const ModuleSpec& spec, T x) {
  switch (spec.type) {
    case ModuleType::Relu:
      return x > 0 ? x : T(0);
    case ModuleType::Tanh:
      return std::tanh(x);
    case ModuleType::Silu:
    case ModuleType::SiluGate:
      return x / (1 + std::exp(-x));
    default:
      break;
  }
  if (!spec.tanh_approximation) return T(0.5) * x * (1 + std::erf(x * T(M_SQRT1_2)));
  return T(0.5) * x * (1 + std::tanh(T(M_2_SQRTPI * M_SQRT1_2) * (x + T(0.044715) * x * x * x)));
}

template <class T>
T activation_slope(const ModuleSpec& spec, T x) {
  switch (spec.type) {
    case ModuleType::Relu:
      return x > 0 ? T(1) : T(0);
    case ModuleType::Tanh: {
      const T y = std::tanh(x);
      return 1 - y * y;
    }
    case ModuleType::Silu:
    case ModuleType::SiluGate: {
      const T s = 1 / (1 + std::exp(-x));
      return s + x * s * (1 - s);
    }
    default:
      break;
  }
  if (!spec.tanh_approximation) {
    return T(0.5) * (1 + std::erf(x * T(M_SQRT1_2))) +
           x * std::exp(-x * x / 2) * T(0.5 * M_2_SQRTPI * M_SQRT1_2);
  }
  const T c = T(M_2_SQRTPI * M_SQRT1_2);
  const T t = std::tanh(c * (x + T(0.044715) * x * x * x));
  return T(0.5) * (1 + t) + T(0.5) * x * (1 - t * t) * c * (1 + T(3 * 0.044715) * x * x);
}

ModuleSpec gate() {
  ModuleSpec spec;
  spec.type = ModuleType::SiluGate;
  return spec;
}

}  // namespace

template <class T>
NaiveTensor<T> NaiveOps<T>::linear(const Tensor& x, const Tensor& weight, const T* bias) {
  Tensor y(x.rows, weight.rows);
  for (std::int64_t b = 0; b < x.rows; ++b) {
    for (std::int64_t o = 0; o < weight.rows; ++o) {
      y.at(b, o) = this->dot(
          x.cols, [&](auto i) { return x.at(b, i); }, [&](auto i) { return weight.at(o, i); });
      if (bias != nullptr) y.at(b, o) += bias[o];
    }
  }
  return y;
}

template <class T>
NaiveTensor<T> NaiveOps<T>::input_gradient(const Tensor& dy, const Tensor& weight) {
  Tensor dx(dy.rows, weight.cols);
  for (std::int64_t b = 0; b < dy.rows; ++b) {
    for (std::int64_t i = 0; i < weight.cols; ++i) {
      dx.at(b, i) = this->dot(
          dy.cols, [&](auto o) { return dy.at(b, o); }, [&](auto o) { return weight.at(o, i); });
    }
  }
  return dx;
}

template <class T>
NaiveTensor<T> NaiveOps<T>::weight_gradient(const Tensor& dy, const Tensor& x) {
  Tensor gradient(dy.cols, x.cols);
  for (std::int64_t o = 0; o < dy.cols; ++o) {
    for (std::int64_t i = 0; i < x.cols; ++i) {
      gradient.at(o, i) = this->dot(
          x.rows, [&](auto b) { return dy.at(b, o); }, [&](auto b) { return x.at(b, i); });
    }
  }
  return gradient;
}

template <class T>
NaiveTensor<T> NaiveOps<T>::bias_gradient(const Tensor& dy) {
  Tensor gradient(1, dy.cols);
  for (std::int64_t o = 0; o < dy.cols; ++o)
    gradient.at(0, o) = this->sum(dy.rows, [&](auto b) { return dy.at(b, o); });
  return gradient;
}

template <class T>
NaiveTensor<T> NaiveOps<T>::activation(const ModuleSpec& spec, const Tensor& x) {
  Tensor y = x;
  for (T& value : y.data)
    value = activate(spec, value);
  return y;
}

template <class T>
NaiveTensor<T> NaiveOps<T>::activation_gradient(const ModuleSpec& spec, const Tensor& x,
                                                const Tensor& dy) {
  Tensor dx = dy;
  for (std::size_t i = 0; i < dx.data.size(); ++i)
    dx.data[i] *= activation_slope(spec, x.data[i]);
  return dx;
}

template <class T>
NaiveTensor<T> NaiveOps<T>::embedding(const Tensor& tokens, const Tensor& weight) {
  Tensor y(tokens.rows, weight.cols);
  for (std::int64_t b = 0; b < tokens.rows; ++b) {
    for (std::int64_t i = 0; i < weight.cols; ++i)
      y.at(b, i) = weight.at(static_cast<std::int64_t>(tokens.at(b, 0)), i);
  }
  return y;
}

template <class T>
NaiveTensor<T> NaiveOps<T>::embedding_gradient(const Tensor& dy, const Tensor& tokens,
                                               std::int64_t num_rows) {
  Tensor gradient(num_rows, dy.cols);
  for (std::int64_t row = 0; row < num_rows; ++row) {
    for (std::int64_t i = 0; i < dy.cols; ++i) {
      gradient.at(row, i) = this->dot(
          dy.rows, [&](auto b) { return tokens.at(b, 0) == static_cast<T>(row) ? T(1) : T(0); },
          [&](auto b) { return dy.at(b, i); });
    }
  }
  return gradient;
}

template <class T>
NaiveTensor<T> NaiveOps<T>::add(const Tensor& a, const Tensor& b) {
  Tensor y = a;
  for (std::size_t i = 0; i < y.data.size(); ++i)
    y.data[i] += b.data[i];
  return y;
}

template <class T>
NaiveTensor<T> NaiveOps<T>::silu_gate(const Tensor& a, const Tensor& b) {
  Tensor y = activation(gate(), a);
  for (std::size_t i = 0; i < y.data.size(); ++i)
    y.data[i] *= b.data[i];
  return y;
}

template <class T>
std::vector<NaiveTensor<T>> NaiveOps<T>::silu_gate_gradients(const Tensor& a, const Tensor& b,
                                                             const Tensor& dy) {
  Tensor passed = dy;
  for (std::size_t i = 0; i < passed.data.size(); ++i)
    passed.data[i] *= b.data[i];
  return {activation_gradient(gate(), a, passed), silu_gate(a, dy)};
}

template <class T>
typename NaiveOps<T>::NormRow NaiveOps<T>::norm_row(const ModuleSpec& spec, const T* x,
                                                    std::int64_t n) {
  NormRow row;
  row.h.assign(x, x + n);
  if (spec.type == ModuleType::LayerNorm) {
    const T mean = this->sum(n, [&](auto i) { return x[i]; }) / static_cast<T>(n);
    for (T& value : row.h)
      value -= mean;
  }
  const auto at = [&](auto i) { return row.h[static_cast<std::size_t>(i)]; };
  const T variance = this->dot(n, at, at) / static_cast<T>(n);
  row.r = 1 / std::sqrt(variance + static_cast<T>(spec.eps));
  for (T& value : row.h)
    value *= row.r;
  return row;
}

template <class T>
NaiveTensor<T> NaiveOps<T>::norm(const ModuleSpec& spec, const Tensor& x, const Tensor& weight,
                                 const T* bias) {
  Tensor y(x.rows, x.cols);
  for (std::int64_t b = 0; b < x.rows; ++b) {
    const NormRow row = norm_row(spec, &x.at(b, 0), x.cols);
    for (std::int64_t i = 0; i < x.cols; ++i) {
      y.at(b, i) = row.h[static_cast<std::size_t>(i)] * weight.at(0, i);
      if (bias != nullptr) y.at(b, i) += bias[i];
    }
  }
  return y;
}

template <class T>
NaiveTensor<T> NaiveOps<T>::norm_weight_gradient(const ModuleSpec& spec, const Tensor& x,
                                                 const Tensor& dy) {
  std::vector<NormRow> rows;
  for (std::int64_t b = 0; b < x.rows; ++b)
    rows.push_back(norm_row(spec, &x.at(b, 0), x.cols));
  Tensor gradient(1, x.cols);
  for (std::int64_t i = 0; i < x.cols; ++i) {
    gradient.at(0, i) = this->dot(
        x.rows, [&](auto b) { return dy.at(b, i); },
        [&](auto b) { return rows[static_cast<std::size_t>(b)].h[static_cast<std::size_t>(i)]; });
  }
  return gradient;
}

template <class T>
NaiveTensor<T> NaiveOps<T>::norm_input_gradient(const ModuleSpec& spec, const Tensor& x,
                                                const Tensor& weight, const Tensor& dy) {
  const std::int64_t n = x.cols;
  Tensor dx(x.rows, n);
  for (std::int64_t b = 0; b < x.rows; ++b) {
    const NormRow row = norm_row(spec, &x.at(b, 0), n);
    const auto h = [&](auto i) { return row.h[static_cast<std::size_t>(i)]; };
    const auto g = [&](auto i) { return dy.at(b, i) * weight.at(0, i); };
    const T mean = spec.type == ModuleType::LayerNorm ? this->sum(n, g) / static_cast<T>(n) : T(0);
    const T product = this->dot(n, g, h) / static_cast<T>(n);
    for (std::int64_t i = 0; i < n; ++i)
      dx.at(b, i) = row.r * (g(i) - mean - h(i) * product);
  }
  return dx;
}

template <class T>
typename NaiveOps<T>::SoftmaxRow NaiveOps<T>::softmax_row(const std::vector<T>& s) {
  SoftmaxRow row;
  row.largest = *std::max_element(s.begin(), s.end());
  for (const T value : s)
    row.p.push_back(std::exp(value - row.largest));
  row.sum = this->sum(static_cast<std::int64_t>(s.size()),
                      [&](auto i) { return row.p[static_cast<std::size_t>(i)]; });
  for (T& value : row.p)
    value /= row.sum;
  return row;
}

template <class T>
typename NaiveOps<T>::Sight NaiveOps<T>::sight_of(const ModuleSpec& spec, std::int64_t positions,
                                                  std::int64_t row) {
  const std::int64_t first = row / positions * positions;
  return {first, spec.causal ? row - first + 1 : positions};
}

template <class T>
typename NaiveOps<T>::SoftmaxRow NaiveOps<T>::attention_row(const ModuleSpec& spec,
                                                            const Sight& sight, std::int64_t row,
                                                            std::int64_t head, const Tensor& q,
                                                            const Tensor& k) {
  const std::int64_t q_first = head * spec.head_dim;
  const std::int64_t k_first = head / (spec.heads / spec.kv_heads) * spec.head_dim;
  std::vector<T> s;
  for (std::int64_t j = 0; j < sight.count; ++j) {
    s.push_back(this->dot(
                    spec.head_dim, [&](auto f) { return q.at(row, q_first + f); },
                    [&](auto f) { return k.at(sight.first + j, k_first + f); }) /
                std::sqrt(static_cast<T>(spec.head_dim)));
  }
  return softmax_row(s);
}

template <class T>
NaiveTensor<T> NaiveOps<T>::attention(const ModuleSpec& spec, std::int64_t positions,
                                      const Tensor& q, const Tensor& k, const Tensor& v) {
  Tensor y(q.rows, q.cols);
  for (std::int64_t row = 0; row < q.rows; ++row) {
    const Sight sight = sight_of(spec, positions, row);
    for (std::int64_t head = 0; head < spec.heads; ++head) {
      const SoftmaxRow p = attention_row(spec, sight, row, head, q, k);
      const std::int64_t v_first = head / (spec.heads / spec.kv_heads) * spec.head_dim;
      for (std::int64_t f = 0; f < spec.head_dim; ++f) {
        y.at(row, head * spec.head_dim + f) = this->dot(
            sight.count, [&](auto j) { return p.p[static_cast<std::size_t>(j)]; },
            [&](auto j) { return v.at(sight.first + j, v_first + f); });
      }
    }
  }
  return y;
}

template <class T>
std::vector<NaiveTensor<T>> NaiveOps<T>::attention_gradients(const ModuleSpec& spec,
                                                             std::int64_t positions,
                                                             const Tensor& q, const Tensor& k,
                                                             const Tensor& v, const Tensor& dy) {
  const std::int64_t width = spec.head_dim;
  const std::int64_t group = spec.heads / spec.kv_heads;
  Tensor dq(q.rows, q.cols);
  Tensor dk(k.rows, k.cols);
  Tensor dv(v.rows, v.cols);
  // [row, head * positions + position]
  Tensor p(q.rows, spec.heads * positions);
  Tensor ds = p;
  for (std::int64_t row = 0; row < q.rows; ++row) {
    const Sight sight = sight_of(spec, positions, row);
    for (std::int64_t head = 0; head < spec.heads; ++head) {
      const SoftmaxRow weights = attention_row(spec, sight, row, head, q, k);
      const std::int64_t k_first = head / group * width;
      std::vector<T> dp;
      for (std::int64_t j = 0; j < sight.count; ++j) {
        dp.push_back(this->dot(
            width, [&](auto f) { return dy.at(row, head * width + f); },
            [&](auto f) { return v.at(sight.first + j, k_first + f); }));
        p.at(row, head * positions + j) = weights.p[static_cast<std::size_t>(j)];
      }
      const T whole = this->dot(
          sight.count, [&](auto j) { return weights.p[static_cast<std::size_t>(j)]; },
          [&](auto j) { return dp[static_cast<std::size_t>(j)]; });
      for (std::int64_t j = 0; j < sight.count; ++j) {
        ds.at(row, head * positions + j) =
            weights.p[static_cast<std::size_t>(j)] * (dp[static_cast<std::size_t>(j)] - whole);
      }
      for (std::int64_t f = 0; f < width; ++f) {
        dq.at(row, head * width + f) =
            this->dot(
                sight.count, [&](auto j) { return ds.at(row, head * positions + j); },
                [&](auto j) { return k.at(sight.first + j, k_first + f); }) /
            std::sqrt(static_cast<T>(width));
      }
    }
  }
  // Terms of dk and dv: the group's heads, and all rows of the sample.
  for (std::int64_t row = 0; row < k.rows; ++row) {
    const std::int64_t first = row / positions * positions;
    for (std::int64_t col = 0; col < k.cols; ++col) {
      const auto over_queries = [&](const Tensor& weights, const Tensor& values) {
        const auto head_of = [&](auto i) { return col / width * group + i / positions; };
        return this->dot(
            group * positions,
            [&](auto i) {
              return weights.at(first + i % positions, head_of(i) * positions + row - first);
            },
            [&](auto i) {
              return values.at(first + i % positions, head_of(i) * width + col % width);
            });
      };
      dk.at(row, col) = over_queries(ds, q) / std::sqrt(static_cast<T>(width));
      dv.at(row, col) = over_queries(p, dy);
    }
  }
  return {dq, dk, dv};
}

template <class T>
NaiveTensor<T> NaiveOps<T>::cross_entropy(const Tensor& y, const Tensor& targets) {
  Tensor losses(y.rows, 1);
  for (std::int64_t row = 0; row < y.rows; ++row) {
    const SoftmaxRow softmax = softmax_row({&y.at(row, 0), &y.at(row, 0) + y.cols});
    const T at_target = y.at(row, static_cast<std::int64_t>(targets.at(row, 0)));
    losses.at(row, 0) = std::log(softmax.sum) - (at_target - softmax.largest);
  }
  return losses;
}

template <class T>
NaiveTensor<T> NaiveOps<T>::cross_entropy_gradient(const Tensor& y, const Tensor& targets) {
  Tensor dy(y.rows, y.cols);
  for (std::int64_t row = 0; row < y.rows; ++row) {
    const SoftmaxRow softmax = softmax_row({&y.at(row, 0), &y.at(row, 0) + y.cols});
    std::copy(softmax.p.begin(), softmax.p.end(), &dy.at(row, 0));
    dy.at(row, static_cast<std::int64_t>(targets.at(row, 0))) -= 1;
  }
  return dy;
}

template class NaiveOps<float>;
template class NaiveOps<double>;

}  // namespace hpsim::test
