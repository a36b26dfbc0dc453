#include "base/finding.h"

#include "base/check.h"

namespace hpsim {

std::string_view name_of(CheckId id) {
  switch (id) {
    case CheckId::Coverage:
      return "coverage";
    case CheckId::SyncSet:
      return "sync-set";
    case CheckId::PlanAgreement:
      return "plan-agreement";
    case CheckId::Placements:
      return "placements";
    case CheckId::LossParity:
      return "loss-parity";
    case CheckId::GradientParity:
      return "gradient-parity";
    case CheckId::ParameterParity:
      return "parameter-parity";
    case CheckId::OptimizerStateParity:
      return "optimizer-state-parity";
    case CheckId::GradNormParity:
      return "grad-norm-parity";
    case CheckId::ReplicaAgreement:
      return "replica-agreement";
    case CheckId::Padding:
      return "padding";
    case CheckId::Ledger:
      return "ledger";
    case CheckId::Precision:
      return "precision";
    case CheckId::Routing:
      return "routing";
    case CheckId::Expect:
      return "expect";
  }
  HPSIM_CHECK(false, "unknown check {}", static_cast<int>(id));
  return {};
}

std::string_view name_of(FindingCode code) {
  switch (code) {
    case FindingCode::GradScale:
      return "GRAD_SCALE";
    case FindingCode::GradValue:
      return "GRAD_VALUE";
    case FindingCode::ParamValue:
      return "PARAM_VALUE";
    case FindingCode::LossValue:
      return "LOSS_VALUE";
    case FindingCode::LocalMean:
      return "LOCAL_MEAN";
    case FindingCode::NormValue:
      return "NORM_VALUE";
    case FindingCode::ReplicaDiverged:
      return "REPLICA_DIVERGED";
    case FindingCode::UnreducedPartial:
      return "UNREDUCED_PARTIAL";
    case FindingCode::DoubleReduced:
      return "DOUBLE_REDUCED";
    case FindingCode::LayoutGap:
      return "LAYOUT_GAP";
    case FindingCode::LayoutOverlap:
      return "LAYOUT_OVERLAP";
    case FindingCode::OffsetWrong:
      return "OFFSET_WRONG";
    case FindingCode::PaddingNonzero:
      return "PADDING_NONZERO";
    case FindingCode::PaddingExposed:
      return "PADDING_EXPOSED";
    case FindingCode::CommCount:
      return "COMM_COUNT";
    case FindingCode::CommOrder:
      return "COMM_ORDER";
    case FindingCode::CommShape:
      return "COMM_SHAPE";
    case FindingCode::CommDtype:
      return "COMM_DTYPE";
    case FindingCode::CommGroup:
      return "COMM_GROUP";
    case FindingCode::SpecDisagrees:
      return "SPEC_DISAGREES";
    case FindingCode::MemEstimate:
      return "MEM_ESTIMATE";
    case FindingCode::RouteWrong:
      return "ROUTE_WRONG";
    case FindingCode::VacuousBound:
      return "VACUOUS_BOUND";
    case FindingCode::Hang:
      return "HANG";
    case FindingCode::RankDied:
      return "RANK_DIED";
    case FindingCode::FaultMissed:
      return "FAULT_MISSED";
    case FindingCode::Expect:
      return "EXPECT";
  }
  HPSIM_CHECK(false, "unknown finding code {}", static_cast<int>(code));
  return {};
}

std::optional<FindingCode> find_code(std::string_view printed) {
  for (int code = 0; code <= static_cast<int>(FindingCode::Expect); ++code) {
    if (name_of(static_cast<FindingCode>(code)) == printed) return static_cast<FindingCode>(code);
  }
  return std::nullopt;
}

bool warns_of_numbers(std::string_view code) {
  return code == name_of(FindingCode::LocalMean);
}

}  // namespace hpsim
