#include "exec/local.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "engine/rank_engine.h"
#include "exec/limits.h"
#include "exec/ordered_sum.h"
#include "exec/stopwatch.h"
#include "mesh/group.h"

namespace hpsim {
namespace {

using Groups = std::vector<std::vector<Rank>>;

/// All ranks of a run, in lockstep.
class Lockstep {
 public:
  Lockstep(const VerifiedPlan& plan, RunResult& result) : plan_(*plan), result_(result) {
    for (std::int64_t rank = 0; rank < plan->mesh().num_ranks(); ++rank) {
      engines_.push_back(make_rank_engine(plan, Rank{rank}, result));
    }
    calls_.resize(engines_.size());
  }

  void run_step(std::int64_t plan_step) {
    for (std::size_t rank = 0; rank < engines_.size(); ++rank) {
      calls_[rank] = engines_[rank]->begin(plan_step);
    }
    const Step& step = plan_.steps[static_cast<std::size_t>(plan_step)];
    if (step.collective) {
      const Groups& groups = groups_over(step.collective->dims);
      for (std::size_t g = 0; g < groups.size(); ++g) {
        exchange(groups[g], static_cast<std::int64_t>(g), step.step);
      }
    }
    for (const auto& engine : engines_)
      engine->finish(plan_step);
  }

 private:
  const Groups& groups_over(const MeshDims& dims) {
    auto it = groups_.find(dims);
    if (it == groups_.end()) it = groups_.emplace(dims, groups_along(plan_.mesh(), dims)).first;
    return it->second;
  }

  CollectiveCall& call_of(Rank rank) {
    auto& call = calls_[static_cast<std::size_t>(rank.value)];
    HPSIM_CHECK(call.has_value(), "rank {} does not take part", rank.value);
    return *call;
  }

  void exchange(const std::vector<Rank>& group, std::int64_t group_index, std::int64_t step) {
    for (const Rank rank : group) {
      const CollectiveCall& call = call_of(rank);
      RankRecord& record = result_.rank_record(rank);
      result_.executed(rank)[record.num_collectives++] = {
          call.plan_step, call.elems_in, call.elems_out,
          collective_tag(plan_, call.plan_step, group_index, call.elems_in, call.elems_out)};
    }
    // What TP leaves of a bucket may be nothing: then there is nothing to send.
    if (call_of(group[0]).elems_in == 0) return;
    switch (call_of(group[0]).op) {
      case CollectiveOp::AllGather:
        return all_gather(group);
      case CollectiveOp::ReduceScatter:
        return reduce_scatter(group, step);
      case CollectiveOp::AllReduce:
        return all_reduce(group, step);
    }
  }

  void all_gather(const std::vector<Rank>& group) {
    for (const Rank to : group) {
      auto* output = static_cast<std::byte*>(call_of(to).output);
      for (const Rank from : group) {
        const CollectiveCall& source = call_of(from);
        const std::int64_t bytes = source.elems_in * size_bytes(source.dtype);
        std::memcpy(output, source.input, static_cast<std::size_t>(bytes));
        output += bytes;
      }
    }
  }

  /// sum = the rows number `row` of all members' inputs, in group order; \returns whether it
  /// rounded
  [[nodiscard]] bool sum_row(const std::vector<Rank>& group, std::int64_t row, std::int64_t elems,
                             void* sum) {
    const DType dtype = call_of(group[0]).dtype;
    const std::int64_t row_bytes = elems * size_bytes(dtype);
    bool is_inexact = false;
    for (std::size_t i = 0; i < group.size(); ++i) {
      const auto* term = static_cast<const std::byte*>(call_of(group[i]).input) + row * row_bytes;
      if (i == 0) {
        std::memcpy(sum, term, static_cast<std::size_t>(row_bytes));
      } else {
        is_inexact = add_to(sum, term, elems, dtype) || is_inexact;
      }
    }
    return is_inexact && plan_.scenario.is_exact();
  }

  void reduce_scatter(const std::vector<Rank>& group, std::int64_t step) {
    for (std::size_t i = 0; i < group.size(); ++i) {
      const CollectiveCall& call = call_of(group[i]);
      if (sum_row(group, static_cast<std::int64_t>(i), call.elems_out, call.output)) {
        result_.step_record(group[i], step).inexact = 1;
      }
    }
  }

  void all_reduce(const std::vector<Rank>& group, std::int64_t step) {
    const CollectiveCall& first = call_of(group[0]);
    std::vector<std::byte> sum(static_cast<std::size_t>(first.elems_in * size_bytes(first.dtype)));
    const bool is_inexact = sum_row(group, 0, first.elems_in, sum.data());
    for (const Rank rank : group) {
      std::memcpy(call_of(rank).output, sum.data(), sum.size());
      if (is_inexact) result_.step_record(rank, step).inexact = 1;
    }
  }

  const Plan& plan_;
  RunResult& result_;
  std::vector<std::unique_ptr<RankEngine>> engines_;
  std::vector<std::optional<CollectiveCall>> calls_;  ///< per rank, of the step at hand
  std::map<MeshDims, Groups> groups_;
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
