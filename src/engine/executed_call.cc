#include "engine/executed_call.h"

#include <fmt/format.h>

#include "base/check.h"
#include "tensor/fill.h"
#include "trace/planned_collectives.h"

namespace hpsim {

ExecutedCollective executed_call(const Plan& plan, const CollectiveCall& call,
                                 std::int64_t group_index) {
  const auto& planned = plan.steps.at(static_cast<std::size_t>(call.plan_step)).collective;
  HPSIM_CHECK(planned.has_value(), "step {} has no collective", call.plan_step);
  const CollectiveSpec& spec = *planned;
  ExecutedCollective executed{
      .plan_step = call.plan_step,
      .elems_in = call.elems_in,
      .elems_out = call.elems_out,
      .tag = collective_tag(plan, call.plan_step, group_index, call.elems_in, call.elems_out),
      .op = call.op,
      .dtype = call.sent_as,
      .takes_max = call.takes_max,
      .dims = dims_mask(spec.dims),
      .consecutive = spec.consecutive};
  if (call.op != spec.op || call.sent_as != spec.dtype || call.takes_max != spec.takes_max) {
    executed.tag ^=
        fnv1a64(fmt::format("{} {} {}", name_of(call.op), name_of(call.sent_as), call.takes_max));
  }
  return executed;
}

}  // namespace hpsim
