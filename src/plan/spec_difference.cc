#include "plan/spec_difference.h"

#include <fmt/format.h>

namespace hpsim {
namespace {

std::string group_text(const Mesh& mesh, const CollectiveSpec& spec) {
  if (spec.consecutive > 0) {
    return fmt::format("runs of {} along ({})", spec.consecutive, mesh.names(spec.dims));
  }
  return fmt::format("({}), {} ranks", mesh.names(spec.dims), spec.group_size);
}

}  // namespace

std::string op_text(const CollectiveSpec& spec) {
  return fmt::format("{}{}", name_of(spec.op), spec.takes_max ? " of the largest" : "");
}

std::optional<SpecDifference> difference_of(const Mesh& mesh,
                                            const std::optional<CollectiveSpec>& got,
                                            const std::optional<CollectiveSpec>& wanted) {
  if (got == wanted) return std::nullopt;
  if (!got || !wanted) {
    const CollectiveSpec& one = got ? *got : *wanted;
    return SpecDifference{FindingCode::CommCount,
                          fmt::format("{}{} over {}{}", got ? "" : "no ", op_text(one),
                                      group_text(mesh, one), got ? ", none is asked for" : "")};
  }
  if (got->op != wanted->op || got->takes_max != wanted->takes_max) {
    return SpecDifference{FindingCode::CommOrder,
                          fmt::format("{}, expected {}", op_text(*got), op_text(*wanted))};
  }
  if (got->dims != wanted->dims || got->group_size != wanted->group_size ||
      got->consecutive != wanted->consecutive) {
    return SpecDifference{FindingCode::CommGroup,
                          fmt::format("over {}, expected over {}", group_text(mesh, *got),
                                      group_text(mesh, *wanted))};
  }
  if (got->dtype != wanted->dtype) {
    return SpecDifference{
        FindingCode::CommDtype,
        fmt::format("{} on the wire, expected {}", name_of(got->dtype), name_of(wanted->dtype))};
  }
  if (got->prescale != wanted->prescale || got->scale != wanted->scale) {
    return SpecDifference{FindingCode::GradScale,
                          fmt::format("scaled by {}, expected {}", got->prescale * got->scale,
                                      wanted->prescale * wanted->scale)};
  }
  return SpecDifference{
      FindingCode::CommShape,
      fmt::format("{} elements in and {} out, expected {} and {}", to_string(mesh, got->elems_in),
                  to_string(mesh, got->elems_out), to_string(mesh, wanted->elems_in),
                  to_string(mesh, wanted->elems_out))};
}

}  // namespace hpsim
