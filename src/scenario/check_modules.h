#pragma once

#include <vector>

#include "scenario/lower_modules.h"

namespace hpsim {

/// The numbers of heads must divide what they divide: heads the dim, kv_heads the heads.
void check_heads(const std::vector<ModuleNode>& modules);

/// A position goes to at most as many experts as there are.
void check_experts(const std::vector<ModuleNode>& modules);

/// What modules take must be what those before them give; what a residual adds to its input, and
/// what a repeat repeats, must keep the features. Says each mistake of the file once.
///
///   linear 8 -> 6, relu, linear 5 -> 4           refused: takes 5, given 6
///   residual of linear 8 -> 6                    refused
///   repeat, count 1, of linear 8 -> 6            taken
void check_features(const std::vector<ModuleNode>& modules);

/// An embedding takes tokens, the model's input, and nothing else takes them.
void check_embeddings(const LoweredModel& lowered);

/// `data.sample_shape` as ModelSpec::positions: it is [features], [seq, features], or [seq] of
/// tokens, and may be left out where the first module is linear.
///
///   linear 8 -> 4, no sample_shape      {}
///   linear 8 -> 4, [5, 8]               {5}
///   embedding 11 in 8, [5]              {5}
///   attention of 8, [8]                 refused: no sequence to attend to
[[nodiscard]] Shape read_positions(const ObjectReader& scenario,
                                   const std::vector<ModuleNode>& modules,
                                   const LoweredModel& lowered);

/// Weights must have fewer than 2^63 elements.
void check_numel(const LoweredModel& lowered);

}  // namespace hpsim
