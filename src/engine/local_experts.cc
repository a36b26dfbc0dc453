#include "engine/local_experts.h"

#include <algorithm>

#include "base/check.h"
#include "engine/add.h"
#include "engine/lanes.h"
#include "plan/token_exchange.h"

namespace hpsim {
namespace {

/// sum += factor x
template <class T>
void accumulate_times(T factor, const T* x, std::int64_t elems, T* sum) {
  for (std::int64_t i = 0; i < elems; ++i)
    sum[i] += factor * x[i];
}

std::vector<std::int64_t> times(std::vector<std::int64_t> counts, std::int64_t factor) {
  for (std::int64_t& count : counts)
    count *= factor;
  return counts;
}

}  // namespace

template <class T>
LocalExperts<T>::LocalExperts(const Plan& plan, int module, const Coordinate& coordinate,
                              std::int64_t rows, RankMemory<T>& memory)
    : memory_(memory),
      exchanges_(!exchange_dims(plan, module).empty()),
      reached_(reached_experts(plan, module, coordinate)) {
  const auto at = static_cast<std::size_t>(module);
  const ModuleSpec& spec = plan.scenario.model.modules.at(at);
  shape_ = {.rows = rows, .num_experts = spec.num_experts, .top_k = spec.top_k};
  const std::vector<int> parameters = parameters_of_modules(plan.scenario).at(at);
  w1_ = parameters.at(0);
  w2_ = parameters.at(1);
  w3_ = parameters.at(2);
  dim_ = spec.in_features;
  hidden_ = memory.whole_box(w1_).shape.at(1);
  const ModulePlan& planned = plan.modules.at(at);
  needs_dx_ = !planned.input_gradients.empty() && planned.input_gradients.at(0) >= 0;
  dtype_ = plan.values.at(static_cast<std::size_t>(planned.output)).dtype;
}

template <class T>
T LocalExperts<T>::probability(std::int64_t pair) const {
  const std::int64_t expert = chosen_[static_cast<std::size_t>(pair)];
  return p_[static_cast<std::size_t>(pair / shape_.top_k * shape_.num_experts + expert)];
}

template <class T>
ExpertsShape LocalExperts<T>::experts_shape() const {
  return {.dim = dim_, .hidden = hidden_, .rows = arrival_.rows};
}

template <class T>
TokenEnds LocalExperts<T>::ends(const LocalActivation<T>& input, LocalActivation<T>& output,
                                bool is_combine) const {
  return {.input = input.data.data(),
          .output = output.data.data(),
          .elems_in = input.elems,
          .elems_out = output.elems,
          .counts_in = is_combine ? elems_received_ : elems_sent_,
          .counts_out = is_combine ? elems_sent_ : elems_received_};
}

/// The experts of every row, and in which order rows go to them.
template <class T>
void LocalExperts<T>::choose(const T* logits) {
  p_.resize(static_cast<std::size_t>(shape_.rows * shape_.num_experts));
  chosen_.resize(static_cast<std::size_t>(num_pairs()));
  routing_probabilities(shape_, logits, p_.data());
  choose_experts(shape_, p_.data(), chosen_.data());
  order_ = send_order(chosen_, shape_.num_experts, reached_);
  places_ = places_of_pairs(order_, num_pairs());
  sent_rows_.clear();
  for (const std::int64_t pair : order_.pairs)
    sent_rows_.push_back(pair / shape_.top_k);
}

/// What follows from how many rows come.
template <class T>
void LocalExperts<T>::arrive() {
  const auto num_members = static_cast<std::int64_t>(reached_.size());
  arrival_ = arrival_order(arrived_counts_, num_members);
  elems_sent_ = times(sums_of_parts(order_.counts, num_members), dim_);
  elems_received_ = times(sums_of_parts(arrived_counts_, num_members), dim_);
}

template <class T>
TokenEnds LocalExperts<T>::begin_route(const T* logits) {
  choose(logits);
  arrived_counts_.assign(order_.counts.size(), 0);
  const auto elems = static_cast<std::int64_t>(order_.counts.size());
  return {.input = order_.counts.data(),
          .output = arrived_counts_.data(),
          .elems_in = elems,
          .elems_out = elems,
          .counts_in = {},
          .counts_out = {}};
}

template <class T>
void LocalExperts<T>::finish_route() {
  arrive();
}

template <class T>
TokenEnds LocalExperts<T>::begin_dispatch(Phase phase, const T* rows) {
  at_home_ = take_activation(memory_, dtype_, num_sent() * dim_);
  at_experts_ = take_activation(memory_, dtype_, num_received() * dim_);
  if (phase == Phase::Forward) {
    gather_rows(rows, sent_rows_, dim_, at_home_.data.data());
  } else {
    make_output_gradients(rows, at_home_.data.data());
  }
  return ends(at_home_, at_experts_, false);
}

template <class T>
void LocalExperts<T>::finish_dispatch(Phase phase) {
  LocalActivation<T>& sorted = phase == Phase::Forward ? x_ : dy_;
  give_back(memory_, at_home_);
  sorted = take_activation(memory_, dtype_, num_received() * dim_);
  scatter_rows<T>(at_experts_.data.data(), arrival_.places, dim_, sorted.data.data());
  give_back(memory_, at_experts_);
}

template <class T>
void LocalExperts<T>::forward(const T* x, const T* logits) {
  if (!exchanges_) {
    choose(logits);
    arrived_counts_ = order_.counts;
    arrive();
    x_ = take_activation(memory_, dtype_, num_received() * dim_);
    gather_rows(x, sent_rows_, dim_, x_.data.data());
  }
  const std::int64_t inner_elems = num_received() * hidden_;
  inner_ = take_activation(memory_, dtype_, 2 * inner_elems);
  LocalActivation<T> gate = take_activation(memory_, dtype_, inner_elems);
  y_ = take_activation(memory_, dtype_, num_received() * dim_);
  T* const h1 = inner_.data.data();
  const ExpertWeights<T> weights{memory_.whole(w1_), memory_.whole(w2_), memory_.whole(w3_)};
  experts_forward<T>(experts_shape(), weights, x_.data.data(), h1, h1 + inner_elems,
                     gate.data.data(), y_.data.data());
  round_to(dtype_, y_.data.data(), y_.elems);
  give_back(memory_, gate);
}

/// Gradients of the experts' outputs, p dy, of all rows that are sent, and those of p. Nothing
/// needs the outputs any more.
template <class T>
void LocalExperts<T>::make_output_gradients(const T* dy, T* sent) {
  const auto product = [](const Lanes<T>& a, const Lanes<T>& b) -> Lanes<T> { return a * b; };
  dp_.assign(static_cast<std::size_t>(num_pairs()), T(0));
  const T* output = y_.data.data();
  for (const std::int64_t pair : order_.pairs) {
    const T* const of_row = dy + pair / shape_.top_k * dim_;
    const T p = probability(pair);
    dp_[static_cast<std::size_t>(pair)] = lane_sum(dim_, product, of_row, output);
    for (std::int64_t i = 0; i < dim_; ++i)
      sent[i] = p * of_row[i];
    round_to(dtype_, sent, dim_);
    output += dim_;
    sent += dim_;
  }
  give_back(memory_, y_);
}

template <class T>
void LocalExperts<T>::backward(const T* dy) {
  if (!exchanges_) {
    dy_ = take_activation(memory_, dtype_, num_received() * dim_);
    make_output_gradients(dy, dy_.data.data());
  }
  const std::int64_t inner_elems = num_received() * hidden_;
  LocalActivation<T> scratch = take_activation(memory_, dtype_, 2 * inner_elems);
  if (needs_dx_) dx_ = take_activation(memory_, dtype_, num_received() * dim_);
  const T* const h1 = inner_.data.data();
  const ExpertWeights<T> weights{memory_.whole(w1_), memory_.whole(w2_), memory_.whole(w3_)};
  const ExpertWeights<T> gradients{memory_.whole_gradient(w1_), memory_.whole_gradient(w2_),
                                   memory_.whole_gradient(w3_)};
  experts_backward<T>(experts_shape(), weights,
                      {x_.data.data(), h1, h1 + inner_elems, dy_.data.data()}, gradients,
                      needs_dx_ ? dx_.data.data() : nullptr, scratch.data.data());
  if (needs_dx_) round_to(dtype_, dx_.data.data(), dx_.elems);
  for (LocalActivation<T>* used : {&scratch, &inner_, &x_, &dy_})
    give_back(memory_, *used);
}

template <class T>
TokenEnds LocalExperts<T>::begin_combine(Phase phase) {
  LocalActivation<T>& rows = phase == Phase::Forward ? y_ : dx_;
  at_experts_ = take_activation(memory_, dtype_, num_received() * dim_);
  gather_rows<T>(rows.data.data(), arrival_.places, dim_, at_experts_.data.data());
  give_back(memory_, rows);
  rows = take_activation(memory_, dtype_, num_sent() * dim_);
  return ends(at_experts_, rows, true);
}

template <class T>
void LocalExperts<T>::finish_combine() {
  give_back(memory_, at_experts_);
}

template <class T>
void LocalExperts<T>::outputs(T* y) const {
  std::fill_n(y, shape_.rows * dim_, T(0));
  for (std::int64_t pair = 0; pair < num_pairs(); ++pair) {
    const std::int64_t place = places_[static_cast<std::size_t>(pair)];
    if (place < 0) continue;
    accumulate_times(probability(pair), y_.data.data() + place * dim_, dim_,
                     y + pair / shape_.top_k * dim_);
  }
}

template <class T>
void LocalExperts<T>::forget_forward() {
  for (LocalActivation<T>* kept : {&y_, &x_, &inner_})
    give_back(memory_, *kept);
}

template <class T>
void LocalExperts<T>::input_gradients(T* dx, T* dlogits) {
  if (dlogits != nullptr) routing_backward(shape_, p_.data(), chosen_.data(), dp_.data(), dlogits);
  if (!needs_dx_) return;
  std::fill_n(dx, shape_.rows * dim_, T(0));
  for (std::int64_t pair = 0; pair < num_pairs(); ++pair) {
    const std::int64_t place = places_[static_cast<std::size_t>(pair)];
    if (place < 0) continue;
    accumulate(dx_.data.data() + place * dim_, dim_, dx + pair / shape_.top_k * dim_);
  }
  give_back(memory_, dx_);
}

template <class T>
std::vector<std::int64_t> LocalExperts<T>::routed_counts() const {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(shape_.num_experts), 0);
  for (const std::int64_t expert : chosen_)
    ++counts[static_cast<std::size_t>(expert)];
  return counts;
}

template class LocalExperts<float>;
template class LocalExperts<double>;

}  // namespace hpsim
