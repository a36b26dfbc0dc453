#include "plan/bucket_collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "scenario/precision.h"

namespace hpsim {
namespace {

std::optional<CollectiveOp> op_of(StepKind kind) {
  switch (kind) {
    case StepKind::Unshard:
      return CollectiveOp::AllGather;
    case StepKind::ReduceScatter:
      return CollectiveOp::ReduceScatter;
    case StepKind::AllReduce:
    case StepKind::AverageWeights:
      return CollectiveOp::AllReduce;
    default:
      return std::nullopt;
  }
}

class Comparison {
 public:
  Comparison(const Plan& plan, const Step& step, bool is_post_forward)
      : plan_(plan),
        mesh_(plan.mesh()),
        step_(step),
        spec_(*step.collective),
        bucket_(plan.bucket(step.bucket)),
        row_(step.row < 0 ? nullptr : &plan.gradient_row(step.row)),
        parts_(is_post_forward && step.kind == StepKind::Unshard ? bucket_.post_forward_size : 0) {}

  std::vector<SpecDifference> run() {
    const std::optional<CollectiveOp> op = op_of(step_.kind);
    expect(op == spec_.op && !spec_.takes_max, FindingCode::CommOrder, [&] {
      return fmt::format("{}, expected {}", op_text(spec_), op ? name_of(*op) : "none");
    });
    if (!differences_.empty()) return std::move(differences_);
    compare_group();
    compare_dtype();
    compare_elems();
    return std::move(differences_);
  }

 private:
  template <class Message>
  void expect(bool holds, FindingCode code, const Message& message) {
    if (!holds) differences_.push_back({code, message()});
  }

  [[nodiscard]] const PartialRange* range() const {
    if (step_.partial < 0 || row_ == nullptr) return nullptr;
    return &row_->partials.at(static_cast<std::size_t>(step_.partial));
  }

  [[nodiscard]] const MeshDims& wanted_dims() const {
    if (step_.kind == StepKind::AverageWeights) return bucket_.average_dims;
    if (step_.kind != StepKind::AllReduce) return bucket_.sharded_group.dims;
    return range() == nullptr ? bucket_.all_reduce_dims : range()->dims;
  }

  void compare_group() {
    expect(spec_.consecutive == parts_, FindingCode::CommGroup, [&] {
      return fmt::format("runs of {} consecutive ranks along ({}), expected {} (0: all)",
                         spec_.consecutive, mesh_.names(spec_.dims), parts_);
    });
    const std::int64_t size = parts_ > 0 ? parts_ : mesh_.size(spec_.dims);
    expect(spec_.group_size == size && size > 1, FindingCode::CommGroup, [&] {
      return fmt::format("groups of {} along {} ranks of the mesh, expected equal and above 1",
                         spec_.group_size, size);
    });
    expect(spec_.dims == wanted_dims(), FindingCode::CommGroup, [&] {
      return fmt::format("over ({}), expected over ({})", mesh_.names(spec_.dims),
                         mesh_.names(wanted_dims()));
    });
  }

  /// Of what is sent; it is the same for all parameters of a bucket.
  [[nodiscard]] DType wanted_dtype(int p) const {
    if (step_.kind == StepKind::Unshard) return compute_dtype(plan_.scenario, p);
    if (step_.kind == StepKind::AverageWeights) return parameter_dtype(plan_.scenario, p);
    return reduce_dtype(plan_.scenario, p);
  }

  void compare_dtype() {
    const std::vector<int>& parameters = row_ == nullptr ? bucket_.parameters : row_->parameters;
    const auto other = std::find_if(parameters.begin(), parameters.end(),
                                    [&](int p) { return wanted_dtype(p) != spec_.dtype; });
    expect(other == parameters.end(), FindingCode::CommDtype, [&] {
      return fmt::format("{} on the wire, expected {} for \"{}\"", name_of(spec_.dtype),
                         name_of(wanted_dtype(*other)), plan_.parameter(*other).name);
    });
  }

  void compare_elems() {
    const PerCoordinate whole_row = row_ == nullptr ? bucket_.row_elems : row_->row_elems;
    const PerCoordinate row =
        range() == nullptr ? whole_row : partial_elems(plan_, *row_, *range());
    const std::int64_t shards = bucket_.sharded_group.size;
    const std::int64_t rows_in = spec_.op == CollectiveOp::ReduceScatter ? shards
                                 : parts_ > 0                            ? shards / parts_
                                                                         : 1;
    const PerCoordinate wanted_in = row.times(rows_in);
    const PerCoordinate wanted_out =
        spec_.op == CollectiveOp::AllGather ? bucket_.gathered_elems() : row;
    expect(spec_.elems_in == wanted_in && spec_.elems_out == wanted_out, FindingCode::CommShape,
           [&] {
             return fmt::format("{} elements in and {} out, expected {} and {}",
                                to_string(mesh_, spec_.elems_in), to_string(mesh_, spec_.elems_out),
                                to_string(mesh_, wanted_in), to_string(mesh_, wanted_out));
           });
    for (const PerCoordinate& elems : {spec_.elems_in, spec_.elems_out}) {
      const bool is_equal = std::none_of(spec_.dims.begin(), spec_.dims.end(),
                                         [&](int dim) { return contains(elems.dims(), dim); });
      expect(is_equal, FindingCode::CommShape, [&] {
        return fmt::format("ranks of one group would send different sizes: {}",
                           to_string(mesh_, elems));
      });
    }
  }

  const Plan& plan_;
  const Mesh& mesh_;
  const Step& step_;
  const CollectiveSpec& spec_;
  const Bucket& bucket_;
  const GradientRow* row_;
  std::int64_t parts_;  ///< that are gathered, of those kept since forward; 0: shards are
  std::vector<SpecDifference> differences_;
};

}  // namespace

std::vector<SpecDifference> bucket_collective_differences(const Plan& plan, const Step& step,
                                                          bool is_post_forward) {
  return Comparison(plan, step, is_post_forward).run();
}

}  // namespace hpsim
