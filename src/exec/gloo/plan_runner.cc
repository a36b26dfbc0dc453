#include "exec/gloo/plan_runner.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "engine/executed_call.h"
#include "exec/group_id.h"
#include "exec/shared_memory.h"
#include "mesh/group.h"

namespace hpsim {

PlanRunner::PlanRunner(const Plan& plan, RankEngine& engine, RankSession& session,
                       RunResult& result, const Plan* verified)
    : plan_(plan),
      engine_(engine),
      session_(session),
      result_(result),
      faults_(place_faults(plan), session.rank()),
      planned_(collective_steps(plan)),
      order_(verified == nullptr ? plan : *verified, planned_, session.rank()) {}

PlanRunner::Member& PlanRunner::member_of(const CollectiveSpec& spec) {
  const auto [found, is_new] = members_.try_emplace({spec.dims, spec.consecutive});
  Member& member = found->second;
  if (!is_new) return member;
  GroupOfRank group = group_along(plan_.mesh(), spec.dims, spec.consecutive, session_.rank());
  member.group.members = std::move(group.members);
  member.group_index = group.index;
  member.group.id = group_id(spec.dims, spec.consecutive, group.index);
  return member;
}

void PlanRunner::run_step(std::int64_t plan_step) {
  const Step& step = plan_.steps[static_cast<std::size_t>(plan_step)];
  if (step.collective) {
    session_.prepare_collective(plan_step);
  } else {
    session_.enter_step(plan_step);
  }
  faults_.strike_before(plan_step);
  auto call = engine_.begin(plan_step);
  if (step.is_async) {
    begin_unshard(step, call);
  } else {
    for (; call || (call = engine_.more(plan_step)); call.reset())
      carry_out(step, *call);
  }
  if (step.kind == StepKind::WaitUnshard) complete(step.bucket, plan_step);
  engine_.finish(plan_step);
}

/// What TP leaves of a bucket may be nothing, on all members: then there is nothing to send. Of
/// what is routed, others may have something, and the group counts this collective.
bool PlanRunner::is_sent(const CollectiveCall& call) const {
  return call.elems_in > 0 ||
         plan_.steps[static_cast<std::size_t>(call.plan_step)].collective->is_routed;
}

ExecutedCollective& PlanRunner::record(const CollectiveCall& call, const Member& member) {
  RankRecord& record = result_.rank_record(session_.rank());
  HPSIM_CHECK(record.num_collectives < result_.layout().max_collectives(),
              "more collectives than the plan has: {}", record.num_collectives + 1);
  ExecutedCollective& executed = result_.executed(session_.rank())[record.num_collectives++];
  executed = executed_call(plan_, call, member.group_index);
  order_.enter(executed);
  session_.note_difference(order_.difference());
  return executed;
}

void PlanRunner::carry_out(const Step& step, const CollectiveCall& call) {
  Member& member = member_of(*plan_.steps[static_cast<std::size_t>(call.plan_step)].collective);
  ExecutedCollective& executed = record(call, member);
  const bool rounded = is_sent(call) && session_.communicate(call, member.group, executed.tag);
  if (rounded && plan_.scenario.is_exact())
    result_.step_record(session_.rank(), step.step).inexact = 1;
  executed.completed_in = call.plan_step;
}

void PlanRunner::begin_unshard(const Step& step, const std::optional<CollectiveCall>& call) {
  const auto [begun, is_new] = begun_.emplace(step.bucket, Begun{});
  HPSIM_CHECK(is_new, "bucket {} is unsharded twice", step.bucket);
  if (!call) return;
  Member& member = member_of(*plan_.steps[static_cast<std::size_t>(call->plan_step)].collective);
  begun->second.record = &record(*call, member);
  if (is_sent(*call))
    begun->second.collective = session_.begin(*call, member.group, begun->second.record->tag);
}

void PlanRunner::complete(int bucket, std::int64_t plan_step) {
  const auto begun = begun_.find(bucket);
  HPSIM_CHECK(begun != begun_.end(), "no unshard of bucket {} is begun", bucket);
  if (begun->second.collective) session_.complete(*begun->second.collective);
  if (begun->second.record != nullptr) begun->second.record->completed_in = plan_step;
  begun_.erase(begun);
}

void PlanRunner::run_all() {
  RankSlot& slot = session_.slot();
  for (std::int64_t i = 0; i < num_steps(); ++i) {
    slot.progress.store(plan_.steps[static_cast<std::size_t>(i)].step, std::memory_order_relaxed);
    run_step(i);
  }
  order_.end();
  session_.note_difference(order_.difference());
  slot.steps_end_ns.store(now_ns());
}

}  // namespace hpsim
