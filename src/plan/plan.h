#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/finding.h"
#include "base/ids.h"
#include "layout/redistribute.h"
#include "layout/shard_cut.h"
#include "layout/tensor_layout.h"
#include "mesh/mesh.h"
#include "mesh/per_coordinate.h"
#include "plan/step.h"
#include "scenario/module_layouts.h"
#include "scenario/scenario.h"

namespace hpsim {

/// Mesh dims of a group and the number of ranks in each such group (multi-dim RFC 2.2.1).
struct GroupInfo {
  MeshDims dims;
  std::int64_t size = 1;
  bool operator==(const GroupInfo&) const = default;
};

/// A parameter with its layout. All ranks hold the same record (SPMD); what one rank holds is
/// derived from its coordinate, see rank_layout.h.
struct PlannedParameter {
  std::string name;
  Shape shape;                           ///< global
  DType dtype = DType::Float32;          ///< of shards, stored gradients and optimizer state
  DType compute_dtype = DType::Float32;  ///< gathered, and of the gradient that backward leaves
  std::vector<Placement> sharded;        ///< outside compute, one per mesh dim
  std::vector<Placement> unsharded;      ///< inside compute: what TP and EP leave to a rank
  ShardCut cut;                          ///< how fully_shard cuts that, whatever `sharded` says
  GroupInfo sharded_group;               ///< reduce-scatter: ranks that hold different shards
  GroupInfo unsharded_group;             ///< all-reduce: copies inside the fully_shard domain
  GroupInfo partial_group;               ///< other mesh dims on which the gradient is Partial
  MeshDims partial_dims;  ///< all mesh dims on which it is: what backward leaves are terms of a sum
  int bucket = -1;
  PerCoordinate offset_elems;  ///< of its slot in the bucket's row
  PerCoordinate padded_elems;  ///< of its slot

  [[nodiscard]] std::int64_t shard_size() const { return sharded_group.size; }
  [[nodiscard]] std::int64_t dp_size() const { return unsharded_group.size; }
  [[nodiscard]] std::int64_t rank_size() const { return shard_size() * dp_size(); }
  /// Mesh dims along which ranks hold different parts, ascending: those that `unsharded` cuts along
  /// and the sharded group.
  [[nodiscard]] MeshDims cut_dims() const {
    return union_of(cutting_dims(unsharded), sharded_group.dims);
  }
};

/// Neighbouring slots of a row whose gradients are Partial along the same further mesh dims:
/// they are all-reduced together.
struct PartialRange {
  MeshDims dims;
  Interval members;  ///< positions in GradientRow::parameters
  bool operator==(const PartialRange&) const = default;
};

/// Parameters of one unit that share groups and dtypes: they are gathered by one all_gather and
/// reduced by one reduce_scatter (one parameter each where comm_fusion is "none"). Each rank holds
/// one row of `row_elems` elements, the padded slots of its parameters end to end; all rows,
/// rank-major, are the gathered bucket.
struct Bucket {
  int unit = -1;                ///< into Scenario::units
  std::vector<int> parameters;  ///< into Plan::parameters: by partial dims, then ascending
  PerCoordinate row_elems;      ///< sum of padded_elems
  GroupInfo sharded_group;
  GroupInfo unsharded_group;
  MeshDims scatter_dims;     ///< reduce-scattered over; empty: gradients are complete or not cut
  MeshDims all_reduce_dims;  ///< all-reduced over, within unsharded_group
  MeshDims average_dims;  ///< instead of that, weights are averaged over them: sync_object "weight"
  bool is_ignored = false;       ///< fully_shard leaves it alone: reduced in the optimizer phase
  DType dtype = DType::Float32;  ///< gathered, and computed with
  DType reduce_dtype = DType::Float32;  ///< gradients before they are stored
  bool casts = false;  ///< some parameter has another dtype: what is gathered is a copy
  /// Between forward and backward a rank keeps one of that many parts of the gathered bucket, those
  /// of its run of as many consecutive members of the sharded group make the whole; 0: its shard.
  std::int64_t post_forward_size = 0;

