#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "engine/elementwise.h"
#include "engine/local_model.h"
#include "plan/bypassed_parts.h"
#include "scenario/gradients.h"
#include "scenario/precision.h"
#include "tensor/fill.h"

namespace hpsim {
namespace {

/// Elementwise parameters, each with inputs and targets of its own.
template <class T>
class ElementwiseModel : public LocalModel<T> {
 public:
  ElementwiseModel(const Plan& plan, Rank rank, RankMemory<T>& memory, ExactArithmetic& arithmetic)
      : scenario_(plan.scenario),
        memory_(memory),
        arithmetic_(arithmetic),
        plan_(plan),
        batch_(scenario_.micro_batch_size()),
        coordinate_(scenario_.mesh.coordinate_of(rank)) {
    const std::size_t num_parameters = scenario_.model.elementwise.size();
    loss_terms_.assign(num_parameters, T(0));
    inputs_.resize(num_parameters);
    targets_.resize(num_parameters);
  }

  void enter_pass(const Pass& pass) override { pass_ = pass; }

  void forward(const Step& step) override {
    const int p = step.module;
    const auto at = static_cast<std::size_t>(p);
    const ElementwiseDTypes dtypes = elementwise_dtypes(scenario_, p);
    const std::int64_t num_samples = batch_ * scenario_.mesh.size(shared_data_dims(scenario_, p));
    const SampleShift& shift = this->sample_shift();
    inputs_[at] =
        draw(p, "/input", scenario_.data.input, dtypes.input, samples_of(p, shift.of_input));
    targets_[at] = draw(p, "/target", scenario_.data.target, scenario_.numerics.dtype,
                        samples_of(p, shift.of_target));
    loss_terms_[at] = 0;
    if (is_inactive_at(plan_, step, p, coordinate_)) return;
    const T* const x = inputs_[at].data();
    const T* const target = targets_[at].data();
    arithmetic_.run([&] {
      const T sum = is_rounded(dtypes)
                        ? elementwise_loss_sum(memory_.whole(p), x, target, num_samples, dtypes)
                        : elementwise_loss_sum(memory_.whole(p), x, target, num_samples);
      loss_terms_[at] = sum / divisor(p);
    });
  }

  CollectiveEnds<T> begin_loss() override { return {}; }
  std::vector<T> finish_loss() override { return loss_terms_; }

  void backward(const Step& step) override {
    const int p = step.module;
    const auto at = static_cast<std::size_t>(p);
    const ElementwiseDTypes dtypes = elementwise_dtypes(scenario_, p);
    const std::int64_t num_samples = batch_ * scenario_.mesh.size(shared_data_dims(scenario_, p));
    const std::int64_t drawn = num_samples * num_elems(memory_.whole_box(p).shape);
    const RowBlocks<T> gradient = memory_.whole_gradient(p);
    if (is_inactive_at(plan_, step, p, coordinate_)) {
      gradient.each_block([&](T* block, std::int64_t /*first*/, std::int64_t rows) {
        std::fill_n(block, rows * gradient.row_elems, T(0));
      });
    } else if (gradient.data != nullptr) {
      const T* const x = inputs_[at].data();
      const T* const target = targets_[at].data();
      arithmetic_.run([&] {
        if (is_rounded(dtypes)) {
          elementwise_gradient(memory_.whole(p), x, target, num_samples, divisor(p), gradient,
                               dtypes);
        } else {
          elementwise_gradient(memory_.whole(p), x, target, num_samples, divisor(p), gradient);
        }
      });
    }
    memory_.give_back(MemoryKind::Activations, dtypes.input, inputs_[at], drawn);
    memory_.give_back(MemoryKind::Activations, scenario_.numerics.dtype, targets_[at], drawn);
  }

  [[nodiscard]] std::span<T> routing_weights(int /*module*/) override { return {}; }
  [[nodiscard]] std::span<T> output_of(int /*module*/) override { return {}; }
  CollectiveEnds<T> begin_redistribute(const Step& step) override {
    HPSIM_CHECK(false, "redistribution {} of a model without activations", step.redistribution);
    return {};
  }
  void finish_redistribute(const Step& step) override {
    HPSIM_CHECK(false, "redistribution {} of a model without activations", step.redistribution);
  }

