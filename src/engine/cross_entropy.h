#pragma once

#include <cstdint>

namespace hpsim {

// The cross entropy of logits [rows, classes] with one target class per row, log Σ exp(z) - z of
// the target, summed over rows. A rank may hold the logits of some classes only: these are never
// gathered, only three numbers per row and rank are.
//
//   cross_entropy_statistics   on every rank, of its own classes
//   all-gather of 3 rows elements over the ranks that share the classes, unless it is one
//   cross_entropy_combine      on every rank, of all; equal in every bit on all of them
//   cross_entropy_sum          likewise
//   cross_entropy_gradient     on every rank, for its own classes

/// Classes [first, first + count) of all.
struct LocalClasses {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Numbers per row: the largest logit z_max, the sum of exp(z - z_max), the logit of the target.
inline constexpr std::int64_t kCrossEntropyStatistics = 3;

/// Of local classes: 0 where the target is none of them; minus infinity, 0, 0 where there are none.
/// Targets are integers, stored as T. statistics: [rows, 3]
template <class T>
void cross_entropy_statistics(const T* logits, std::int64_t rows, const LocalClasses& classes,
                              const T* targets, T* statistics);

/// Combines statistics [parts, rows, 3] in order of parts to those of all classes, [rows, 3].
/// `combined` may be the first of the parts. \pre some part has classes, and one has the target
template <class T>
void cross_entropy_combine(const T* statistics, std::int64_t parts, std::int64_t rows, T* combined);

/// The loss of rows with these combined statistics, added row after row.
template <class T>
[[nodiscard]] T cross_entropy_sum(const T* combined, std::int64_t rows);

/// dz = (softmax(z) - 1 at the target) scale for local classes; dz may be the logits.
template <class T>
void cross_entropy_gradient(const T* logits, std::int64_t rows, const LocalClasses& classes,
                            const T* targets, const T* combined, T scale, T* dz);

}  // namespace hpsim
