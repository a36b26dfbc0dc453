#include "exec/gloo/planted_faults.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <stdexcept>

#include "exec/describe_step.h"
#include "exec/gloo/failure.h"

namespace hpsim {

PlantedFaults::PlantedFaults(const std::vector<PlacedFault>& faults, Rank rank) {
  for (const PlacedFault& fault : faults) {
    if (std::find(fault.ranks.begin(), fault.ranks.end(), rank) != fault.ranks.end()) {
      by_step_.emplace(fault.plan_step, fault.name);
    }
  }
}

void PlantedFaults::strike_before(std::int64_t plan_step) const {
  const auto found = by_step_.find(plan_step);
  if (found == by_step_.end()) return;
  if (found->second == "kill") std::raise(SIGKILL);
  if (found->second == "throw") throw std::runtime_error("this is the planted fault \"throw\"");
  for (;;)
    pause();
}

std::string describe_faults(const Plan& plan, const std::vector<PlacedFault>& faults) {
  constexpr std::size_t kMostShown = 3;
  std::vector<std::string> shown;
  for (std::size_t i = 0; i < std::min(faults.size(), kMostShown); ++i) {
    shown.push_back(fmt::format("\"{}\" of {} before {}", faults[i].name,
                                list_ranks(faults[i].ranks),
                                describe_step(plan, faults[i].plan_step)));
  }
  std::string text = fmt::format("{}", fmt::join(shown, ", "));
  if (faults.size() > kMostShown) {
    text += fmt::format(" and {} more", faults.size() - kMostShown);
  }
  return text;
}

}  // namespace hpsim
