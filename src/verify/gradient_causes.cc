#include "verify/gradient_causes.h"

#include <fmt/format.h>

#include "verify/provenance.h"
#include "verify/variant_causes.h"

namespace hpsim {

ContributionRequest request_for(const Suspect& suspect) {
  ContributionRequest request;
  request.step = suspect.place.step.value_or(0);
  request.parameter = suspect.place.parameter;
  const Shape& shape = suspect.parameter().shape;
  for (const Box& box : suspect.boxes) {
    each_run(shape, box, [&](std::int64_t first, std::int64_t count) {
      request.elems.push_back({first, first + count});
    });
  }
  // Ranks with a partial gradient hold runs of the positions of every sample (SP).
  const std::int64_t parts = suspect.parameter().partial_group.size;
  const std::int64_t positions = num_positions(suspect.evidence.plan.scenario.model);
  if (parts > 1 && positions % parts == 0) request.num_parts = parts;
  return request;
}

std::vector<std::string> gradient_causes(const Suspect& suspect, std::string& message) {
  const CauseSources& sources = suspect.evidence.sources;
  if (!sources.contributions || !suspect.place.step) return {};
  const ContributionRequest request = request_for(suspect);
  if (const double cost = sources.cost(request); cost > kMostTermNumbers) {
    message += fmt::format(
        "; which ranks made it was not sought: {:.3g} numbers, above the limit of {:.3g}", cost,
        kMostTermNumbers);
    return {};
  }
  const Contributions terms =
      sources.contributions(request, parameters_before(suspect.evidence, request.step));
  std::vector<std::string> causes = provenance(TermTable(suspect, terms));
  if (causes.empty()) causes = gradient_variants(suspect);
  return causes;
}

}  // namespace hpsim
