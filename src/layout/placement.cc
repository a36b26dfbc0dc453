#include "layout/placement.h"

#include <fmt/format.h>

#include "tensor/shape.h"

namespace hpsim {
namespace {

struct Printer {
  std::string operator()(const Replicate&) const { return "Replicate"; }
  std::string operator()(const Partial& partial) const {
    return fmt::format("Partial({})", to_string(partial.op));
  }
  std::string operator()(const Shard& shard) const { return fmt::format("Shard({})", shard.dim); }
  std::string operator()(const RaggedShard& ragged) const {
    return fmt::format("RaggedShard({}, {})",
                       to_string(Shape(ragged.dims.begin(), ragged.dims.end())),
                       to_string(ragged.local_units));
  }
};

}  // namespace

std::string to_string(const Placement& placement) {
  return std::visit(Printer{}, placement);
}

std::string to_string(ReduceOp op) {
  return op == ReduceOp::Sum ? "sum" : "avg";
}

}  // namespace hpsim
