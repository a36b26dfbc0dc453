// Collectives that ranks carry out with another op, dtype or size than the plan says.

#include <algorithm>

#include "engine/faults/exchange_tools.h"
#include "tensor/shape.h"

namespace hpsim {
namespace {

/// A call that is changed where the fault is aimed.
template <class T, bool (*is_kind)(const Step&)>
class AlteredExchange : public AimedFault<T> {
 public:
  using AimedFault<T>::AimedFault;

  std::optional<CollectiveCall> change_call(EngineParts<T>& /*engine*/,
                                            const CollectiveCall& call) override {
    const Step& step = this->step_at(call.plan_step);
    if (!is_kind(step) || !is_aimed_at(this->plan(), this->fault(), step)) return call;
    planned_ = call;
    return altered(call);
  }

  void after_exchange(EngineParts<T>& /*engine*/, std::int64_t /*plan_step*/) override {
    if (planned_) restore(*planned_);
    planned_.reset();
  }

 protected:
  virtual CollectiveCall altered(const CollectiveCall& planned) = 0;
  /// What arrived, where the engine looks for it.
  virtual void restore(const CollectiveCall& /*planned*/) {}

 private:
  std::optional<CollectiveCall> planned_;
};

/// The largest of what ranks send instead of the sum.
template <class T>
class MaxForSum : public AlteredExchange<T, is_of_gradients> {
 public:
  using AlteredExchange<T, is_of_gradients>::AlteredExchange;

 protected:
  CollectiveCall altered(const CollectiveCall& planned) override {
    CollectiveCall call = planned;
    call.takes_max = true;
    return call;
  }
};

/// Of gradients of more than 16 bits.
bool is_wide_reduction(const Step& step) {
  return is_of_gradients(step) && size_bytes(step.collective->dtype) > 2;
}

/// Numbers are sent, and summed, as bfloat16.
template <class T>
class NarrowOnWire : public AlteredExchange<T, is_wide_reduction> {
 public:
  using AlteredExchange<T, is_wide_reduction>::AlteredExchange;

 protected:
  CollectiveCall altered(const CollectiveCall& planned) override {
    // The gradients are this rank's own until they are sent.
    round_to(DType::BFloat16, const_cast<T*>(static_cast<const T*>(planned.input)),
             planned.elems_in);
    CollectiveCall call = planned;
    call.sent_as = DType::BFloat16;
    return call;
  }
  void restore(const CollectiveCall& planned) override {
    round_to(DType::BFloat16, static_cast<T*>(planned.output), planned.elems_out);
  }
};

bool is_extended(const Step& step) {
  return (is_all_gather(step) && !step.is_async) || is_of_gradients(step);
}

/// One row of the unit's first parameter more than it has.
template <class T>
class ExtraRow : public AlteredExchange<T, is_extended> {
 public:
  using AlteredExchange<T, is_extended>::AlteredExchange;

 protected:
  CollectiveCall altered(const CollectiveCall& planned) override {
    const Bucket& bucket = this->plan().bucket(this->step_at(planned.plan_step).bucket);
    const auto* const input = static_cast<const T*>(planned.input);
    row_elems_ = std::min(planned.elems_in, planned.elems_out);
    num_rows_in_ = row_elems_ == 0 ? 0 : planned.elems_in / row_elems_;
    num_rows_out_ = row_elems_ == 0 ? 0 : planned.elems_out / row_elems_;
    extra_ = std::max<std::int64_t>(
        hpsim::row_elems(this->plan().parameter(bucket.parameters.at(0)).shape), 1);
    sent_.assign(static_cast<std::size_t>(num_rows_in_ * long_row()), T(0));
    arrived_.assign(static_cast<std::size_t>(num_rows_out_ * long_row()), T(0));
    for (std::int64_t row = 0; row < num_rows_in_; ++row)
      std::copy_n(input + row * row_elems_, row_elems_, sent_.data() + row * long_row());
    CollectiveCall call = planned;
    const bool is_in_place = planned.op == CollectiveOp::AllReduce;
    call.input = sent_.data();
    call.output = is_in_place ? sent_.data() : arrived_.data();
    call.elems_in = num_rows_in_ * long_row();
    call.elems_out = num_rows_out_ * long_row();
    return call;
  }

  void restore(const CollectiveCall& planned) override {
    const bool is_in_place = planned.op == CollectiveOp::AllReduce;
    const T* const arrived = is_in_place ? sent_.data() : arrived_.data();
    for (std::int64_t row = 0; row < num_rows_out_; ++row) {
      std::copy_n(arrived + row * long_row(), row_elems_,
                  static_cast<T*>(planned.output) + row * row_elems_);
    }
  }

 private:
  [[nodiscard]] std::int64_t long_row() const { return row_elems_ + extra_; }

  std::int64_t row_elems_ = 0;
  std::int64_t extra_ = 0;
  std::int64_t num_rows_in_ = 0;
  std::int64_t num_rows_out_ = 0;
  std::vector<T> sent_;
  std::vector<T> arrived_;
};

/// Every rank gets all sums, and keeps its own part of them.
template <class T>
class AllReduceForReduceScatter : public AlteredExchange<T, is_reduce_scatter> {
 public:
  using AlteredExchange<T, is_reduce_scatter>::AlteredExchange;

 protected:
  CollectiveCall altered(const CollectiveCall& planned) override {
    const auto* const input = static_cast<const T*>(planned.input);
    sums_.assign(input, input + planned.elems_in);
    CollectiveCall call = planned;
    call.op = CollectiveOp::AllReduce;
    call.input = sums_.data();
    call.output = sums_.data();
    call.elems_out = planned.elems_in;
    return call;
  }

  void restore(const CollectiveCall& planned) override {
    const CollectiveSpec& spec = *this->step_at(planned.plan_step).collective;
    const std::int64_t position = position_in_group(this->plan(), spec, this->rank());
    std::copy_n(sums_.data() + position * planned.elems_out, planned.elems_out,
                static_cast<T*>(planned.output));
  }

 private:
  std::vector<T> sums_;
};

template <bool (*is_kind)(const Step&)>
bool has_exchange(const Plan& plan, const FaultSpec& fault) {
  return any_exchange(plan, fault, is_kind);
}

}  // namespace

std::vector<EngineFaultKind> altered_exchanges() {
  return {
      engine_fault<MaxForSum>("wrong_op_max", has_exchange<is_of_gradients>),
      engine_fault<NarrowOnWire>("wrong_wire_dtype", has_exchange<is_wide_reduction>),
      engine_fault<ExtraRow>("extra_row_on_rank", has_exchange<is_extended>),
      engine_fault<AllReduceForReduceScatter>("all_reduce_for_reduce_scatter",
                                              has_exchange<is_reduce_scatter>),
  };
}

}  // namespace hpsim
