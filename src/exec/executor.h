#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "plan/plan.h"
#include "trace/run_result.h"

namespace hpsim {

enum class Backend { Symbolic, Local, Gloo };

/// "symbolic", "local", "gloo"
[[nodiscard]] std::string_view name_of(Backend backend);
[[nodiscard]] std::optional<Backend> parse_backend(std::string_view name);

struct RunOptions {
  double timeout_s = 30;        ///< longest time that a rank may wait for another
  bool records_tensors = true;  ///< false for benchmarks: nothing to verify
  /// Called now and then while ranks work, with the optimizer step that the slowest is in.
  std::function<void(std::int64_t step)> on_progress;
};

/// Runs a verified plan. Implementations differ in what they need and prove, never in results.
class Executor {
 public:
  virtual ~Executor() = default;
  /// \throws Error (RankFailure) if a rank died, hung or disagreed, naming it; (Usage) if the mesh
  ///         has more ranks than the backend takes, or the scenario plants faults that the backend
  ///         cannot; (InvalidScenario) if a fault has no place in the plan; (Environment) if the
  ///         machine lacks something
  [[nodiscard]] virtual RunResult run(const VerifiedPlan& plan, const RunOptions& options) = 0;
};

[[nodiscard]] std::unique_ptr<Executor> make_executor(Backend backend);

}  // namespace hpsim
