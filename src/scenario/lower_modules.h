#pragma once

#include <vector>

#include "model/model_spec.h"
#include "scenario/module_tree.h"

namespace hpsim {

/// A model, and which module of the file each of its operations came from.
struct LoweredModel {
  ModelSpec model;
  std::vector<const ModuleNode*> nodes;  ///< like ModelSpec::modules
};

/// The tree as operations and groups. Sizes in which something is wrong are 1; nothing is tied yet.
///
///   attention a         a.wq, a.wk, a.wv of one input; a.core of their outputs; a.wo
///   mlp m, gated        m.w1, m.w3 of one input; m.gate of their outputs; m.w2
///   mlp m, not gated    m.w1, m.act, m.w2
///   residual r          its modules; r.add of the last output and of r's input
///   repeat b, count 2   b.0, b.1
///   others              one operation
/// \pre check_heads has seen the tree, and check_num_operations is content with it
[[nodiscard]] LoweredModel lower_modules(const std::vector<ModuleNode>& modules);

/// Resolves `tied_to`: the weight of an earlier linear or embedding, of the same shape and not tied
/// itself; or such a module, of the same type and sizes: its bias is shared too.
///
///   embedding tok 11 in 8; linear out 8 -> 11, "tied_to": "tok.weight"    out reads tok.weight
///   the same on tok, of "out.weight"                                      refused: out comes later
///   linear a 8 -> 8; linear b 8 -> 8, "tied_to": "a"                      b is a, used once more
void read_ties(LoweredModel& lowered);

}  // namespace hpsim
