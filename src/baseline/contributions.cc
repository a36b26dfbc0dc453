#include "baseline/contributions.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/dtype.h"
#include "baseline/module_parameters.h"
#include "baseline/reference_pass.h"
#include "baseline/tracked_arithmetic.h"
#include "scenario/precision.h"

namespace hpsim {
namespace {

std::vector<TrackedTensor> exact_tensors(const Scenario& scenario,
                                         const std::vector<std::vector<double>>& values) {
  HPSIM_CHECK(values.size() == scenario.parameters.size(), "{} parameters, not {}", values.size(),
              scenario.parameters.size());
  std::vector<TrackedTensor> tensors;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const MatrixSize size = matrix_size(scenario.parameters[i]);
    tensors.push_back({PlainTensor<double>(size.rows, size.cols), {}});
    HPSIM_CHECK(values[i].size() == tensors.back().value.data.size(), "\"{}\" has {} values",
                scenario.parameters[i].name, values[i].size());
    std::copy(values[i].begin(), values[i].end(), tensors.back().value.data.begin());
  }
  return tensors;
}

std::int64_t num_terms(const Scenario& scenario, const ContributionRequest& request) {
  return scenario.num_data_ranks() * scenario.training.micro_batches * request.num_parts;
}

/// Appends the elements of a part of the tensor, which begins at `first`, that are asked for.
void append_asked(const std::vector<Interval>& asked, std::int64_t first,
                  const PlainTensor<double>& part, double factor, std::vector<double>& term) {
  for (const Interval& run : asked) {
    const Interval here = intersect(run, {first, first + part.elems()});
    for (std::int64_t i = here.begin; i < here.end; ++i)
      term.push_back(part.data[static_cast<std::size_t>(i - first)] * factor);
  }
}

/// Receives what makes the gradient of one parameter, and adds up its terms.
class TermSums {
 public:
  using Pass = ReferencePass<TrackedArithmetic>;

  TermSums(const Scenario& scenario, const ContributionRequest& request)
      : scenario_(scenario),
        request_(request),
        factor_(gradient_factor(scenario, request.parameter) / gradient_divisor(scenario)) {
    result_.num_data_ranks = scenario.num_data_ranks();
    result_.num_micro_batches = scenario.training.micro_batches;
    result_.num_parts = request.num_parts;
    result_.terms.resize(static_cast<std::size_t>(num_terms(scenario, request)));
  }

  /// `shape` is that of the part of the gradient that the blocks make; parts come in order.
  void add(const std::vector<Pass::Block>& blocks, std::int64_t positions,
           const PlainTensor<double>& shape) {
    const std::int64_t count = scenario_.micro_batch_size() * positions;
    const std::int64_t num_parts = positions % request_.num_parts == 0 ? request_.num_parts : 1;
    const std::int64_t length = positions / num_parts;
    for (std::size_t i = 0; i < result_.terms.size(); ++i) {
      const std::int64_t pass = static_cast<std::int64_t>(i) / request_.num_parts;
      const std::int64_t part = static_cast<std::int64_t>(i) % request_.num_parts;
      PlainTensor<double> sum(shape.rows, shape.cols);
      for (const Pass::Block& block : blocks) {
        if (num_parts == 1) {
          if (part == 0) sum.map() += block(pass * count, count).map();
          continue;
        }
        for (std::int64_t s = 0; s < scenario_.micro_batch_size(); ++s)
          sum.map() += block(pass * count + s * positions + part * length, length).map();
      }
      append_asked(request_.elems, first_, sum, factor_, result_.terms[i]);
    }
    first_ += shape.elems();
  }

  [[nodiscard]] Contributions take() { return std::move(result_); }

 private:
  const Scenario& scenario_;
  const ContributionRequest& request_;
  double factor_;
  std::int64_t first_ = 0;  ///< of the next part, in the whole tensor
  Contributions result_;
};

Rounding rounding_of(const Scenario& scenario, double confidence) {
  return {unit_roundoff(carrier_dtype(scenario)), confidence, false};
}

ReferenceScalar bounded(const Scenario& scenario, const TrackedScalar& scalar, double confidence) {
  return {scalar.value, scenario.is_exact() ? 0 : confidence * std::sqrt(scalar.variance)};
}

ReferenceTensor bounded(const Scenario& scenario, const TrackedTensor& tensor, double confidence) {
  ReferenceTensor result{{tensor.value.data.begin(), tensor.value.data.end()}, {}};
  result.spread.resize(result.value.size());
  if (scenario.is_exact() || tensor.is_exact()) return result;
  const double underflow = smallest_normal(carrier_dtype(scenario));
  for (std::size_t i = 0; i < result.spread.size(); ++i) {
    if (tensor.variance[i] == 0 && result.value[i] == 0) continue;
    result.spread[i] = confidence * std::sqrt(tensor.variance[i]) + underflow;
  }
  return result;
}

}  // namespace

double contribution_cost(const Scenario& scenario, const ContributionRequest& request) {
  const auto& parameter = scenario.parameters.at(static_cast<std::size_t>(request.parameter));
  return static_cast<double>(num_terms(scenario, request)) *
         static_cast<double>(num_elems(parameter.shape));
}

Contributions contributions_to(const Scenario& scenario, const ContributionRequest& request,
                               const std::vector<std::vector<double>>& parameters) {
  TrackedArithmetic arithmetic(rounding_of(scenario, 0));
  const std::vector<TrackedTensor> tensors = exact_tensors(scenario, parameters);
  ReferencePass<TrackedArithmetic> pass(scenario, request.step, arithmetic, tensors);
  TermSums sums(scenario, request);
  pass.watch(request.parameter, [&](const auto& blocks, std::int64_t positions, const auto& shape) {
    sums.add(blocks, positions, shape);
  });
  (void)pass.run();
  return sums.take();
}

ReferenceStep gradients_of_step(const Scenario& scenario, std::int64_t step,
                                const std::vector<std::vector<double>>& parameters,
                                double confidence) {
  TrackedArithmetic arithmetic(rounding_of(scenario, confidence));
  const std::vector<TrackedTensor> tensors = exact_tensors(scenario, parameters);
  const auto pass = ReferencePass<TrackedArithmetic>(scenario, step, arithmetic, tensors).run();
  ReferenceStep result;
  result.loss = bounded(scenario, pass.loss, confidence);
  result.global_loss = bounded(scenario, pass.global_loss, confidence);
  for (const TrackedTensor& gradient : pass.gradients)
    result.gradients.push_back(bounded(scenario, gradient, confidence));
  return result;
}

}  // namespace hpsim
