#include "exec/local.h"

#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "base/error.h"
#include "engine/faults/engine_fault.h"
#include "exec/limits.h"
#include "exec/local_ranks.h"
#include "exec/stopwatch.h"

namespace hpsim {
namespace {

std::shared_ptr<std::byte> zeroed_block(std::int64_t bytes) {
  void* block = std::calloc(1, static_cast<std::size_t>(bytes));
  if (block == nullptr) {
    throw Error(ErrorKind::Environment, fmt::format("no {} bytes of memory for results", bytes),
                "run fewer steps or ranks, or use --backend symbolic");
  }
  return {static_cast<std::byte*>(block), [](std::byte* data) { std::free(data); }};
}

}  // namespace

RunResult LocalExecutor::run(const VerifiedPlan& plan, const RunOptions& options) {
  require_ranks(Backend::Local, plan->mesh().num_ranks());
  require_faults(Backend::Local, plan->scenario);
  require_places(*plan);
  ResultLayout layout(*plan, options.records_tensors);
  const std::int64_t bytes = layout.size_bytes();
  require_memory_for_results(bytes);
  RunResult result("local", std::move(layout), zeroed_block(bytes));
  LocalRanks ranks(plan, result);
  const Stopwatch watch;
  ranks.run(options);
  result.run_time_s = watch.elapsed_s();
  return result;
}

}  // namespace hpsim
