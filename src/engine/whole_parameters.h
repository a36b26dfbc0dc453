#pragma once

#include <type_traits>
#include <vector>

#include "plan/plan.h"
#include "tensor/buffer.h"

namespace hpsim {

/// Parameters as they are made on "cpu": whole, before anything is cut. The numbers are those of
/// `data.init`, rounded to the parameter's dtype.
template <class T>
class WholeParameters {
 public:
  /// `keeps`: what was drawn stays until the object goes, for ranks that come later; else the next
  /// parameter takes its place. `plan` must outlive this.
  WholeParameters(const Plan& plan, bool keeps)
      : plan_(plan), keeps_(keeps), drawn_(keeps ? plan.parameters.size() : 1) {}

  /// The global tensor, row-major.
  [[nodiscard]] const T* draw(int parameter);

 private:
  const Plan& plan_;
  bool keeps_;
  std::vector<Buffer<T>> drawn_;  ///< per parameter; of a single rank one for all
};

/// Whole parameters of ranks that share a process: a value depends on its place, not on the rank,
/// so each parameter is drawn once for all of them. The ledger counts it for each.
class SharedParameters {
 public:
  explicit SharedParameters(const Plan& plan) : floats_(plan, true), doubles_(plan, true) {}

  template <class T>
  [[nodiscard]] WholeParameters<T>& of() {
    if constexpr (std::is_same_v<T, float>) {
      return floats_;
    } else {
      return doubles_;
    }
  }

 private:
  WholeParameters<float> floats_;
  WholeParameters<double> doubles_;
};

/// Draws elements [first, first + count) of a parameter of the scenario.
template <class T>
void fill_parameter(const Plan& plan, int parameter, std::int64_t first, std::int64_t count,
                    T* out);

}  // namespace hpsim
