#pragma once

#include <vector>

#include "plan/plan.h"

namespace hpsim {

/// A part of the model that is the identity on some ranks in a pass (InactiveSpec).
struct BypassedPart {
  int spec = 0;   ///< into DataSpec::inactive
  int first = 0;  ///< its first module
  int last = 0;   ///< and its last
  /// Of a residual the last module adds, and gives what it adds to: operand `kept` of it. -1: what
  /// the first module takes is copied, and becomes what the last one gives.
  int kept = -1;
  [[nodiscard]] bool copies() const { return kept < 0; }
  int input = -1;            ///< value that the first module takes; into Plan::values
  int input_gradient = -1;   ///< -1: nothing needs it
  int output_gradient = -1;  ///< of the last module; -1 likewise
};

/// Those that are inactive on some data rank in the pass of `step`. None of elementwise models. Of
/// a step that is recomputed those that lie in the recomputed part: only these come again as a
/// whole.
[[nodiscard]] std::vector<BypassedPart> bypassed_parts(const Plan& plan, const Step& step);

/// Whether a module, or elementwise parameter, is inactive on the rank at `coordinate`: on the data
/// ranks whose samples it computes with, which agree.
[[nodiscard]] bool is_inactive_at(const Plan& plan, const Step& step, int module,
                                  const Coordinate& coordinate);

}  // namespace hpsim
