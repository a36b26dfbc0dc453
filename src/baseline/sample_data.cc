#include "baseline/sample_data.h"

#include <algorithm>
#include <array>

#include "baseline/plain_tensor.h"
#include "scenario/precision.h"

namespace hpsim {
namespace {

void draw(DType dtype, std::uint64_t key, const FillSpec& spec, std::int64_t first,
          std::int64_t count, double* out) {
  if (dtype != DType::Float32 || spec.kind == FillSpec::Kind::Token) {
    fill(out, count, key, first, spec);
    if (spec.kind != FillSpec::Kind::Token) round_to(dtype, out, count);
    return;
  }
  constexpr std::int64_t kChunk = 1024;
  std::array<float, kChunk> rounded;
  for (std::int64_t begin = 0; begin < count; begin += kChunk) {
    const std::int64_t size = std::min(kChunk, count - begin);
    fill(rounded.data(), size, key, first + begin, spec);
    std::copy_n(rounded.begin(), size, out + begin);
  }
}

}  // namespace

std::vector<double> draw_values(const Scenario& scenario, const std::string& name, DType dtype,
                                const FillSpec& fill, std::int64_t first, std::int64_t count) {
  auto values = zeroed_vector<double, std::allocator<double>>(static_cast<std::size_t>(count));
  draw(dtype, fill_key(name, scenario.data.seed), fill, first, count, values.data());
  return values;
}

std::vector<std::vector<double>> draw_parameters(const Scenario& scenario) {
  std::vector<std::vector<double>> parameters;
  for (int i = 0; i < static_cast<int>(scenario.parameters.size()); ++i) {
    const ParameterSpec& parameter = scenario.parameters[static_cast<std::size_t>(i)];
    parameters.push_back(draw_values(scenario, parameter.name, parameter_dtype(scenario, i),
                                     parameter_fill(scenario.data, parameter), 0,
                                     num_elems(parameter.shape)));
  }
  return parameters;
}

AlignedVector<double> draw_samples(const Scenario& scenario, const std::string& name,
                                   const FillSpec& fill, std::int64_t step,
                                   std::int64_t sample_elems, std::int64_t begin,
                                   std::int64_t count) {
  const std::int64_t batch = scenario.training.global_batch;
  const std::uint64_t key = fill_key(name, scenario.data.seed);
  auto values = zeroed_vector<double>(static_cast<std::size_t>(batch * count));
  for (std::int64_t sample = 0; sample < batch; ++sample) {
    const std::int64_t first = (step * batch + sample) * sample_elems + begin;
    draw(scenario.numerics.dtype, key, fill, first, count, values.data() + sample * count);
  }
  return values;
}

}  // namespace hpsim
