#pragma once

#include <string_view>
#include <vector>

#include "plan/plan.h"

namespace hpsim {

// `activation_checkpointing` in a plan. Forward of a part keeps the values that were made before it
// and are read in it, and what is read behind it; all others are free after their last use. Before
// the backward of its last module, all of its forward steps come again, in phase backward
// (Step::is_recomputed), and make these values anew. So a value that is made in such a part lives
// twice: until its last use in forward or behind the part, and from the recomputation to its last
// use in backward. The units of the part are whole then, and stay so until their backward is done:
// they are gathered no second time.

/// Whether a step goes forward: in phase forward, or once more in backward.
[[nodiscard]] bool runs_forward(const Step& step);

/// The part that a module lies in, into TrainingSpec::recomputed; -1: none.
[[nodiscard]] int recomputed_part_of(const Scenario& scenario, int module);

/// Whether backward computes a part again: it runs through one of its modules at least.
[[nodiscard]] bool is_computed_again(const Plan& plan, const RecomputedSpec& part);

/// Whether what experts make on the way to their output, in the forward step `step`, is kept:
/// backward reads it, and does not make it anew.
[[nodiscard]] bool keeps_for_backward(const Plan& plan, const Step& step);

/// The values of no more use after a step that computes, or that changes a layout: a module's once
/// its output, or gradients of its inputs, are there.
///
///   Redistribute         Redistribution::freed             recomputed: freed_when_recomputed
///   Forward, Combine     ModulePlan::freed_after_forward   recomputed: freed_after_recomputation
///   Backward, Combine    ModulePlan::freed_after_backward
///   Loss                 LossPlan::freed
[[nodiscard]] const std::vector<int>& freed_after(const Plan& plan, const Step& step);

/// "forward", "backward", "recomputation", "optimizer": the phase of a step in words.
[[nodiscard]] std::string_view phase_text(const Step& step);

}  // namespace hpsim