  /// Elements of the gathered bucket: shard_size rows.
  [[nodiscard]] PerCoordinate gathered_elems() const { return row_elems.times(sharded_group.size); }
  /// Whether compute needs more than the shard: it is cut over several ranks, or cast.
  [[nodiscard]] bool is_unsharded() const { return sharded_group.size > 1 || casts; }
};

/// The parameters of a bucket that have gradients at a reduction: frozen and unused ones have none.
/// Gradients of a rank are rows like those of the bucket, of these parameters alone.
struct GradientRow {
  int bucket = -1;
  std::vector<int> parameters;         ///< some of Bucket::parameters, in their order
  std::vector<PerCoordinate> offsets;  ///< of their slots in the row, like parameters
  PerCoordinate row_elems;             ///< sum of their padded_elems
  std::vector<PartialRange> partials;  ///< all-reduced last
};

/// An activation, or its gradient, in one layout.
struct ActivationValue {
  int activation = 0;  ///< 0: the model's input; m + 1: the output of module m
  bool is_gradient = false;
  std::int64_t features = 0;  ///< on all ranks together
  std::vector<Placement> layout;
  DType dtype = DType::Float32;
};

/// What a module reads and writes: indices into Plan::values, and when their memory is free.
struct ModulePlan {
  ModuleLayout layout;
  std::vector<int> inputs;           ///< like inputs_of
  int output = -1;                   ///< as it computes it
  int output_gradient = -1;          ///< -1: nothing needs its backward
  std::vector<int> input_gradients;  ///< like inputs; -1: nothing before it needs one
  std::vector<int> added_to;         ///< like inputs; 1: the gradient is added to what is there
  std::vector<int> before;           ///< redistributions before its forward; into
                                     ///< Plan::redistributions
  std::vector<int> after;            ///< after its forward
  std::vector<int> before_backward;
  std::vector<int> after_backward;
  std::vector<int> freed_after_forward;        ///< values of no more use
  std::vector<int> freed_after_recomputation;  ///< where backward computes it again: then
  std::vector<int> freed_after_backward;
};

/// The same of the loss.
struct LossPlan {
  std::vector<int> before;
  std::vector<int> after;
  int output = -1;    ///< the model's output, as the loss takes it
  int gradient = -1;  ///< of it
  std::vector<int> freed;
};

/// One change of the layout of an activation, or of its gradient; or of its dtype alone, a cast.
struct Redistribution {
  int from = -1;          ///< into Plan::values
  int to = -1;            ///< likewise
  bool is_added = false;  ///< to what others left in `to`
  int activation = 0;     ///< 0: the model's input; m + 1: the output of module m
  int asked_by = -1;      ///< module that takes it so, or hands it on so; -1: the loss
  bool is_gradient = false;
  std::int64_t features = 0;  ///< of the activation, on all ranks together
  Transition transition;
  std::vector<int> freed;                  ///< values of no more use after it
  std::vector<int> freed_when_recomputed;  ///< where backward does it again: after that
};

/// The SPMD plan: what every executor runs, the memory ledger counts and reports print. It speaks
/// in mesh dims, never in ranks.
struct Plan {
  Scenario scenario;
  std::vector<PlannedParameter> parameters;  ///< like Scenario::parameters
  std::vector<ActivationValue> values;       ///< of one micro-batch
  std::vector<ModulePlan> modules;           ///< like ModelSpec::modules
  LossPlan loss;
  std::vector<Placement> output;  ///< layout in which the loss takes it
  std::vector<Bucket> buckets;    ///< by unit, in the order of first use
  std::vector<GradientRow> gradient_rows;
  std::vector<Redistribution> redistributions;  ///< of one micro-batch, in order
  std::vector<Step> steps;                      ///< all optimizer steps, in order

  [[nodiscard]] const Mesh& mesh() const { return scenario.mesh; }
  [[nodiscard]] const PlannedParameter& parameter(int p) const {
    return parameters.at(static_cast<std::size_t>(p));
  }
  [[nodiscard]] const Bucket& bucket(int b) const {
    return buckets.at(static_cast<std::size_t>(b));
  }
  [[nodiscard]] const GradientRow& gradient_row(int row) const {
    return gradient_rows.at(static_cast<std::size_t>(row));
  }
  /// Position of a parameter in a row; -1: it is not in it.
  [[nodiscard]] static int position_in(const GradientRow& row, int p);
  /// Mesh dims along which ranks update parameter `p` by gradients of their own, and hold optimizer
  /// state of their own; the mean over them is what the training makes.
  [[nodiscard]] const MeshDims& averaged_dims(int p) const {
    return bucket(parameter(p).bucket).average_dims;
  }
  [[nodiscard]] const std::string& unit_name(const Bucket& bucket) const {
    return scenario.units.at(static_cast<std::size_t>(bucket.unit)).name;
  }
};

/// What a redistribution is about: "input of \"up\"", "output of \"down\"", "output of the model",
/// "gradient of the input of \"up\"".
[[nodiscard]] std::string activation_text(const Plan& plan, const Redistribution& redistribution);

/// What the collective of a loss carries.
inline constexpr const char* kLossPayload = "statistics of the loss";
/// What that of clip_grad_norm carries.
inline constexpr const char* kNormPayload = "norm of the gradients";

/// What a Route, Dispatch or Combine step carries: "counts of tokens of \"moe.experts\"", "tokens
/// to \"moe.experts\"", "tokens from ..."; on the way back "gradients to ...", "gradients from
/// ...".
[[nodiscard]] std::string tokens_text(const Plan& plan, const Step& step);

/// What a collective carries: "unit \"l0\"", the activation_text of its redistribution, the
/// tokens_text, kLossPayload or kNormPayload. \pre the step has a collective
[[nodiscard]] std::string payload_text(const Plan& plan, const Step& step);

/// Elements of the slots of a range of a row.
[[nodiscard]] PerCoordinate partial_elems(const Plan& plan, const GradientRow& row,
                                          const PartialRange& range);

/// What verify_plan checked and how much of it.
struct PlanChecks {
  std::vector<CheckResult> results;
  std::vector<Finding> warnings;
};

/// A plan that can be run. Only verify_plan makes one.
class VerifiedPlan {
 public:
  [[nodiscard]] const Plan& operator*() const { return plan_; }
  [[nodiscard]] const Plan* operator->() const { return &plan_; }
  [[nodiscard]] const PlanChecks& checks() const { return checks_; }

 private:
  friend VerifiedPlan verify_plan(Plan plan);
  VerifiedPlan(Plan plan, PlanChecks checks) : plan_(std::move(plan)), checks_(std::move(checks)) {}

  Plan plan_;
  PlanChecks checks_;
};

}  // namespace hpsim
