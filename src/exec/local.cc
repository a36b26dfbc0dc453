#include "exec/local.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <new>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "engine/faults/engine_fault.h"
#include "engine/rank_engine.h"
#include "exec/limits.h"
#include "exec/local_collectives.h"
#include "exec/stopwatch.h"
#include "mesh/group.h"

namespace hpsim {
namespace {

using Groups = std::vector<std::vector<Rank>>;

/// All ranks of a run, in lockstep.
class Lockstep {
 public:
  Lockstep(const VerifiedPlan& plan, RunResult& result)
      : plan_(*plan), executed_(plan), result_(result) {
    SharedParameters shared(*plan);
    for (std::int64_t rank = 0; rank < plan->mesh().num_ranks(); ++rank) {
      engines_.push_back(make_rank_engine(executed_, Rank{rank}, result, &shared));
    }
    calls_.resize(engines_.size());
  }

  void run_step(std::int64_t plan_step) {
    for (std::size_t rank = 0; rank < engines_.size(); ++rank) {
      calls_[rank] = engines_[rank]->begin(plan_step);
    }
    const Step& step = plan_.steps[static_cast<std::size_t>(plan_step)];
    if (step.is_async) {
      begin_unshard(plan_step);
    } else if (step.collective) {
      for (; is_asked_for(); ask_for_more(plan_step)) {
        record(step, plan_step);
        carry_out(step, calls_);
      }
    } else if (step.kind == StepKind::WaitUnshard) {
      end_unshard(step.bucket, plan_step);
    }
    for (const auto& engine : engines_)
      engine->finish(plan_step);
  }

 private:
  const Groups& groups_over(const CollectiveSpec& spec) {
    const auto [it, is_new] = groups_.try_emplace({spec.dims, spec.consecutive});
    if (is_new) it->second = groups_along(plan_.mesh(), spec.dims, spec.consecutive);
    return it->second;
  }

  using Calls = std::vector<std::optional<CollectiveCall>>;  ///< per rank

  [[nodiscard]] bool is_asked_for() const {
    return std::any_of(calls_.begin(), calls_.end(),
                       [](const auto& call) { return call.has_value(); });
  }
  void ask_for_more(std::int64_t plan_step) {
    for (std::size_t rank = 0; rank < engines_.size(); ++rank)
      calls_[rank] = engines_[rank]->more(plan_step);
  }

  /// What a step that is_async has begun.
  struct Begun {
    std::int64_t plan_step = -1;
    std::int64_t number = 0;  ///< among the collectives of each rank
    Calls calls;
  };

  static const CollectiveCall& call_of(const Calls& calls, Rank rank) {
    const auto& call = calls[static_cast<std::size_t>(rank.value)];
    HPSIM_CHECK(call.has_value(), "rank {} does not take part", rank.value);
    return *call;
  }

  /// The collective of the step at hand, on all ranks.
  void record(const Step& step, std::int64_t completed_in) {
    const Groups& groups = groups_over(*step.collective);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (const Rank rank : groups[g]) {
        const CollectiveCall& call = call_of(calls_, rank);
        result_.executed(rank)[result_.rank_record(rank).num_collectives++] = {
            call.plan_step, call.elems_in, call.elems_out,
            collective_tag(plan_, call.plan_step, static_cast<std::int64_t>(g), call.elems_in,
                           call.elems_out),
            completed_in};
      }
    }
  }

  void carry_out(const Step& step, const Calls& calls) {
    for (const std::vector<Rank>& group : groups_over(*step.collective))
      exchange(group, calls, step.step);
  }

  /// Nothing is moved yet: what would use it too early finds nothing.
  void begin_unshard(std::int64_t plan_step) {
    const Step& step = plan_.steps[static_cast<std::size_t>(plan_step)];
    const std::int64_t number = result_.rank_record(Rank{0}).num_collectives;
    record(step, -1);
    const bool is_new = begun_.emplace(step.bucket, Begun{plan_step, number, calls_}).second;
    HPSIM_CHECK(is_new, "bucket {} is unsharded twice", step.bucket);
  }

  void end_unshard(int bucket, std::int64_t plan_step) {
    const auto begun = begun_.find(bucket);
    HPSIM_CHECK(begun != begun_.end(), "no unshard of bucket {} is begun", bucket);
    const Begun& what = begun->second;
    carry_out(plan_.steps[static_cast<std::size_t>(what.plan_step)], what.calls);
    for (std::size_t rank = 0; rank < engines_.size(); ++rank)
      result_.executed(Rank{static_cast<std::int64_t>(rank)})[what.number].completed_in = plan_step;
    begun_.erase(begun);
  }

  void exchange(const std::vector<Rank>& group, const Calls& calls, std::int64_t step) {
    calls_of_group_.clear();
    for (const Rank rank : group)
      calls_of_group_.push_back(&call_of(calls, rank));
    // What TP leaves of a bucket, or what is routed, may be nothing: then there is nothing to send.
    const auto is_empty = [](const CollectiveCall* call) {
      return call->elems_in == 0 && call->elems_out == 0;
    };
    if (std::all_of(calls_of_group_.begin(), calls_of_group_.end(), is_empty)) return;
    const std::vector<std::size_t> rounded = exchange_in_process(calls_of_group_);
    if (!plan_.scenario.is_exact()) return;
    for (const std::size_t member : rounded)
      result_.step_record(group[member], step).inexact = 1;
  }

  const Plan& plan_;
  ExecutedPlan executed_;
  RunResult& result_;
  std::vector<std::unique_ptr<RankEngine>> engines_;
  Calls calls_;                 ///< of the step at hand
  std::map<int, Begun> begun_;  ///< by bucket
  std::vector<const CollectiveCall*> calls_of_group_;
  std::map<std::pair<MeshDims, std::int64_t>, Groups> groups_;  ///< by dims and consecutive
};

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
  Lockstep ranks(plan, result);
  const Stopwatch watch;
  for (std::size_t i = 0; i < plan->steps.size(); ++i) {
    ranks.run_step(static_cast<std::int64_t>(i));
    if (options.on_progress) options.on_progress(plan->steps[i].step);
  }
  result.run_time_s = watch.elapsed_s();
  return result;
}

}  // namespace hpsim
