#include "plan/norm_collective.h"

#include <fmt/format.h>

#include <cmath>

namespace hpsim {

std::vector<SpecDifference> norm_collective_differences(const Plan& plan, const Step& step) {
  const CollectiveSpec& spec = *step.collective;
  const Mesh& mesh = plan.mesh();
  std::vector<SpecDifference> differences;
  if (spec.op != CollectiveOp::AllReduce) {
    differences.push_back({FindingCode::CommOrder, fmt::format("{}, expected {}", name_of(spec.op),
                                                               name_of(CollectiveOp::AllReduce))});
  }
  const std::int64_t num_ranks = mesh.num_ranks();
  if (mesh.size(spec.dims) != num_ranks || spec.group_size != num_ranks || spec.consecutive != 0) {
    differences.push_back(
        {FindingCode::CommGroup,
         fmt::format("over {} ranks in groups of {}, the norm is of {}", mesh.size(spec.dims),
                     spec.consecutive > 0 ? spec.consecutive : spec.group_size, num_ranks)});
  }
  if (spec.dtype != DType::Float64) {
    differences.push_back(
        {FindingCode::CommDtype,
         fmt::format("{} on the wire, expected {}", name_of(spec.dtype), name_of(DType::Float64))});
  }
  if (spec.elems_in != 1 || spec.elems_out != 1) {
    differences.push_back(
        {FindingCode::CommShape,
         fmt::format("{} elements in and {} out, expected 1", to_string(mesh, spec.elems_in),
                     to_string(mesh, spec.elems_out))});
  }
  const auto& clip = plan.scenario.training.clip_grad_norm;
  const bool is_max = clip && std::isinf(clip->norm_type);
  if (!clip || spec.takes_max != is_max || spec.prescale != 1 || spec.scale != 1) {
    differences.push_back(
        {FindingCode::NormValue,
         fmt::format("it takes the {} and scales by {}, the norm is a {} and unscaled",
                     spec.takes_max ? "largest" : "sum", spec.prescale * spec.scale,
                     is_max ? "largest" : "sum")});
  }
  return differences;
}

}  // namespace hpsim
