#include "plan/faults/process_faults.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "scenario/fault_catalog.h"

namespace hpsim {
namespace {

/// Plan steps by what a fault says of its place.
struct Places {
  std::vector<std::int64_t> collectives;              ///< by seq
  std::vector<std::optional<std::int64_t>> first_in;  ///< by optimizer step: its first plan step
  std::vector<std::optional<std::int64_t>> collective_in;  ///< its first collective
};

Places places_of(const Plan& plan) {
  const auto num_steps = static_cast<std::size_t>(plan.scenario.training.steps);
  Places places{{},
                std::vector<std::optional<std::int64_t>>(num_steps),
                std::vector<std::optional<std::int64_t>>(num_steps)};
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    const auto plan_step = static_cast<std::int64_t>(i);
    const auto optimizer_step = static_cast<std::size_t>(step.step);
    auto& first = places.first_in.at(optimizer_step);
    if (!first) first = plan_step;
    if (!step.collective) continue;
    places.collectives.push_back(plan_step);
    auto& first_collective = places.collective_in.at(optimizer_step);
    if (!first_collective) first_collective = plan_step;
  }
  return places;
}

Diagnostic at_seq(const Plan& plan, const FaultSpec& fault, std::string message, std::string help) {
  return {.file = plan.scenario.file,
          .pointer = fault.pointer + "/seq",
          .message = std::move(message),
          .help = std::move(help)};
}

/// What is wrong with its seq, if anything.
std::optional<Diagnostic> refusal_of(const FaultSpec& fault, const Plan& plan,
                                     const Places& places) {
  if (!fault.seq) return std::nullopt;
  const auto count = static_cast<std::int64_t>(places.collectives.size());
  if (count == 0) {
    return at_seq(plan, fault,
                  fmt::format("no collective has the number {}: the run has 0 of them", *fault.seq),
                  "leave \"seq\" out: the fault then strikes at the begin of the step");
  }
  if (*fault.seq >= count) {
    return at_seq(plan, fault, fmt::format("collective {} is outside 0..{}", *fault.seq, count - 1),
                  fmt::format("the run has {} collectives; the report lists them, without the "
                              "faults, under \"collectives\"",
                              count));
  }
  const std::int64_t plan_step = places.collectives[static_cast<std::size_t>(*fault.seq)];
  const std::int64_t step = plan.steps[static_cast<std::size_t>(plan_step)].step;
  if (!fault.step || *fault.step == step) return std::nullopt;
  return at_seq(plan, fault,
                fmt::format("collective {} is of optimizer step {}, but step is {}", *fault.seq,
                            step, *fault.step),
                fmt::format("write \"step\": {}, or leave one of the two out", step));
}

std::int64_t place_of(const FaultSpec& fault, const Places& places) {
  if (fault.seq) return places.collectives.at(static_cast<std::size_t>(*fault.seq));
  const auto step = static_cast<std::size_t>(fault.step.value_or(0));
  const std::optional<std::int64_t> collective = places.collective_in.at(step);
  return collective ? *collective : places.first_in.at(step).value();
}

}  // namespace

std::vector<PlacedFault> place_faults(const Plan& plan) {
  std::vector<FaultSpec> faults = plan.scenario.faults;
  std::erase_if(faults, [](const FaultSpec& fault) {
    return fault_kind(fault.name).stage != FaultStage::Process;
  });
  if (faults.empty()) return {};
  const Places places = places_of(plan);
  std::vector<Diagnostic> refused;
  std::vector<PlacedFault> placed;
  for (const FaultSpec& fault : faults) {
    if (auto refusal = refusal_of(fault, plan, places)) {
      refused.push_back(*std::move(refusal));
    } else {
      placed.push_back({fault.name, fault.ranks, place_of(fault, places)});
    }
  }
  if (!refused.empty()) throw Error(ErrorKind::InvalidScenario, std::move(refused));
  return placed;
}

}  // namespace hpsim
