#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace hpsim {

/// Explanations that one finding tells.
inline constexpr std::size_t kMaxExplanations = 3;

/// A number that a wrong factor may be, as reports name it: {"D=4", 4}, {"1/R=1/2", 0.5}.
struct NamedNumber {
  std::string text;
  double value = 1;
  std::string symbol;       ///< "D"; empty: it is no factor of products
  bool is_inverse = false;  ///< the value is that of 1/symbol
};

/// The numbers of a scenario that are easily applied once too often or too little, those that are
/// named first more likely than the others, and their inverses; those that are 1 are left out.
///
///   D      data ranks                    tp, ep   ranks along these mesh dims
///   S      shards of the parameter       ep/tp    both, where there are both
///   R      replicas of it (dp_size)      M        micro-batches
///   S*R    both, if neither is 1         F, k     gradient divisor and scaling factor
///   P      ranks of its partial group    W        ranks
///   numel  elements of the parameter     F before the sum   what float16 is divided by first
///
///   4 ranks, fsdp, avg    D=4 S=4 F=4 W=4 numel=56 1/D=1/4 1/S=1/4 1/F=1/4 ...
/// Of weights of experts, ep and ep/tp come first.
[[nodiscard]] std::vector<NamedNumber> named_numbers(const Scenario& scenario,
                                                     const PlannedParameter& parameter);

/// Those that belong to no parameter: what may be wrong with a loss.
[[nodiscard]] std::vector<NamedNumber> named_numbers(const Scenario& scenario);

/// For the norm over all parameters, where a factor of a sum of squares shows as its root:
/// named_numbers of every parameter, and sqrt(D), sqrt(S), ... of them.
[[nodiscard]] std::vector<NamedNumber> named_norm_numbers(const Plan& plan);

/// What a ratio, known to `uncertainty`, may be, best first, at most kMaxExplanations: numbers that
/// have this value; only where none has, products and quotients of two of them.
///
///   ratio   numbers           texts
///   4       D=4 S=4 M=2       D=4, S=4
///   8       D=4 M=2           D*M=8
///   2       D=4 M=2           M=2
///   0.125   D=4 M=2           1/(D*M)=1/8
///   3       D=4 M=2           none
///   6       D=4 S=2 R=3       S*R=6
[[nodiscard]] std::vector<std::string> explain(double ratio,
                                               const std::vector<NamedNumber>& numbers,
                                               double uncertainty = 0);

/// "S=2, F=2", ready to follow a ratio; "" if nothing explains it.
[[nodiscard]] std::string join(const std::vector<std::string>& texts);

}  // namespace hpsim
