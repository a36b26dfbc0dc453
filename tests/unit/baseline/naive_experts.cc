#include "naive_ops.h"

namespace hpsim::test {
namespace {

template <class T>
NaiveTensor<T> rows_at(const NaiveTensor<T>& tensor, const std::vector<std::int64_t>& rows) {
  NaiveTensor<T> result(static_cast<std::int64_t>(rows.size()), tensor.cols);
  for (std::int64_t i = 0; i < result.rows; ++i)
    std::copy_n(&tensor.at(rows[static_cast<std::size_t>(i)], 0), tensor.cols, &result.at(i, 0));
  return result;
}

/// Matrix `index` of all of them under one another.
template <class T>
NaiveTensor<T> matrix_at(const NaiveTensor<T>& all, std::int64_t index, std::int64_t count) {
  NaiveTensor<T> result(all.rows / count, all.cols);
  std::copy_n(&all.at(index * result.rows, 0), result.data.size(), result.data.begin());
  return result;
}

template <class T>
void put(const NaiveTensor<T>& matrix, std::int64_t index, NaiveTensor<T>& all) {
  std::copy(matrix.data.begin(), matrix.data.end(), &all.at(index * matrix.rows, 0));
}

}  // namespace

template <class T>
typename NaiveOps<T>::Choices NaiveOps<T>::choices(const ModuleSpec& spec, const Tensor& logits) {
  Choices result;
  for (std::int64_t row = 0; row < logits.rows; ++row) {
    const std::vector<T> p = softmax_row({&logits.at(row, 0), &logits.at(row, 0) + logits.cols}).p;
    result.p.push_back(p);
    std::vector<std::int64_t>& chosen = result.experts.emplace_back();
    for (std::size_t e = 0; e < p.size(); ++e) {
      std::int64_t place = 0;
      for (std::size_t other = 0; other < p.size(); ++other)
        place += p[other] > p[e] || (p[other] == p[e] && other < e) ? 1 : 0;
      if (place < spec.top_k) chosen.push_back(static_cast<std::int64_t>(e));
    }
  }
  return result;
}

template <class T>
typename NaiveOps<T>::Expert NaiveOps<T>::expert(const ModuleSpec& spec, std::int64_t index,
                                                 const Choices& choices, const Tensor& x,
                                                 const Tensor& w1, const Tensor& w2,
                                                 const Tensor& w3) {
  Expert result;
  result.w1 = matrix_at(w1, index, spec.num_experts);
  result.w2 = matrix_at(w2, index, spec.num_experts);
  result.w3 = matrix_at(w3, index, spec.num_experts);
  for (std::int64_t row = 0; row < x.rows; ++row) {
    const std::vector<std::int64_t>& of_row = choices.experts[static_cast<std::size_t>(row)];
    if (std::count(of_row.begin(), of_row.end(), index) > 0) result.rows.push_back(row);
  }
  if (result.rows.empty()) return result;
  result.x = rows_at(x, result.rows);
  result.a = linear(result.x, result.w1, nullptr);
  result.b = linear(result.x, result.w3, nullptr);
  result.h = silu_gate(result.a, result.b);
  result.y = linear(result.h, result.w2, nullptr);
  return result;
}

template <class T>
NaiveTensor<T> NaiveOps<T>::experts(const ModuleSpec& spec, const Tensor& x, const Tensor& logits,
                                    const Tensor& w1, const Tensor& w2, const Tensor& w3) {
  const Choices of = choices(spec, logits);
  std::vector<Expert> all;
  for (std::int64_t e = 0; e < spec.num_experts; ++e)
    all.push_back(expert(spec, e, of, x, w1, w2, w3));
  Tensor y(x.rows, x.cols);
  for (std::int64_t row = 0; row < y.rows; ++row) {
    std::vector<T> p;
    std::vector<const T*> outputs;
    for (const std::int64_t e : of.experts[static_cast<std::size_t>(row)]) {
      const Expert& at = all[static_cast<std::size_t>(e)];
      const auto place = std::find(at.rows.begin(), at.rows.end(), row) - at.rows.begin();
      p.push_back(of.p[static_cast<std::size_t>(row)][static_cast<std::size_t>(e)]);
      outputs.push_back(&at.y.at(place, 0));
    }
    for (std::int64_t i = 0; i < y.cols; ++i) {
      y.at(row, i) = this->dot(
          spec.top_k, [&](auto c) { return p[static_cast<std::size_t>(c)]; },
          [&](auto c) { return outputs[static_cast<std::size_t>(c)][i]; });
    }
  }
  return y;
}

template <class T>
std::vector<NaiveTensor<T>> NaiveOps<T>::experts_gradients(const ModuleSpec& spec, const Tensor& x,
                                                           const Tensor& logits, const Tensor& w1,
                                                           const Tensor& w2, const Tensor& w3,
                                                           const Tensor& dy) {
  const Choices of = choices(spec, logits);
  Tensor dx(x.rows, x.cols);
  Tensor dp(x.rows, spec.num_experts);
  Tensor dlogits = dp;
  Tensor dw1(w1.rows, w1.cols);
  Tensor dw2(w2.rows, w2.cols);
  Tensor dw3(w3.rows, w3.cols);
  for (std::int64_t e = 0; e < spec.num_experts; ++e) {
    const Expert at = expert(spec, e, of, x, w1, w2, w3);
    if (at.rows.empty()) continue;
    Tensor of_output = rows_at(dy, at.rows);
    for (std::int64_t i = 0; i < of_output.rows; ++i) {
      const std::int64_t row = at.rows[static_cast<std::size_t>(i)];
      dp.at(row, e) = this->dot(
          dy.cols, [&](auto f) { return of_output.at(i, f); },
          [&](auto f) { return at.y.at(i, f); });
      for (std::int64_t f = 0; f < dy.cols; ++f)
        of_output.at(i, f) *= of.p[static_cast<std::size_t>(row)][static_cast<std::size_t>(e)];
    }
    const std::vector<Tensor> of_gate =
        silu_gate_gradients(at.a, at.b, input_gradient(of_output, at.w2));
    const Tensor of_x = add(input_gradient(of_gate[0], at.w1), input_gradient(of_gate[1], at.w3));
    for (std::int64_t i = 0; i < of_x.rows; ++i) {
      for (std::int64_t f = 0; f < dx.cols; ++f)
        dx.at(at.rows[static_cast<std::size_t>(i)], f) += of_x.at(i, f);
    }
    put(weight_gradient(of_gate[0], at.x), e, dw1);
    put(weight_gradient(of_output, at.h), e, dw2);
    put(weight_gradient(of_gate[1], at.x), e, dw3);
  }
  for (std::int64_t row = 0; row < x.rows; ++row) {
    const std::vector<T>& p = of.p[static_cast<std::size_t>(row)];
    const std::vector<std::int64_t>& chosen = of.experts[static_cast<std::size_t>(row)];
    const auto expert_at = [&](auto c) { return chosen[static_cast<std::size_t>(c)]; };
    const T whole = this->dot(
        spec.top_k, [&](auto c) { return p[static_cast<std::size_t>(expert_at(c))]; },
        [&](auto c) { return dp.at(row, expert_at(c)); });
    for (std::int64_t e = 0; e < spec.num_experts; ++e)
      dlogits.at(row, e) = p[static_cast<std::size_t>(e)] * (dp.at(row, e) - whole);
  }
  return {dx, dlogits, dw1, dw2, dw3};
}

#define HPSIM_INSTANTIATE(T)                                                                  \
  template NaiveTensor<T> NaiveOps<T>::experts(const ModuleSpec&, const NaiveTensor<T>&,      \
                                               const NaiveTensor<T>&, const NaiveTensor<T>&,  \
                                               const NaiveTensor<T>&, const NaiveTensor<T>&); \
  template std::vector<NaiveTensor<T>> NaiveOps<T>::experts_gradients(                        \
      const ModuleSpec&, const NaiveTensor<T>&, const NaiveTensor<T>&, const NaiveTensor<T>&, \
      const NaiveTensor<T>&, const NaiveTensor<T>&, const NaiveTensor<T>&)
HPSIM_INSTANTIATE(float);
HPSIM_INSTANTIATE(double);
#undef HPSIM_INSTANTIATE

}  // namespace hpsim::test
