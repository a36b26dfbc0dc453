#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "trace/reference_run.h"
#include "trace/run_result.h"
#include "verify/verdict.h"

namespace hpsim::test {

/// What a test varies; the rest of the scenario is fixed.
struct CaseSpec {
  std::vector<std::int64_t> mesh_shape = {4};
  std::vector<std::string> mesh_names = {"fsdp"};  ///< "rep" and "fsdp" get their roles
  std::vector<std::int64_t> ranks;
  std::vector<ElementwiseSpec> parameters = {{"weight", {7, 8}}};
  std::vector<int> replicate_params;
  std::vector<std::string> units;     ///< patterns; none: one root unit
  std::int64_t forward_prefetch = 0;  ///< units ahead
  OptimizerSpec optimizer = {.momentum = 0.5};
  std::int64_t steps = 2;
  DType dtype = DType::Float32;
  bool exact = false;
};

/// A verified plan, a reference made up by hand, and a run that agrees with it in everything. Tests
/// spoil one thing and see which check notices.
///
/// Element i of parameter p, of any kind of tensor: (i + 1) / 8 + p, twice that for gradients, each
/// exact in float32; every spread is 2^-20, so that bounds are far wider than one unit of the last
/// place and far narrower than the values.
struct PlantedRun {
  explicit PlantedRun(const CaseSpec& spec);

  [[nodiscard]] Verdict judge() const;

  // Writable elements of the block, float32 or float64 by the type asked for.
  template <class T = float>
  [[nodiscard]] T* gradient(std::int64_t rank, std::int64_t step = 0, int p = 0) {
    return reinterpret_cast<T*>(run.bytes(run.layout().gradient(Rank{rank}, step, p)));
  }
  template <class T = float>
  [[nodiscard]] T* parameter(std::int64_t rank, std::int64_t time, int p = 0) {
    return reinterpret_cast<T*>(run.bytes(run.layout().parameter(Rank{rank}, time, p)));
  }
  template <class T = float>
  [[nodiscard]] T* state(std::int64_t rank, std::int64_t step, int state, int p = 0) {
    return reinterpret_cast<T*>(run.bytes(run.layout().state(Rank{rank}, step, state, p)));
  }
  [[nodiscard]] std::int64_t elems(std::int64_t rank, int p = 0) const {
    return run.layout().shard_elems(Rank{rank}, p);
  }

  VerifiedPlan plan;
  ReferenceRun reference;
  RunResult run;
};

[[nodiscard]] Scenario make_scenario(const CaseSpec& spec);

/// Ids of the checks that did not pass, in order.
[[nodiscard]] std::vector<CheckId> failed_checks(const Verdict& verdict);

/// \pre the check is there
[[nodiscard]] const CheckResult& check_of(const Verdict& verdict, CheckId id);
[[nodiscard]] bool has_check(const Verdict& verdict, CheckId id);

}  // namespace hpsim::test
