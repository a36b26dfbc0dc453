#include "layout/redistribute.h"

#include <algorithm>

#include "base/check.h"
#include "layout/tensor_layout.h"

namespace hpsim {
namespace {

constexpr int kBatchDim = 0;

bool is_partial(const Placement& placement) {
  return std::holds_alternative<Partial>(placement);
}

/// The tensor dim that it cuts, -1 for none.
int cut_dim(const Placement& placement) {
  const std::vector<int> dims = cut_dims(placement);
  HPSIM_CHECK(dims.size() <= 1, "{} is no placement of an activation", to_string(placement));
  return dims.empty() ? -1 : dims[0];
}

/// Takes the layout from `from` to `to`, one mesh dim after the other.
class Redistributor {
 public:
  Redistributor(std::vector<Placement> from, const std::vector<Placement>& to)
      : now_(std::move(from)), to_(to) {}

  std::vector<Transition> run() {
    while (now_ != to_) {
      if (add_terms()) continue;
      if (move_one()) continue;
      undo_innermost();
    }
    return std::move(transitions_);
  }

 private:
  [[nodiscard]] int num_dims() const { return static_cast<int>(now_.size()); }
  [[nodiscard]] const Placement& now(int dim) const { return now_[static_cast<std::size_t>(dim)]; }
  [[nodiscard]] const Placement& wanted(int dim) const {
    return to_[static_cast<std::size_t>(dim)];
  }

  void change(const MeshDims& dims, const Placement& after) {
    Transition transition{redistribute_op(now(dims.at(0)), after), dims, now_, {}};
    for (const int dim : dims)
      now_[static_cast<std::size_t>(dim)] = after;
    transition.after = now_;
    transitions_.push_back(std::move(transition));
  }

  /// All sums at once.
  bool add_terms() {
    MeshDims dims;
    for (int dim = 0; dim < num_dims(); ++dim) {
      if (is_partial(now(dim)) && std::holds_alternative<Replicate>(wanted(dim)))
        dims.push_back(dim);
    }
    if (dims.empty()) return false;
    change(dims, Replicate{});
    return true;
  }

  /// One mesh dim that can go to its placement as things stand.
  bool move_one() {
    for (int dim = 0; dim < num_dims(); ++dim) {
      if (now(dim) == wanted(dim) || !can_undo(dim) || !can_cut(dim)) continue;
      change({dim}, wanted(dim));
      return true;
    }
    return false;
  }

  /// Whether no other mesh dim cuts what this one has cut.
  [[nodiscard]] bool can_undo(int dim) const {
    const int tensor_dim = cut_dim(now(dim));
    return tensor_dim < 0 || tensor_dim == kBatchDim ||
           cutting_order(now_, tensor_dim).back() == dim;
  }

  /// Whether the mesh dims that should cut before this one do, and no others do.
  [[nodiscard]] bool can_cut(int dim) const {
    const int tensor_dim = cut_dim(wanted(dim));
    if (tensor_dim < 0 || tensor_dim == kBatchDim) return true;
    MeshDims before = cutting_order(to_, tensor_dim);
    before.erase(std::find(before.begin(), before.end(), dim), before.end());
    MeshDims cutting = cutting_order(now_, tensor_dim);
    cutting.erase(std::remove(cutting.begin(), cutting.end(), dim), cutting.end());
    return cutting == before && std::all_of(before.begin(), before.end(),
                                            [&](int each) { return now(each) == wanted(each); });
  }

  /// Puts together the innermost of the cuts that stand in the way.
  void undo_innermost() {
    for (int dim = 0; dim < num_dims(); ++dim) {
      const bool is_cut = cut_dim(now(dim)) > kBatchDim;
      if (now(dim) == wanted(dim)) continue;
      const int tensor_dim = is_cut ? cut_dim(now(dim)) : cut_dim(wanted(dim));
      if (tensor_dim < 0) continue;
      const MeshDims order = cutting_order(now_, tensor_dim);
      if (order.empty()) continue;
      change({order.back()}, Replicate{});
      return;
    }
    HPSIM_CHECK(false, "no way from {} to {}", to_string(now_), to_string(to_));
  }

  std::vector<Placement> now_;
  const std::vector<Placement>& to_;
  std::vector<Transition> transitions_;
};

}  // namespace

std::string_view name_of(RedistributeOp op) {
  switch (op) {
    case RedistributeOp::Keep:
      return "keep";
    case RedistributeOp::Slice:
      return "slice";
    case RedistributeOp::AllGather:
      return "all_gather";
    case RedistributeOp::AllToAll:
      return "all_to_all";
    case RedistributeOp::AllReduce:
      return "all_reduce";
    case RedistributeOp::ReduceScatter:
      return "reduce_scatter";
    case RedistributeOp::KeepFirst:
      return "keep_first";
    case RedistributeOp::Embed:
      return "embed";
  }
  HPSIM_CHECK(false, "unknown redistribution {}", static_cast<int>(op));
  return {};
}

bool communicates(RedistributeOp op) {
  return op == RedistributeOp::AllGather || op == RedistributeOp::AllToAll ||
         op == RedistributeOp::AllReduce || op == RedistributeOp::ReduceScatter;
}

RedistributeOp redistribute_op(const Placement& from, const Placement& to) {
  if (from == to) return RedistributeOp::Keep;
  const bool was_cut = cut_dim(from) >= 0;
  const bool is_cut = cut_dim(to) >= 0;
  if (was_cut && is_cut) return RedistributeOp::AllToAll;
  if (was_cut) return is_partial(to) ? RedistributeOp::Embed : RedistributeOp::AllGather;
  if (is_cut) return is_partial(from) ? RedistributeOp::ReduceScatter : RedistributeOp::Slice;
  if (is_partial(from) == is_partial(to)) return RedistributeOp::Keep;
  return is_partial(from) ? RedistributeOp::AllReduce : RedistributeOp::KeepFirst;
}

Placement gradient_placement(const Placement& placement) {
  return is_partial(placement) ? Placement{Replicate{}} : placement;
}

std::vector<Placement> gradient_placements(const std::vector<Placement>& placements) {
  std::vector<Placement> gradients;
  for (const Placement& placement : placements)
    gradients.push_back(gradient_placement(placement));
  return gradients;
}

std::vector<Transition> redistribute(const std::vector<Placement>& from,
                                     const std::vector<Placement>& to) {
  HPSIM_CHECK(from.size() == to.size(), "{} placements to {}", from.size(), to.size());
  return Redistributor(from, to).run();
}

}  // namespace hpsim
