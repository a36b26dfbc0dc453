#pragma once

#include "mutation/kill_matrix.h"

namespace hpsim {

// Own checks: kill plan-agreement RANK_DIED, stall plan-agreement HANG.

inline constexpr CaughtAs kDied{CheckId::PlanAgreement, FindingCode::RankDied};
inline constexpr CaughtAs kHang{CheckId::PlanAgreement, FindingCode::Hang};
inline constexpr CaughtAs kValue{CheckId::GradientParity, FindingCode::GradValue};

/// kill: 2 places, both found by its own check. stall: 3 places, of which one is found by its own
/// check, one by another, and one survives.
inline KillMatrix sample_matrix() {
  const Trial none;
  return {
      .faults = {"kill", "stall"},
      .scenarios = {
          {.scenario = "a.json",
           .trials = {{TrialOutcome::Own, {kDied}, ""}, {TrialOutcome::Own, {kValue, kHang}, ""}}},
          {.scenario = "b.json",
           .trials = {{TrialOutcome::Own, {kDied}, ""}, {TrialOutcome::Other, {kValue}, ""}}},
          {.scenario = "c.json", .trials = {none, {TrialOutcome::Survived, {}, ""}}}}};
}

/// The same where every fault is found by its own check.
inline KillMatrix perfect_matrix() {
  KillMatrix matrix = sample_matrix();
  matrix.scenarios[1].trials[1] = {TrialOutcome::Own, {kHang}, ""};
  matrix.scenarios[2].trials[1] = {TrialOutcome::Own, {kHang}, ""};
  return matrix;
}

}  // namespace hpsim
