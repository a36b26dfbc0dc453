#include "verify/routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "plan/activation_part.h"
#include "verify/check_recorder.h"
#include "verify/diagnose.h"

namespace hpsim {
namespace {

/// What the baseline routes of the positions that the rank at `coordinate` holds.
RoutedCounts expected_counts(const Evidence& evidence, int module, const ReferenceRoutes& routes,
                             std::int64_t micro_batch, const Coordinate& coordinate) {
  const Scenario& scenario = evidence.plan.scenario;
  const ModuleSpec& spec = scenario.model.modules.at(static_cast<std::size_t>(module));
  const ActivationPart part = activation_part(
      scenario, evidence.plan.modules.at(static_cast<std::size_t>(module)).layout.inputs.at(0),
      spec.in_features, coordinate);
  RoutedCounts counts(static_cast<std::size_t>(spec.num_experts), 0);
  const std::int64_t positions = num_positions(scenario.model);
  for (const std::int64_t data_rank : part.data_ranks) {
    for (std::int64_t i = 0; i < scenario.micro_batch_size(); ++i) {
      const std::int64_t sample =
          data_rank * scenario.local_batch() + micro_batch * scenario.micro_batch_size() + i;
      const std::int64_t first = (sample * positions + part.positions.begin) * spec.top_k;
      const std::int64_t end = (sample * positions + part.positions.end) * spec.top_k;
      for (std::int64_t choice = first; choice < end; ++choice)
        ++counts.at(static_cast<std::size_t>(routes.at(static_cast<std::size_t>(choice))));
    }
  }
  return counts;
}

class RoutingCheck {
 public:
  RoutingCheck(const Evidence& evidence, CheckRecorder& recorder)
      : evidence_(evidence),
        recorder_(recorder),
        modules_(experts_modules(evidence.plan.scenario.model)),
        routing_(run_routing(evidence.plan, evidence.run)) {}

  void run() {
    for (std::int64_t step = 0; step < evidence_.num_steps(); ++step) {
      for (std::int64_t m = 0; m < evidence_.plan.scenario.training.micro_batches; ++m) {
        for (int index = 0; index < static_cast<int>(modules_.size()); ++index)
          compare(step, m, index);
      }
    }
  }

 private:
  /// The first rank and expert that differ are told, and how many ranks do.
  void compare(std::int64_t step, std::int64_t micro_batch, int index) {
    const int module = modules_[static_cast<std::size_t>(index)];
    const ReferenceRoutes& routes = evidence_.reference.steps.at(static_cast<std::size_t>(step))
                                        .routes.at(static_cast<std::size_t>(index));
    const Mesh& mesh = evidence_.plan.mesh();
    std::vector<std::int64_t> wrong;
    Finding finding{.code = FindingCode::RouteWrong, .step = step};
    for (std::int64_t r = 0; r < evidence_.num_ranks(); ++r) {
      const Coordinate coordinate = mesh.coordinate_of(Rank{r});
      const RoutedCounts expected =
          expected_counts(evidence_, module, routes, micro_batch, coordinate);
      const RoutedCounts got = routing_(
          coordinate, step * evidence_.plan.scenario.training.micro_batches + micro_batch, index);
      recorder_.count(static_cast<std::int64_t>(expected.size()));
      const auto [e, g] = std::mismatch(expected.begin(), expected.end(), got.begin(), got.end());
      if (e == expected.end()) continue;
      wrong.push_back(r);
      if (wrong.size() > 1) continue;
      finding.expected = static_cast<double>(*e);
      finding.got = static_cast<double>(*g);
      locate(finding, mesh, Rank{r});
      finding.message =
          fmt::format("\"{}\" on {}, step {}: {} positions to expert {} expected, {} got",
                      module_name(evidence_.plan.scenario.model, module),
                      describe_rank(mesh, Rank{r}), step, *e, e - expected.begin(), *g);
    }
    if (wrong.empty()) return;
    if (wrong.size() > 1)
      finding.message += "; likewise on " + describe_ranks(wrong, evidence_.num_ranks());
    recorder_.add(std::move(finding));
  }

  const Evidence& evidence_;
  CheckRecorder& recorder_;
  std::vector<int> modules_;
  Routing routing_;
};

}  // namespace

void check_routing(const Evidence& evidence, Verdict& verdict) {
  if (experts_modules(evidence.plan.scenario.model).empty()) return;
  CheckRecorder recorder(CheckId::Routing);
  RoutingCheck(evidence, recorder).run();
  recorder.finish(verdict);
}

}  // namespace hpsim
