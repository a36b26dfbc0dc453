#include "trace/run_result.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/check.h"
#include "layout/tensor_layout.h"
#include "tensor/fill.h"

namespace hpsim {
namespace {

constexpr std::int64_t kAlignment = 64;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Copies the shard `view` of `parameter` into its rows of the full tensor.
void copy_rows(const TensorView& view, std::int64_t first_elem, std::vector<double>& full) {
  HPSIM_CHECK(first_elem + view.elems <= static_cast<std::int64_t>(full.size()),
              "shard [{}, {}) of {} elements", first_elem, first_elem + view.elems, full.size());
  for (std::int64_t i = 0; i < view.elems; ++i) {
    full[static_cast<std::size_t>(first_elem + i)] = view.at(i);
  }
}

}  // namespace

double TensorView::at(std::int64_t i) const {
  HPSIM_CHECK(i >= 0 && i < elems, "element {} of {}", i, elems);
  if (dtype == DType::Float64) return reinterpret_cast<const double*>(data)[i];
  HPSIM_CHECK(dtype == DType::Float32, "no recorded tensor is {}", name_of(dtype));
  return static_cast<double>(reinterpret_cast<const float*>(data)[i]);
}

ResultLayout::ResultLayout(const Plan& plan, bool records_tensors)
    : dtype_(plan.scenario.numerics.dtype),
      records_tensors_(records_tensors),
      num_ranks_(plan.mesh().num_ranks()),
      num_steps_(plan.scenario.training.steps),
      num_parameters_(static_cast<std::int64_t>(plan.parameters.size())),
      num_states_(plan.scenario.training.optimizer.num_state_tensors()) {
  for (const Step& step : plan.steps)
    max_collectives_ += step.collective ? 1 : 0;
  // Ranks with the same shard indices hold tensors of the same sizes: one profile for all of them.
  std::map<std::vector<std::int64_t>, std::int64_t> profiles;
  for (std::int64_t rank = 0; rank < num_ranks_; ++rank) {
    const Coordinate coordinate = plan.mesh().coordinate_of(Rank{rank});
    std::vector<std::int64_t> elems;
    std::vector<std::int64_t> offsets;
    std::int64_t bytes = 0;
    for (const PlannedParameter& parameter : plan.parameters) {
      const std::int64_t index = plan.mesh().index_along(parameter.sharded_group.dims, coordinate);
      elems.push_back(parameter.shard_elems(index));
      offsets.push_back(bytes);
      bytes = aligned(bytes + elems.back() * hpsim::size_bytes(dtype_));
    }
    const auto [it, is_new] = profiles.try_emplace(elems, static_cast<std::int64_t>(elems_.size()));
    profile_of_rank_.push_back(it->second);
    if (is_new) {
      elems_.push_back(std::move(elems));
      offsets_.push_back(std::move(offsets));
      set_bytes_.push_back(bytes);
    }
    rank_begin_.push_back(size_bytes_);
    size_bytes_ = tensors(Rank{rank}, 0);
    if (records_tensors_) {
      // Parameters at times 0..steps, then gradients and state tensors of each step.
      const std::int64_t num_sets = num_steps_ + 1 + num_steps_ * (1 + num_states_);
      size_bytes_ += num_sets * set_bytes_[static_cast<std::size_t>(it->second)];
    }
  }
}

std::int64_t ResultLayout::rank_record(Rank rank) const {
  return rank_begin_.at(static_cast<std::size_t>(rank.value));
}

std::int64_t ResultLayout::step_record(Rank rank, std::int64_t step) const {
  return rank_record(rank) + aligned(sizeof(RankRecord)) + step * aligned(sizeof(StepRecord));
}

std::int64_t ResultLayout::executed(Rank rank) const {
  return step_record(rank, num_steps_);
}

std::int64_t ResultLayout::held_rows(Rank rank) const {
  return executed(rank) +
         aligned(max_collectives_ * static_cast<std::int64_t>(sizeof(ExecutedCollective)));
}

std::int64_t ResultLayout::tensors(Rank rank, std::int64_t set) const {
  const std::int64_t begin =
      held_rows(rank) + aligned(num_parameters_ * static_cast<std::int64_t>(sizeof(HeldRows)));
  const auto profile =
      static_cast<std::size_t>(profile_of_rank_.at(static_cast<std::size_t>(rank.value)));
  return begin + set * set_bytes_.at(profile);
}

const std::vector<std::int64_t>& ResultLayout::offsets_of(Rank rank) const {
  HPSIM_CHECK(records_tensors_, "this run records no tensors");
  return offsets_[static_cast<std::size_t>(
      profile_of_rank_.at(static_cast<std::size_t>(rank.value)))];
}

std::int64_t ResultLayout::parameter(Rank rank, std::int64_t time, int parameter) const {
  HPSIM_CHECK(time >= 0 && time <= num_steps_, "time {} of {} steps", time, num_steps_);
  return tensors(rank, time) + offsets_of(rank).at(static_cast<std::size_t>(parameter));
}

std::int64_t ResultLayout::gradient(Rank rank, std::int64_t step, int parameter) const {
  HPSIM_CHECK(step >= 0 && step < num_steps_, "step {} of {}", step, num_steps_);
  return tensors(rank, num_steps_ + 1 + step) +
         offsets_of(rank).at(static_cast<std::size_t>(parameter));
}

std::int64_t ResultLayout::state(Rank rank, std::int64_t step, int state, int parameter) const {
  HPSIM_CHECK(step >= 0 && step < num_steps_ && state >= 0 && state < num_states_,
              "state tensor {} of {}, step {} of {}", state, num_states_, step, num_steps_);
  return tensors(rank, num_steps_ + 1 + num_steps_ * (1 + state) + step) +
         offsets_of(rank).at(static_cast<std::size_t>(parameter));
}

std::int64_t ResultLayout::shard_elems(Rank rank, int parameter) const {
  return elems_[static_cast<std::size_t>(profile_of_rank_.at(static_cast<std::size_t>(rank.value)))]
      .at(static_cast<std::size_t>(parameter));
}

RunResult::RunResult(std::string backend, ResultLayout layout, std::shared_ptr<std::byte> block)
    : backend_(std::move(backend)), layout_(std::move(layout)), block_(std::move(block)) {}

const RankRecord& RunResult::rank_record(Rank rank) const {
  return *record_at<const RankRecord>(layout_.rank_record(rank));
}

const StepRecord& RunResult::step_record(Rank rank, std::int64_t step) const {
  return *record_at<const StepRecord>(layout_.step_record(rank, step));
}

const ExecutedCollective* RunResult::executed(Rank rank) const {
  return record_at<const ExecutedCollective>(layout_.executed(rank));
}

HeldRows RunResult::held_rows(Rank rank, int parameter) const {
  return record_at<const HeldRows>(layout_.held_rows(rank))[parameter];
}

RankRecord& RunResult::rank_record(Rank rank) {
  return *record_at<RankRecord>(layout_.rank_record(rank));
}

StepRecord& RunResult::step_record(Rank rank, std::int64_t step) {
  return *record_at<StepRecord>(layout_.step_record(rank, step));
}

ExecutedCollective* RunResult::executed(Rank rank) {
  return record_at<ExecutedCollective>(layout_.executed(rank));
}

HeldRows& RunResult::held_rows(Rank rank, int parameter) {
  return record_at<HeldRows>(layout_.held_rows(rank))[parameter];
}

TensorView RunResult::view(std::int64_t offset, std::int64_t elems) const {
  return {layout_.dtype(), block_.get() + offset, elems};
}

TensorView RunResult::parameter(Rank rank, std::int64_t time, int parameter) const {
  return view(layout_.parameter(rank, time, parameter), layout_.shard_elems(rank, parameter));
}

TensorView RunResult::gradient(Rank rank, std::int64_t step, int parameter) const {
  return view(layout_.gradient(rank, step, parameter), layout_.shard_elems(rank, parameter));
}

TensorView RunResult::state(Rank rank, std::int64_t step, int state, int parameter) const {
  return view(layout_.state(rank, step, state, parameter), layout_.shard_elems(rank, parameter));
}

std::uint64_t collective_tag(const Plan& plan, std::int64_t plan_step, std::int64_t group_index,
                             std::int64_t elems_in, std::int64_t elems_out) {
  const Step& step = plan.steps.at(static_cast<std::size_t>(plan_step));
  HPSIM_CHECK(step.collective.has_value(), "step {} has no collective", plan_step);
  const Bucket& bucket = plan.buckets.at(static_cast<std::size_t>(step.bucket));
  const std::string& unit = plan.scenario.units.at(static_cast<std::size_t>(bucket.unit)).name;
  return fnv1a64(fmt::format("{} {} {} {} {} {} {} {} {}", plan_step, name_of(step.collective->op),
                             step.step, step.bucket, unit, group_index, elems_in, elems_out,
                             name_of(step.collective->dtype)));
}

TrainingState assemble_state(const Plan& plan, const RunResult& run, std::int64_t time) {
  const Mesh& mesh = plan.mesh();
  const int num_states = plan.scenario.training.optimizer.num_state_tensors();
  TrainingState assembled;
  assembled.state.resize(static_cast<std::size_t>(num_states));
  for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
    const PlannedParameter& parameter = plan.parameters[static_cast<std::size_t>(p)];
    const auto elems = static_cast<std::size_t>(num_elems(parameter.shape));
    std::vector<double> full(elems, 0.0);
    std::vector<std::vector<double>> full_states(static_cast<std::size_t>(num_states), full);
    // The shards of the first replica: all other coordinates are 0.
    Coordinate coordinate(static_cast<std::size_t>(mesh.num_dims()), 0);
    for (std::int64_t index = 0; index < parameter.shard_size(); ++index) {
      std::int64_t rest = index;
      for (std::size_t i = parameter.sharded_group.dims.size(); i-- > 0;) {
        const int dim = parameter.sharded_group.dims[i];
        coordinate[static_cast<std::size_t>(dim)] = rest % mesh.size(dim);
        rest /= mesh.size(dim);
      }
      const Rank rank = mesh.rank_at(coordinate);
      const std::int64_t first = parameter.rows_of(index).begin * row_elems(parameter.shape);
      copy_rows(run.parameter(rank, time, p), first, full);
      for (int s = 0; s < num_states && time > 0; ++s) {
        copy_rows(run.state(rank, time - 1, s, p), first, full_states[static_cast<std::size_t>(s)]);
      }
    }
    assembled.parameters.push_back(std::move(full));
    for (int s = 0; s < num_states; ++s) {
      assembled.state[static_cast<std::size_t>(s)].push_back(
          std::move(full_states[static_cast<std::size_t>(s)]));
    }
  }
  return assembled;
}

}  // namespace hpsim
