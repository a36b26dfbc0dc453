#pragma once

#include <functional>
#include <string>
#include <vector>

#include "verify/suspect.h"

namespace hpsim {

/// A training that is easily run in place of the one that is asked for.
struct Variant {
  std::string text;  ///< continues "it ...": "is what "loss_normalization" ... gives"
  Scenario scenario;
  std::vector<std::vector<double>> parameters;  ///< held before the step
};

/// Those of a scenario, from these parameters:
///   another loss_normalization    where ranks or micro-batches have unequal counts, or none is a
///                                 mean of means; "is the mean of means of micro-batches"
///   all positions valid           where `data.tokens` is given
///   a bias tp times               of row-wise layers: all together, then one by one
/// \pre nothing is computed yet
[[nodiscard]] std::vector<Variant> variants_of(const Evidence& evidence, std::int64_t step);

/// The variants whose loss the run has: "is what a bias gives, "down.bias", that every rank of tp
/// adds: the difference is (tp-1)*bias"; of another normalization also "D=4 times" it, where sums
/// of ranks are taken for their mean.
[[nodiscard]] std::vector<std::string> loss_variants(const Evidence& evidence, std::int64_t step,
                                                     double got);

/// The variants whose gradient the shard has.
[[nodiscard]] std::vector<std::string> gradient_variants(const Suspect& suspect);

}  // namespace hpsim
