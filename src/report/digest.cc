#include "report/digest.h"

#include <fmt/format.h>

#include <bit>
#include <functional>

#include "base/check.h"
#include "mesh/group.h"
#include "tensor/fill.h"
#include "trace/rank_mean.h"

namespace hpsim {
namespace {

void append(const TensorView& tensor, std::vector<double>& values) {
  for (std::int64_t i = 0; i < tensor.elems; ++i)
    values.push_back(tensor.at(i));
}

}  // namespace

std::string digest_of_values(const std::vector<double>& values) {
  std::string bytes;
  bytes.reserve(values.size() * 8);
  for (const double value : values) {
    const auto bits = std::bit_cast<std::uint64_t>(value == 0 ? 0.0 : value);
    for (int shift = 0; shift < 64; shift += 8)
      bytes.push_back(static_cast<char>(bits >> shift));
  }
  return fmt::format("{:016x}", fnv1a64(bytes));
}

std::string digest_of(const Plan& plan, const RunResult& run, const std::vector<double>& losses) {
  HPSIM_CHECK(static_cast<std::int64_t>(losses.size()) == run.layout().num_steps(),
              "{} losses for {} steps", losses.size(), run.layout().num_steps());
  const Rank first =
      plan.mesh().rank_at(Coordinate(static_cast<std::size_t>(plan.mesh().num_dims()), 0));
  const int num_states = plan.scenario.training.optimizer.num_state_tensors();
  std::vector<double> values;
  for (std::int64_t step = 0; step < run.layout().num_steps(); ++step) {
    values.push_back(losses[static_cast<std::size_t>(step)]);
    for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
      const PlannedParameter& parameter = plan.parameters[static_cast<std::size_t>(p)];
      const std::vector<Rank> shards = group_of(plan.mesh(), parameter.cut_dims(), first);
      const auto append_means = [&](const std::function<TensorView(Rank)>& view_of) {
        for (const Rank rank : shards)
          append(as_view(own_mean(plan, p, rank, view_of).mean), values);
      };
      append_means([&](Rank rank) { return run.gradient(rank, step, p); });
      for (const Rank rank : shards)
        append(run.parameter(rank, step + 1, p), values);
      for (int state = 0; state < num_states; ++state) {
        append_means([&](Rank rank) { return run.state(rank, step, state, p); });
      }
    }
  }
  return digest_of_values(values);
}

}  // namespace hpsim