  TokenEnds begin_tokens(const Step& step) override {
    HPSIM_CHECK(false, "{} of a model without experts", name_of(step.kind));
    return {};
  }
  void finish_tokens(const Step& step) override {
    HPSIM_CHECK(false, "{} of a model without experts", name_of(step.kind));
  }
  [[nodiscard]] std::vector<std::int64_t> routed_counts(int module) const override {
    HPSIM_CHECK(false, "module {} of a model without experts", module);
    return {};
  }

 private:
  /// The mean is over a rank's own samples, and over all elements of the parameter.
  [[nodiscard]] T divisor(int p) const {
    const Shape& shape = scenario_.model.elementwise[static_cast<std::size_t>(p)].shape;
    return static_cast<T>(loss_divisor(scenario_, 0, pass_.micro_batch, num_elems(shape)));
  }

  /// Whether products have another dtype than the one in which they are held.
  [[nodiscard]] static bool is_rounded(const ElementwiseDTypes& dtypes) {
    constexpr DType kHeld = std::is_same_v<T, float> ? DType::Float32 : DType::Float64;
    return dtypes.product != kHeld || dtypes.given != kHeld;
  }

  /// Samples, in the global batch, that a parameter uses on this rank: its own, or those of all
  /// ranks along data dims that cut the parameter; or those of data ranks that come `shift` later.
  [[nodiscard]] std::vector<Interval> samples_of(int p, std::int64_t shift) const {
    const MeshDims& data_dims = scenario_.data.data_dims;
    const MeshDims shared = shared_data_dims(scenario_, p);
    Coordinate coordinate = coordinate_;
    for (const int dim : shared)
      coordinate[static_cast<std::size_t>(dim)] = 0;
    std::vector<Interval> samples;
    do {
      const std::int64_t data_rank =
          (scenario_.mesh.index_along(data_dims, coordinate) + shift) % scenario_.num_data_ranks();
      const std::int64_t first = data_rank * scenario_.local_batch() + pass_.micro_batch * batch_;
      samples.push_back({first, first + batch_});
    } while (advance(scenario_.mesh, shared, coordinate));
    return samples;
  }

  /// The part of the parameter that this rank computes with, of each of those samples.
  [[nodiscard]] Buffer<T> draw(int p, const char* suffix, const FillSpec& fill_spec, DType dtype,
                               const std::vector<Interval>& samples) {
    const ElementwiseSpec& spec = scenario_.model.elementwise[static_cast<std::size_t>(p)];
    const std::int64_t elems = num_elems(spec.shape);
    const Box& box = memory_.whole_box(p);
    const std::int64_t num_samples = batch_ * static_cast<std::int64_t>(samples.size());
    const std::int64_t drawn = num_samples * num_elems(box.shape);
    Buffer<T> buffer = memory_.take(MemoryKind::Activations, dtype, drawn);
    const std::uint64_t key = fill_key(spec.name + suffix, scenario_.data.seed);
    T* next = buffer.data();
    for (const Interval& range : samples) {
      for (std::int64_t sample = range.begin; sample < range.end; ++sample) {
        const std::int64_t base = (pass_.step * scenario_.training.global_batch + sample) * elems;
        each_run(spec.shape, box, [&](std::int64_t first, std::int64_t count) {
          fill(next, count, key, base + first, fill_spec, scenario_.numerics.dtype);
          next += count;
        });
      }
    }
    round_to(dtype, buffer.data(), drawn);
    return buffer;
  }

  const Scenario& scenario_;
  RankMemory<T>& memory_;
  ExactArithmetic& arithmetic_;
  const Plan& plan_;
  std::int64_t batch_;  ///< samples of this rank in one pass
  Pass pass_;
  Coordinate coordinate_;
  std::vector<T> loss_terms_;
  std::vector<Buffer<T>> inputs_;   ///< per parameter
  std::vector<Buffer<T>> targets_;  ///< per parameter
};

}  // namespace

template <class T>
std::unique_ptr<LocalModel<T>> make_elementwise_model(const Plan& plan, Rank rank,
                                                      RankMemory<T>& memory,
                                                      ExactArithmetic& arithmetic) {
  return std::make_unique<ElementwiseModel<T>>(plan, rank, memory, arithmetic);
}

template std::unique_ptr<LocalModel<float>> make_elementwise_model(const Plan&, Rank,
                                                                   RankMemory<float>&,
                                                                   ExactArithmetic&);
template std::unique_ptr<LocalModel<double>> make_elementwise_model(const Plan&, Rank,
                                                                    RankMemory<double>&,
                                                                    ExactArithmetic&);

}  // namespace hpsim
