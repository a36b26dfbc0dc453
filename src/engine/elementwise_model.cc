#include <utility>

#include "base/check.h"
#include "engine/elementwise.h"
#include "engine/local_model.h"
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
        batch_(scenario_.local_batch()),
        coordinate_(scenario_.mesh.coordinate_of(rank)) {
    const std::size_t num_parameters = scenario_.model.elementwise.size();
    loss_terms_.assign(num_parameters, T(0));
    inputs_.resize(num_parameters);
    targets_.resize(num_parameters);
  }

  void enter_step(std::int64_t step) override { step_ = step; }

  void forward(int p) override {
    const auto at = static_cast<std::size_t>(p);
    const ElementwiseSpec& spec = scenario_.model.elementwise[at];
    const std::vector<Interval> samples = samples_of(p);
    const std::int64_t num_samples = batch_ * static_cast<std::int64_t>(samples.size());
    inputs_[at] = draw(p, "/input", scenario_.data.input, samples);
    targets_[at] = draw(p, "/target", scenario_.data.target, samples);
    arithmetic_.run([&] {
      const T sum = elementwise_loss_sum(memory_.whole(p), inputs_[at].data(), targets_[at].data(),
                                         num_samples);
      loss_terms_[at] = sum / divisor(spec);
    });
  }

  CollectiveEnds<T> begin_loss() override { return {}; }
  std::vector<T> finish_loss() override { return loss_terms_; }

  void backward(int p) override {
    const auto at = static_cast<std::size_t>(p);
    const std::int64_t num_samples = batch_ * scenario_.mesh.size(shared_data_dims(scenario_, p));
    const std::int64_t drawn = num_samples * num_elems(memory_.whole_box(p).shape);
    arithmetic_.run([&] {
      elementwise_gradient(memory_.whole(p), inputs_[at].data(), targets_[at].data(), num_samples,
                           divisor(scenario_.model.elementwise[at]), memory_.whole_gradient(p));
    });
    memory_.give_back(MemoryKind::Activations, inputs_[at], drawn);
    memory_.give_back(MemoryKind::Activations, targets_[at], drawn);
  }

  CollectiveEnds<T> begin_redistribute(int redistribution) override {
    HPSIM_CHECK(false, "redistribution {} of a model without activations", redistribution);
    return {};
  }
  void finish_redistribute(int redistribution) override {
    HPSIM_CHECK(false, "redistribution {} of a model without activations", redistribution);
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
  [[nodiscard]] T divisor(const ElementwiseSpec& spec) const {
    return static_cast<T>(loss_divisor(scenario_, batch_ * num_elems(spec.shape)));
  }

  /// Samples, in the global batch, that a parameter uses on this rank: its own, or those of all
  /// ranks along data dims that cut the parameter.
  [[nodiscard]] std::vector<Interval> samples_of(int p) const {
    const MeshDims& data_dims = scenario_.data.data_dims;
    const MeshDims shared = shared_data_dims(scenario_, p);
    Coordinate coordinate = coordinate_;
    for (const int dim : shared)
      coordinate[static_cast<std::size_t>(dim)] = 0;
    std::vector<Interval> samples;
    do {
      const std::int64_t first = batch_ * scenario_.mesh.index_along(data_dims, coordinate);
      samples.push_back({first, first + batch_});
    } while (advance(scenario_.mesh, shared, coordinate));
    return samples;
  }

  /// The part of the parameter that this rank computes with, of each of those samples.
  [[nodiscard]] Buffer<T> draw(int p, const char* suffix, const FillSpec& fill_spec,
                               const std::vector<Interval>& samples) {
    const ElementwiseSpec& spec = scenario_.model.elementwise[static_cast<std::size_t>(p)];
    const std::int64_t elems = num_elems(spec.shape);
    const Box& box = memory_.whole_box(p);
    const std::int64_t num_samples = batch_ * static_cast<std::int64_t>(samples.size());
    Buffer<T> buffer = memory_.take(MemoryKind::Activations, num_samples * num_elems(box.shape));
    const std::uint64_t key = fill_key(spec.name + suffix, scenario_.data.seed);
    T* next = buffer.data();
    for (const Interval& range : samples) {
      for (std::int64_t sample = range.begin; sample < range.end; ++sample) {
        const std::int64_t base = (step_ * scenario_.training.global_batch + sample) * elems;
        each_run(spec.shape, box, [&](std::int64_t first, std::int64_t count) {
          fill(next, count, key, base + first, fill_spec);
          next += count;
        });
      }
    }
    return buffer;
  }

  const Scenario& scenario_;
  RankMemory<T>& memory_;
  ExactArithmetic& arithmetic_;
  std::int64_t batch_;     ///< samples of this rank in one step
  std::int64_t step_ = 0;  ///< optimizer step
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

double loss_divisor(const Scenario& scenario, std::int64_t count) {
  if (scenario.training.loss_normalization == LossNormalization::Sum) return 1;
  return mean_divisor(scenario, count);
}

template std::unique_ptr<LocalModel<float>> make_elementwise_model(const Plan&, Rank,
                                                                   RankMemory<float>&,
                                                                   ExactArithmetic&);
template std::unique_ptr<LocalModel<double>> make_elementwise_model(const Plan&, Rank,
                                                                    RankMemory<double>&,
                                                                    ExactArithmetic&);

}  // namespace hpsim
