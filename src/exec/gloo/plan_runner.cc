#include "exec/gloo/plan_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "exec/shared_memory.h"
#include "mesh/group.h"
#include "plan/recomputation.h"

namespace hpsim {

namespace {

std::string subject_of(const Plan& plan, const Step& step) {
  const Scenario& scenario = plan.scenario;
  if (step.redistribution >= 0) {
    return " of the " + activation_text(plan, plan.redistributions.at(
                                                  static_cast<std::size_t>(step.redistribution)));
  }
  if (step.kind == StepKind::Loss && step.collective) return " of the loss";
  if (step.kind == StepKind::ClipGradients) return " of the norm";
  if (step.bucket >= 0) {
    const Bucket& bucket = plan.buckets.at(static_cast<std::size_t>(step.bucket));
    return " of unit " + scenario.units.at(static_cast<std::size_t>(bucket.unit)).name;
  }
  if (step.module >= 0) {
    const auto module = static_cast<std::size_t>(step.module);
    return " of " + (scenario.model.is_elementwise() ? scenario.model.elementwise.at(module).name
                                                     : scenario.model.modules.at(module).name);
  }
  return {};
}

}  // namespace

std::string describe_step(const Plan& plan, std::int64_t plan_step) {
  if (plan_step < 0 || plan_step >= static_cast<std::int64_t>(plan.steps.size())) {
    return "no step of the plan";
  }
  const Step& step = plan.steps[static_cast<std::size_t>(plan_step)];
  if (step.collective) {
    const std::string micro_batch = plan.scenario.training.micro_batches > 1
                                        ? fmt::format(", micro-batch {}", step.micro_batch)
                                        : std::string();
    return fmt::format("{}{} ({}, step {}{})", name_of(step.collective->op), subject_of(plan, step),
                       phase_text(step), step.step, micro_batch);
  }
  return fmt::format("{}{} (step {})", name_of(step.kind), subject_of(plan, step), step.step);
}

PlanRunner::PlanRunner(const Plan& plan, RankEngine& engine, RankSession& session,
                       RunResult& result)
    : plan_(plan),
      engine_(engine),
      session_(session),
      result_(result),
      faults_(place_faults(plan), session.rank()) {}

PlanRunner::Member& PlanRunner::member_of(const CollectiveSpec& spec) {
  const auto [found, is_new] = members_.try_emplace({spec.dims, spec.consecutive});
  Member& member = found->second;
  if (!is_new) return member;
  GroupOfRank group = group_along(plan_.mesh(), spec.dims, spec.consecutive, session_.rank());
  std::uint64_t dims_mask = 0;
  for (const int dim : spec.dims)
    dims_mask |= std::uint64_t{1} << dim;
  // Runs of one length only are in a plan.
  if (spec.consecutive > 0) dims_mask |= std::uint64_t{1} << 31;
  member.group.members = std::move(group.members);
  member.group_index = group.index;
  member.group.id = dims_mask << 32 | static_cast<std::uint64_t>(member.group_index);
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
  for (auto call = engine_.begin(plan_step); call; call = engine_.more(plan_step)) {
    HPSIM_CHECK(step.collective.has_value() && call->plan_step == plan_step,
                "step {} asks for a collective of step {}", plan_step, call->plan_step);
    carry_out(step, *call);
  }
  if (step.kind == StepKind::WaitUnshard) complete(step.bucket, plan_step);
  engine_.finish(plan_step);
}

/// Of a step that is_async, only begins it.
void PlanRunner::carry_out(const Step& step, const CollectiveCall& call) {
  Member& member = member_of(*step.collective);
  const std::uint64_t tag =
      collective_tag(plan_, call.plan_step, member.group_index, call.elems_in, call.elems_out);
  // What TP leaves of a bucket may be nothing, on all members: then there is nothing to send. Of
  // what is routed, others may have something, and the group counts this collective.
  const bool is_entered = step.collective->is_routed || call.elems_in > 0;
  RankRecord& record = result_.rank_record(session_.rank());
  HPSIM_CHECK(record.num_collectives < result_.layout().max_collectives(),
              "more collectives than the plan has: {}", record.num_collectives + 1);
  const std::int64_t number = record.num_collectives;
  std::int64_t completed_in = -1;
  if (step.is_async) {
    Begun begun{.number = number};
    if (is_entered) begun.collective = session_.begin(call, member.group, tag);
    const bool is_new = begun_.emplace(step.bucket, std::move(begun)).second;
    HPSIM_CHECK(is_new, "bucket {} is unsharded twice", step.bucket);
  } else {
    const bool rounded = is_entered && session_.communicate(call, member.group, tag);
    if (rounded && plan_.scenario.is_exact())
      result_.step_record(session_.rank(), step.step).inexact = 1;
    completed_in = call.plan_step;
  }
  result_.executed(session_.rank())[number] = {call.plan_step, call.elems_in, call.elems_out, tag,
                                               completed_in};
  ++record.num_collectives;
}

void PlanRunner::complete(int bucket, std::int64_t plan_step) {
  const auto begun = begun_.find(bucket);
  HPSIM_CHECK(begun != begun_.end(), "no unshard of bucket {} is begun", bucket);
  if (begun->second.collective) session_.complete(*begun->second.collective);
  result_.executed(session_.rank())[begun->second.number].completed_in = plan_step;
  begun_.erase(begun);
}

void PlanRunner::run_all() {
  RankSlot& slot = session_.slot();
  for (std::int64_t i = 0; i < num_steps(); ++i) {
    slot.progress.store(plan_.steps[static_cast<std::size_t>(i)].step, std::memory_order_relaxed);
    run_step(i);
  }
  slot.steps_end_ns.store(now_ns());
}

}  // namespace hpsim
