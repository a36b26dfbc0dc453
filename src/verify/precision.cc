#include "verify/precision.h"

#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>

#include "plan/recomputation.h"
#include "scenario/gradients.h"
#include "scenario/precision.h"
#include "verify/check_recorder.h"
#include "verify/diagnose.h"

namespace hpsim {
namespace {

class PrecisionCheck {
 public:
  PrecisionCheck(const Evidence& evidence, CheckRecorder& recorder)
      : evidence_(evidence), recorder_(recorder) {}

  void run() {
    for (std::int64_t rank = 0; rank < evidence_.num_ranks(); ++rank)
      check_wire(Rank{rank});
    const int num_states = evidence_.plan.scenario.training.optimizer.num_state_tensors();
    for (int p = 0; p < evidence_.num_parameters(); ++p) {
      for (std::int64_t step = 0; step < evidence_.num_steps(); ++step) {
        if (has_gradient(evidence_.plan.scenario, p, step)) {
          check_tensor("gradient of", FindingCode::GradValue, step, p,
                       [&](Rank rank) { return evidence_.run.gradient(rank, step, p); });
        }
        check_tensor("parameter", FindingCode::ParamValue, step, p,
                     [&](Rank rank) { return evidence_.run.parameter(rank, step + 1, p); });
        for (int state = 0; state < num_states; ++state) {
          check_tensor("optimizer state of", FindingCode::ParamValue, step, p,
                       [&](Rank rank) { return evidence_.run.state(rank, step, state, p); });
        }
      }
    }
  }

 private:
  void check_wire(Rank rank) {
    const RankRecord& record = evidence_.run.rank_record(rank);
    recorder_.count(record.wire_checked);
    if (record.wire_foreign == 0) return;
    const Plan& plan = evidence_.plan;
    Finding finding{.code = FindingCode::CommDtype,
                    .expected = 0,
                    .got = static_cast<double>(record.wire_foreign)};
    locate(finding, plan.mesh(), rank);
    std::string first = "of no collective of the plan";
    const std::int64_t at = record.first_foreign;
    if (at >= 0 && at < static_cast<std::int64_t>(plan.steps.size()) &&
        plan.steps[static_cast<std::size_t>(at)].collective) {
      const Step& step = plan.steps[static_cast<std::size_t>(at)];
      finding.step = step.step;
      first = fmt::format("in the {} of {}, step {}, {}, which is {}", name_of(step.collective->op),
                          payload_text(plan, step), step.step, phase_text(step),
                          name_of(step.collective->dtype));
    }
    finding.message = fmt::format(
        "{} sent {} numbers that their dtype does not have, of {}; expected 0; the first {}",
        describe_rank(plan.mesh(), rank), record.wire_foreign, record.wire_checked, first);
    recorder_.add(std::move(finding));
  }

  /// The first number of the first rank that the dtype of the parameter does not have.
  void check_tensor(const std::string& subject, FindingCode code, std::int64_t step, int p,
                    const std::function<TensorView(Rank)>& view_of) {
    const PlannedParameter& parameter = evidence_.parameter(p);
    for (std::int64_t rank = 0; rank < evidence_.num_ranks(); ++rank) {
      const TensorView view = view_of(Rank{rank});
      recorder_.count(view.elems);
      for (std::int64_t i = 0; i < view.elems; ++i) {
        if (is_representable(parameter.dtype, view.at(i))) continue;
        Finding finding{.code = code, .param = parameter.name, .step = step, .got = view.at(i)};
        locate(finding, evidence_.plan.mesh(), Rank{rank});
        const std::int64_t part = evidence_.part_index(p)[static_cast<std::size_t>(rank)];
        finding.index = index_in(evidence_.held(p, part).boxes, i);
        finding.message =
            fmt::format("{} \"{}\" on {}, step {}, index {}: {:.17g} is no number of {}", subject,
                        parameter.name, describe_rank(evidence_.plan.mesh(), Rank{rank}), step,
                        to_string(finding.index), view.at(i), name_of(parameter.dtype));
        return recorder_.add(std::move(finding));
      }
    }
  }

  const Evidence& evidence_;
  CheckRecorder& recorder_;
};

}  // namespace

void check_precision(const Evidence& evidence, Verdict& verdict) {
  if (!is_emulated(evidence.plan.scenario)) return;
  CheckRecorder recorder(CheckId::Precision);
  PrecisionCheck(evidence, recorder).run();
  recorder.finish(verdict);
}

}  // namespace hpsim
