#include "plan/step.h"

#include "base/check.h"

namespace hpsim {

std::string_view name_of(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::AllGather:
      return "all_gather";
    case CollectiveOp::ReduceScatter:
      return "reduce_scatter";
    case CollectiveOp::AllReduce:
      return "all_reduce";
    case CollectiveOp::AllToAll:
      return "all_to_all";
  }
  HPSIM_CHECK(false, "unknown collective {}", static_cast<int>(op));
  return {};
}

bool is_reduction(CollectiveOp op) {
  return op == CollectiveOp::ReduceScatter || op == CollectiveOp::AllReduce;
}

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::Forward:
      return "forward";
    case Phase::Backward:
      return "backward";
    case Phase::Optimizer:
      return "optimizer";
  }
  HPSIM_CHECK(false, "unknown phase {}", static_cast<int>(phase));
  return {};
}

std::string_view name_of(StepKind kind) {
  switch (kind) {
    case StepKind::Unshard:
      return "unshard";
    case StepKind::WaitUnshard:
      return "wait_unshard";
    case StepKind::Reshard:
      return "reshard";
    case StepKind::Redistribute:
      return "redistribute";
    case StepKind::Route:
      return "route";
    case StepKind::Dispatch:
      return "dispatch";
    case StepKind::Combine:
      return "combine";
    case StepKind::Forward:
      return "forward";
    case StepKind::Loss:
      return "loss";
    case StepKind::Backward:
      return "backward";
    case StepKind::ReduceScatter:
      return "reduce_scatter";
    case StepKind::AllReduce:
      return "all_reduce";
    case StepKind::ScaleGradient:
      return "scale_gradient";
    case StepKind::StoreGradient:
      return "store_gradient";
    case StepKind::ClipGradients:
      return "clip_gradients";
    case StepKind::Optimizer:
      return "optimizer";
    case StepKind::AverageWeights:
      return "average_weights";
  }
  HPSIM_CHECK(false, "unknown step kind {}", static_cast<int>(kind));
  return {};
}

bool moves_tokens(StepKind kind) {
  return kind == StepKind::Route || kind == StepKind::Dispatch || kind == StepKind::Combine;
}

}  // namespace hpsim
