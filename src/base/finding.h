#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace hpsim {

/// The checks of a run, in report order. Names as printed: see `name_of`.
enum class CheckId {
  Coverage,       ///< shards tile every parameter once; replicas equal; padding outside
  SyncSet,        ///< every Partial mesh dim is reduced exactly once
  PlanAgreement,  ///< all ranks issued the planned collectives: order, group, count, dtype
  Placements,     ///< the rows that placements imply are the rows held
  LossParity,
  GradientParity,
  ParameterParity,
  OptimizerStateParity,
  GradNormParity,
  ReplicaAgreement,  ///< copies of a shard hold the same bits
  Padding,           ///< padding was zero whenever it was sent
  Ledger,            ///< measured memory equals planned memory
  Precision,         ///< numbers are of the dtypes that the plan says
  Routing,           ///< positions went to the experts that the baseline chooses
  Expect,            ///< the scenario's `expect`
};

/// "coverage", "sync-set", "plan-agreement", "placements", "loss-parity", ...
[[nodiscard]] std::string_view name_of(CheckId id);

/// What can be wrong with a run; the printed code is the key of the list of finding codes.
enum class FindingCode {
  GradScale,         ///< "GRAD_SCALE": got / expected is one ratio over a whole tensor
  GradValue,         ///< "GRAD_VALUE"
  ParamValue,        ///< "PARAM_VALUE": a parameter, or optimizer state of it
  LossValue,         ///< "LOSS_VALUE"
  LocalMean,         ///< "LOCAL_MEAN": the mean of means is not the mean over all terms
  NormValue,         ///< "NORM_VALUE"
  ReplicaDiverged,   ///< "REPLICA_DIVERGED"
  UnreducedPartial,  ///< "UNREDUCED_PARTIAL"
  DoubleReduced,     ///< "DOUBLE_REDUCED"
  LayoutGap,         ///< "LAYOUT_GAP"
  LayoutOverlap,     ///< "LAYOUT_OVERLAP"
  OffsetWrong,       ///< "OFFSET_WRONG"
  PaddingNonzero,    ///< "PADDING_NONZERO"
  PaddingExposed,    ///< "PADDING_EXPOSED"
  CommCount,         ///< "COMM_COUNT"
  CommOrder,         ///< "COMM_ORDER"
  CommShape,         ///< "COMM_SHAPE"
  CommDtype,         ///< "COMM_DTYPE"
  CommGroup,         ///< "COMM_GROUP"
  SpecDisagrees,     ///< "SPEC_DISAGREES": placements cannot express what ranks hold
  MemEstimate,       ///< "MEM_ESTIMATE": measured and planned memory differ
  RouteWrong,        ///< "ROUTE_WRONG": positions went to other experts than the baseline's
  VacuousBound,      ///< "VACUOUS_BOUND": the bound says nothing about this tensor
  Hang,              ///< "HANG": a rank did not come to a collective in time
  RankDied,          ///< "RANK_DIED": the process of a rank ended, or threw
  FaultMissed,       ///< "FAULT_MISSED": a planted fault was not found by the check it should be
  Expect,            ///< "EXPECT"
};

[[nodiscard]] std::string_view name_of(FindingCode code);

/// The code that is printed so, or nothing.
[[nodiscard]] std::optional<FindingCode> find_code(std::string_view printed);

/// Whether the warning of this printed code is about numbers of a run: the symbolic backend, which
/// computes none, never gives it.
[[nodiscard]] bool warns_of_numbers(std::string_view code);

/// One thing that a check found. Optional members are left out of reports when they do not apply.
struct Finding {
  FindingCode code = FindingCode::Expect;
  Severity severity = Severity::Error;
  CheckId check = CheckId::Expect;
  std::string param;                     ///< fully qualified name; empty if none
  std::optional<std::int64_t> rank;      ///< where it shows first
  std::optional<std::int64_t> step;      ///< optimizer step, from 0
  std::vector<std::int64_t> coordinate;  ///< of `rank` in the mesh; empty if no rank
  std::vector<std::int64_t> index;       ///< global index of the worst element; empty if none
  std::optional<double> expected;
  std::optional<double> got;
  std::optional<double> ratio;        ///< got / expected, only if constant over the tensor
  std::vector<std::string> explains;  ///< what the ratio equals: "W=2", "R=2", "S=4", ...
  std::string message;                ///< one sentence with both numbers
  std::string pointer;                ///< of what is told, into the scenario file; or empty
  std::int64_t line = 0;              ///< of the scenario file that this is about; 0 if unknown
  std::int64_t column = 0;
};

/// The element that came nearest to its bound, or passed it.
struct WorstElement {
  std::string param;
  std::int64_t rank = 0;
  std::int64_t step = 0;
  double ratio = 0;  ///< |got - expected| / bound; 0 for equality checks that hold
};

struct CheckResult {
  CheckId id = CheckId::Coverage;
  bool passed = false;
  std::int64_t compared = 0;  ///< numbers compared; a check that compared none fails
  std::optional<WorstElement> worst;
};

}  // namespace hpsim
