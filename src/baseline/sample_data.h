#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "baseline/aligned_vector.h"
#include "scenario/scenario.h"

namespace hpsim {

/// Elements [first, first + count) of the tensor `name`, rounded once to `dtype`; tokens never are.
[[nodiscard]] std::vector<double> draw_values(const Scenario& scenario, const std::string& name,
                                              DType dtype, const FillSpec& fill, std::int64_t first,
                                              std::int64_t count);

/// Initial values of every parameter, in its own dtype.
[[nodiscard]] std::vector<std::vector<double>> draw_parameters(const Scenario& scenario);

/// Elements [begin, begin + count) of every sample of a step: global_batch rows of `count`, where a
/// sample of the tensor `name` has `sample_elems` elements, in the dtype of the run.
[[nodiscard]] AlignedVector<double> draw_samples(const Scenario& scenario, const std::string& name,
                                                 const FillSpec& fill, std::int64_t step,
                                                 std::int64_t sample_elems, std::int64_t begin,
                                                 std::int64_t count);

}  // namespace hpsim
