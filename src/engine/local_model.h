#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/exactness.h"
#include "engine/rank_memory.h"
#include "plan/plan.h"

namespace hpsim {

/// What a collective reads and writes.
template <class T>
struct CollectiveEnds {
  const T* input = nullptr;
  T* output = nullptr;
};

/// The exchange of an experts module: an all_to_all whose runs may differ from member to member.
struct TokenEnds {
  const void* input = nullptr;
  void* output = nullptr;
  std::int64_t elems_in = 0;
  std::int64_t elems_out = 0;
  std::span<const std::int64_t> counts_in;  ///< see CollectiveCall
  std::span<const std::int64_t> counts_out;
};

/// One forward and backward.
struct Pass {
  std::int64_t step = 0;  ///< optimizer step
  std::int64_t micro_batch = 0;
  bool operator==(const Pass&) const = default;
};

/// Whose samples a rank draws instead of its own: those that come so many data ranks later, the
/// first after the last. Planted faults set it.
struct SampleShift {
  std::int64_t of_input = 0;
  std::int64_t of_target = 0;
};

/// The model on one rank: its part of the activations, of the loss, and of the gradients before
/// reduction.
template <class T>
class LocalModel {
 public:
  virtual ~LocalModel() = default;

  virtual void enter_pass(const Pass& pass) = 0;

  /// One module, or one elementwise parameter, for the first time or once more (recomputed).
  /// \pre its parameters are whole
  virtual void forward(const Step& step) = 0;
  /// What this rank does of the loss before its collective, and the ends of that, if it has one.
  [[nodiscard]] virtual CollectiveEnds<T> begin_loss() = 0;
  /// The loss terms of the pass, over their divisors (loss_divisor), one sum per elementwise
  /// parameter: of the part that this rank holds, over the samples that it uses; and the gradient
  /// of the output. \pre begin_loss, the collective was carried out if there is one
  [[nodiscard]] virtual std::vector<T> finish_loss() = 0;
  /// Writes the gradients of the module's parameters. \pre RankMemory::begin_gradients(step)
  virtual void backward(const Step& step) = 0;

  /// What this rank does of a Route, Dispatch or Combine step of an experts module before its
  /// collective, and the ends of that. Route chooses the experts of every position that the rank
  /// holds; of experts that exchange nothing, forward and backward do all.
  [[nodiscard]] virtual TokenEnds begin_tokens(const Step& step) = 0;
  /// What remains of it. \pre begin_tokens, the collective was carried out
  virtual void finish_tokens(const Step& step) = 0;
  /// How many positions the rank routed to each expert. \pre the forward of the experts module
  [[nodiscard]] virtual std::vector<std::int64_t> routed_counts(int module) const = 0;

  /// The weights of experts, [rows, experts], as this rank has chosen by them, for planted faults.
  /// \pre its Route
  [[nodiscard]] virtual std::span<T> routing_weights(int module) = 0;

  /// The output of a module as this rank holds it, for planted faults. \pre its forward; nothing
  /// where the model is elementwise
  [[nodiscard]] virtual std::span<T> output_of(int module) = 0;

  /// What this rank does of a Redistribute step before its collective, and the ends of that; no
  /// ends where there is none.
  [[nodiscard]] virtual CollectiveEnds<T> begin_redistribute(const Step& step) = 0;
  /// What remains of it. \pre begin_redistribute, the collective was carried out if there is one
  virtual void finish_redistribute(const Step& step) = 0;

  // For planted faults.

  [[nodiscard]] SampleShift& sample_shift() { return sample_shift_; }
  /// The class of the first logit that the rank holds; null: the loss is none of classes.
  [[nodiscard]] virtual std::int64_t* first_class() { return nullptr; }

 private:
  SampleShift sample_shift_;
};

/// `plan`, `memory` and `arithmetic` must outlive the model.
template <class T>
[[nodiscard]] std::unique_ptr<LocalModel<T>> make_elementwise_model(const Plan& plan, Rank rank,
                                                                    RankMemory<T>& memory,
                                                                    ExactArithmetic& arithmetic);
template <class T>
[[nodiscard]] std::unique_ptr<LocalModel<T>> make_module_model(const Plan& plan, Rank rank,
                                                               RankMemory<T>& memory,
                                                               ExactArithmetic& arithmetic);

}  // namespace hpsim
