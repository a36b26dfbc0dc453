#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/activation_exchange.h"
#include "engine/experts.h"
#include "engine/local_model.h"
#include "engine/routing.h"
#include "engine/token_order.h"

namespace hpsim {

/// An experts module on one rank. Its rows go to the ranks that hold their experts and come back,
/// and it computes the experts that it holds. In every micro-batch
///
///   forward     route, dispatch, forward, combine, outputs
///   backward    dispatch, backward, combine, input_gradients; the second combine only where x
///               needs a gradient
///
/// and where nothing is exchanged only forward, outputs, backward, input_gradients. Memory is taken
/// and given back as planned_memory says. Rows that chose experts which no member of the exchange
/// group holds are computed elsewhere: what the rank gives are then terms of sums. What an expert
/// makes of a row, and gradients of that, are rounded once each, probabilities are not.
/// x, y, dy, dx: [rows, dim]; logits, dlogits: [rows, num_experts]
template <class T>
class LocalExperts {
 public:
  /// `rows` are those that the rank holds of the input. `memory` must outlive the object.
  LocalExperts(const Plan& plan, int module, const Coordinate& coordinate, std::int64_t rows,
               RankMemory<T>& memory);

  [[nodiscard]] bool exchanges() const { return exchanges_; }

  /// Chooses the experts of every row.
  [[nodiscard]] TokenEnds begin_route(const T* logits);
  void finish_route();

  /// x in forward, dy in backward.
  [[nodiscard]] TokenEnds begin_dispatch(Phase phase, const T* rows);
  void finish_dispatch(Phase phase);

  /// x and logits are read where nothing is exchanged.
  void forward(const T* x, const T* logits);
  /// Gradients of the weights; dy is read where nothing is exchanged.
  void backward(const T* dy);

  [[nodiscard]] TokenEnds begin_combine(Phase phase);
  void finish_combine();

  /// y = sum over the choices of a row, by falling probability, of p times the expert's output.
  void outputs(T* y) const;
  /// Gives back what forward keeps for backward: nothing reads it, or it is made anew. \pre outputs
  void forget_forward();
  /// dx, unless nothing needs it, and dlogits, unless it is null.
  void input_gradients(T* dx, T* dlogits);

  /// [rows, num_experts] \pre begin_route
  [[nodiscard]] std::span<T> probabilities() { return p_; }

  /// Rows that chose each of all experts, in reach or not.
  [[nodiscard]] std::vector<std::int64_t> routed_counts() const;

 private:
  [[nodiscard]] std::int64_t num_pairs() const { return shape_.rows * shape_.top_k; }
  [[nodiscard]] std::int64_t num_sent() const {
    return static_cast<std::int64_t>(sent_rows_.size());
  }
  [[nodiscard]] std::int64_t num_received() const {
    return static_cast<std::int64_t>(arrival_.places.size());
  }
  [[nodiscard]] T probability(std::int64_t pair) const;
  [[nodiscard]] ExpertsShape experts_shape() const;
  [[nodiscard]] TokenEnds ends(const LocalActivation<T>& input, LocalActivation<T>& output,
                               bool is_combine) const;
  void choose(const T* logits);
  void arrive();
  void make_output_gradients(const T* dy, T* sent);

  RankMemory<T>& memory_;
  RoutingShape shape_;
  std::int64_t dim_ = 0;
  std::int64_t hidden_ = 0;
  DType dtype_ = DType::Float32;  ///< of rows on their way and of what experts make of them
  int w1_ = -1;                   ///< parameters
  int w2_ = -1;
  int w3_ = -1;
  bool exchanges_ = false;
  bool needs_dx_ = false;
  std::vector<Interval> reached_;

  // Of the step at hand: what was chosen, and how rows go and come.
  std::vector<T> p_;                  ///< [rows, num_experts]
  std::vector<T> dp_;                 ///< per pair
  std::vector<std::int64_t> chosen_;  ///< per pair
  SendOrder order_;
  std::vector<std::int64_t> sent_rows_;  ///< the row of every pair that is sent
  std::vector<std::int64_t> places_;     ///< see places_of_pairs
  std::vector<std::int64_t> arrived_counts_;
  ArrivalOrder arrival_;
  std::vector<std::int64_t> elems_sent_;  ///< per member
  std::vector<std::int64_t> elems_received_;

  LocalActivation<T> at_home_;     ///< what is sent from where rows are, in the order of sending
  LocalActivation<T> at_experts_;  ///< what arrives at experts, or leaves them, by member
  LocalActivation<T> x_;           ///< by expert, as what follows
  LocalActivation<T> inner_;       ///< h1, h3
  LocalActivation<T> y_;           ///< in the order of sending once it is combined
  LocalActivation<T> dy_;
  LocalActivation<T> dx_;  ///< in the order of sending once it is combined
};

}  // namespace hpsim
