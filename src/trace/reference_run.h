#pragma once

#include <cstdint>
#include <vector>

namespace hpsim {

/// A tensor of the baseline: the value, and how far a correct run may be from it through rounding.
/// The bound on |got - value| is spread + 4u|value|, with u of the run's dtype (README, "Bounds").
/// In exact mode the spread is 0 and the bound is 0: equality.
struct ReferenceTensor {
  std::vector<double> value;
  std::vector<double> spread;
};

struct ReferenceScalar {
  double value = 0;
  double spread = 0;
};

/// Where the positions of one experts module go: top_k experts per position, by falling
/// probability, positions of sample after sample of the whole batch.
using ReferenceRoutes = std::vector<std::int32_t>;

/// One optimizer step, from the parameters and state that the run held before it.
struct ReferenceStep {
  ReferenceScalar loss;  ///< of the whole batch, before the update
  /// The mean over all valid terms of the step: what the loss would be with global_tokens.
  ReferenceScalar global_loss;
  ReferenceScalar grad_norm;                        ///< norm of G, before clipping (norm_type or 2)
  std::vector<ReferenceTensor> gradients;           ///< G, like Scenario::parameters, before
                                                    ///< clipping; empty: it has none
  std::vector<ReferenceTensor> parameters;          ///< after the update
  std::vector<std::vector<ReferenceTensor>> state;  ///< [state tensor][parameter], after
  std::vector<ReferenceRoutes> routes;              ///< like experts_modules
};

/// What the non-distributed program says.
struct ReferenceRun {
  bool exact = false;        ///< bounds are 0
  double unit_roundoff = 0;  ///< of the run's dtype
  double confidence = 0;     ///< k = sqrt(2 ln(2N / 1e-9)); spreads already contain it
  std::vector<std::vector<double>> initial;  ///< parameters before step 0, exact in the dtype
  std::vector<ReferenceStep> steps;          ///< what each step is judged by
  std::vector<ReferenceScalar> losses;       ///< one free-running training, step by step
  std::vector<ReferenceScalar> grad_norms;   ///< of the same
  /// Of the same, its parameters after every step: [step][parameter]; empty where there was none.
  std::vector<std::vector<std::vector<double>>> free_parameters;
};

}  // namespace hpsim
