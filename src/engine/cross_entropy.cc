#include "engine/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/lanes.h"

namespace hpsim {
namespace {

/// Place of a target among the local classes; -1 if it is none of them.
template <class T>
std::int64_t local_target(T target, const LocalClasses& classes) {
  const std::int64_t place = static_cast<std::int64_t>(target) - classes.first;
  return place >= 0 && place < classes.count ? place : -1;
}

}  // namespace

template <class T>
void cross_entropy_statistics(const T* logits, std::int64_t rows, const LocalClasses& classes,
                              const T* targets, T* statistics) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* z = logits + row * classes.count;
    const T max = lane_max(classes.count, z);
    const auto shifted = [max](const Lanes<T>& v) -> Lanes<T> { return lane_exp<T>(v - max); };
    const std::int64_t target = local_target(targets[row], classes);
    T* const of_row = statistics + row * kCrossEntropyStatistics;
    of_row[0] = max;
    of_row[1] = lane_sum(classes.count, shifted, z);
    of_row[2] = target < 0 ? T(0) : z[target];
  }
}

template <class T>
void cross_entropy_combine(const T* statistics, std::int64_t parts, std::int64_t rows,
                           T* combined) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto of_part = [&](std::int64_t part) {
      return statistics + (part * rows + row) * kCrossEntropyStatistics;
    };
    T max = -std::numeric_limits<T>::infinity();
    for (std::int64_t part = 0; part < parts; ++part)
      max = std::max(max, of_part(part)[0]);
    T sum = 0;
    T target = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
      sum += of_part(part)[1] * std::exp(of_part(part)[0] - max);
      target += of_part(part)[2];
    }
    T* const of_row = combined + row * kCrossEntropyStatistics;
    of_row[0] = max;
    of_row[1] = sum;
    of_row[2] = target;
  }
}

template <class T>
T cross_entropy_sum(const T* combined, std::int64_t rows) {
  T loss = 0;
  for (std::int64_t row = 0; row < rows; ++row, combined += kCrossEntropyStatistics)
    loss += std::log(combined[1]) + (combined[0] - combined[2]);
  return loss;
}

template <class T>
void cross_entropy_gradient(const T* logits, std::int64_t rows, const LocalClasses& classes,
                            const T* targets, const T* combined, T scale, T* dz) {
  for (std::int64_t row = 0; row < rows; ++row, logits += classes.count, dz += classes.count) {
    const T max = combined[row * kCrossEntropyStatistics];
    const T sum = combined[row * kCrossEntropyStatistics + 1];
    const auto softmax = [max, sum](const Lanes<T>& v) -> Lanes<T> {
      return lane_exp<T>(v - max) / sum;
    };
    lane_map(classes.count, softmax, dz, logits);
    const std::int64_t target = local_target(targets[row], classes);
    if (target >= 0) dz[target] -= 1;
    for (std::int64_t i = 0; i < classes.count; ++i)
      dz[i] *= scale;
  }
}

#define HPSIM_INSTANTIATE(T)                                                                       \
  template void cross_entropy_statistics<T>(const T*, std::int64_t, const LocalClasses&, const T*, \
                                            T*);                                                   \
  template void cross_entropy_combine<T>(const T*, std::int64_t, std::int64_t, T*);                \
  template T cross_entropy_sum<T>(const T*, std::int64_t);                                         \
  template void cross_entropy_gradient<T>(const T*, std::int64_t, const LocalClasses&, const T*,   \
                                          const T*, T, T*);
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
