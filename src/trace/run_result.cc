#include "trace/run_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "plan/rank_layout.h"
#include "scenario/precision.h"
#include "tensor/fill.h"
#include "trace/rank_mean.h"

namespace hpsim {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kIntBytes = 8;  ///< of an integer, and of a loss

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Copies a recorded shard into the full tensor.
void copy_boxes(const TensorView& view, const Shape& shape, const std::vector<Box>& boxes,
                std::vector<double>& full) {
  std::int64_t position = 0;
  for (const Box& box : boxes) {
    each_run(shape, box, [&](std::int64_t first, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i)
        full.at(static_cast<std::size_t>(first + i)) = view.at(position++);
    });
  }
  HPSIM_CHECK(position == view.elems, "{} elements of {} copied", position, view.elems);
}

/// Boxes of a parameter that a rank may hold: several if its cut is over several tensor dims.
std::int64_t max_boxes(const PlannedParameter& parameter) {
  return parameter.cut.dims.size() > 1 ? 2 * static_cast<std::int64_t>(parameter.shape.size()) - 1
                                       : 1;
}

bool has_room_for_events(const Plan& plan, const std::vector<Rank>& recording) {
  const auto num_steps = std::max<std::int64_t>(1, static_cast<std::int64_t>(plan.steps.size()));
  return static_cast<std::int64_t>(recording.size()) <= ResultLayout::kMostEvents / num_steps;
}

std::vector<Rank> all_ranks(const Mesh& mesh) {
  std::vector<Rank> ranks;
  for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank)
    ranks.push_back(Rank{rank});
  return ranks;
}

}  // namespace

double TensorView::at(std::int64_t i) const {
  HPSIM_CHECK(i >= 0 && i < elems, "element {} of {}", i, elems);
  if (dtype == DType::Float64) return reinterpret_cast<const double*>(data)[i];
  HPSIM_CHECK(dtype == DType::Float32, "no recorded tensor is {}", name_of(dtype));
  return static_cast<double>(reinterpret_cast<const float*>(data)[i]);
}

ResultLayout::ResultLayout(const Plan& plan, Recording what)
    : ResultLayout(plan, all_ranks(plan.mesh()), what) {}

ResultLayout::ResultLayout(const Plan& plan, std::vector<Rank> recording)
    : ResultLayout(plan, recording,
                   Recording{.tensors = false, .events = has_room_for_events(plan, recording)}) {}

ResultLayout::ResultLayout(const Plan& plan, std::vector<Rank> recording, Recording what)
    : dtype_(carrier_dtype(plan.scenario)),
      what_(what),
      recording_(std::move(recording)),
      is_of_all_ranks_(static_cast<std::int64_t>(recording_.size()) == plan.mesh().num_ranks()),
      num_steps_(plan.scenario.training.steps),
      num_passes_(num_steps_ * plan.scenario.training.micro_batches),
      num_states_(plan.scenario.training.optimizer.num_state_tensors()),
      num_events_(static_cast<std::int64_t>(plan.steps.size())) {
  std::sort(recording_.begin(), recording_.end());
  if (plan.scenario.model.is_elementwise()) {
    num_loss_terms_ = static_cast<std::int64_t>(plan.parameters.size());
  }
  for (const int module : experts_modules(plan.scenario.model))
    num_experts_.push_back(
        plan.scenario.model.modules[static_cast<std::size_t>(module)].num_experts);
  for (const Step& step : plan.steps)
    max_collectives_ += step.collective ? 1 : 0;
  // Ranks with planted faults may carry out more than is planned: all of it twice, and reductions
  // in every micro-batch.
  if (!plan.scenario.faults.empty())
    max_collectives_ = (2 + plan.scenario.training.micro_batches) * max_collectives_ + 1;
  for (const PlannedParameter& parameter : plan.parameters) {
    const auto num_dims = static_cast<std::int64_t>(parameter.shape.size());
    held_offset_.push_back(held_bytes_);
    held_bytes_ += (2 + 2 * num_dims * max_boxes(parameter)) * kIntBytes;
  }
  // Ranks with shards of the same sizes: one profile for all of them.
  std::map<std::vector<std::int64_t>, std::int64_t> profiles;
  for (const Rank rank : recording_) {
    const Coordinate coordinate = plan.mesh().coordinate_of(rank);
    std::vector<std::int64_t> elems;
    std::vector<std::int64_t> offsets;
    std::int64_t bytes = 0;
    for (const PlannedParameter& parameter : plan.parameters) {
      elems.push_back(held_shard(plan.mesh(), parameter, coordinate).elems);
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
    size_bytes_ = tensors(rank, 0);
    if (what_.tensors) {
      // Parameters at times 0..steps, then gradients and state tensors of each step.
      const std::int64_t num_sets = num_steps_ + 1 + num_steps_ * (1 + num_states_);
      size_bytes_ += num_sets * set_bytes_[static_cast<std::size_t>(it->second)];
    }
  }
}

std::size_t ResultLayout::slot_of(Rank rank) const {
  if (is_of_all_ranks_) return static_cast<std::size_t>(rank.value);
  const auto it = std::lower_bound(recording_.begin(), recording_.end(), rank);
  HPSIM_CHECK(it != recording_.end() && *it == rank, "rank {} records nothing", rank.value);
  return static_cast<std::size_t>(it - recording_.begin());
}

std::int64_t ResultLayout::rank_record(Rank rank) const {
  return rank_begin_.at(slot_of(rank));
}

std::int64_t ResultLayout::step_record(Rank rank, std::int64_t step) const {
  return rank_record(rank) + aligned(sizeof(RankRecord)) + step * aligned(sizeof(StepRecord));
}

std::int64_t ResultLayout::losses(Rank rank, std::int64_t step) const {
  return step_record(rank, num_steps_) + step * aligned(num_loss_terms_ * kIntBytes);
}

std::int64_t ResultLayout::routed(Rank rank, std::int64_t pass, int index) const {
  std::int64_t pass_bytes = 0;
  std::int64_t offset = 0;
  for (int i = 0; i < static_cast<int>(num_experts_.size()); ++i) {
    if (i == index) offset = pass_bytes;
    pass_bytes += aligned(num_experts_[static_cast<std::size_t>(i)] * kIntBytes);
  }
  return losses(rank, num_steps_) + pass * pass_bytes + offset;
}

std::int64_t ResultLayout::executed(Rank rank) const {
  return routed(rank, num_passes_, 0);
}

std::int64_t ResultLayout::end_of_executed(Rank rank) const {
  return executed(rank) +
         aligned(max_collectives_ * static_cast<std::int64_t>(sizeof(ExecutedCollective)));
}

std::int64_t ResultLayout::memory_events(Rank rank) const {
  HPSIM_CHECK(what_.events, "this run records no memory of steps");
  return end_of_executed(rank);
}

std::int64_t ResultLayout::end_of_events(Rank rank) const {
  const std::int64_t bytes = num_events_ * static_cast<std::int64_t>(sizeof(MemoryEvent));
  return end_of_executed(rank) + (what_.events ? aligned(bytes) : 0);
}

std::int64_t ResultLayout::held_boxes(Rank rank, int parameter) const {
  return end_of_events(rank) + held_offset_.at(static_cast<std::size_t>(parameter));
}

std::int64_t ResultLayout::tensors(Rank rank, std::int64_t set) const {
  const auto profile = static_cast<std::size_t>(profile_of_rank_.at(slot_of(rank)));
  return end_of_events(rank) + aligned(held_bytes_) + set * set_bytes_.at(profile);
}

const std::vector<std::int64_t>& ResultLayout::offsets_of(Rank rank) const {
  HPSIM_CHECK(what_.tensors, "this run records no tensors");
  return offsets_[static_cast<std::size_t>(profile_of_rank_.at(slot_of(rank)))];
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
  return elems_[static_cast<std::size_t>(profile_of_rank_.at(slot_of(rank)))].at(
      static_cast<std::size_t>(parameter));
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

std::span<const MemoryEvent> RunResult::memory_events(Rank rank) const {
  return {record_at<const MemoryEvent>(layout_.memory_events(rank)),
          static_cast<std::size_t>(layout_.num_events())};
}

std::span<MemoryEvent> RunResult::memory_events(Rank rank) {
  return {record_at<MemoryEvent>(layout_.memory_events(rank)),
          static_cast<std::size_t>(layout_.num_events())};
}

const double* RunResult::losses(Rank rank, std::int64_t step) const {
  return record_at<const double>(layout_.losses(rank, step));
}

double* RunResult::losses(Rank rank, std::int64_t step) {
  return record_at<double>(layout_.losses(rank, step));
}

const std::int64_t* RunResult::routed(Rank rank, std::int64_t pass, int index) const {
  return record_at<const std::int64_t>(layout_.routed(rank, pass, index));
}

std::int64_t* RunResult::routed(Rank rank, std::int64_t pass, int index) {
  return record_at<std::int64_t>(layout_.routed(rank, pass, index));
}

// A record of boxes: their number and that of their dims, then offset and shape of each.
std::vector<Box> RunResult::held_boxes(Rank rank, int parameter) const {
  const auto* next = record_at<const std::int64_t>(layout_.held_boxes(rank, parameter));
  std::vector<Box> boxes(static_cast<std::size_t>(*next++));
  const std::int64_t num_dims = *next++;
  for (Box& box : boxes) {
    box.offset.assign(next, next + num_dims);
    next += num_dims;
    box.shape.assign(next, next + num_dims);
    next += num_dims;
  }
  return boxes;
}

void RunResult::record_held(Rank rank, int parameter, const std::vector<Box>& boxes) {
  auto* next = record_at<std::int64_t>(layout_.held_boxes(rank, parameter));
  *next++ = static_cast<std::int64_t>(boxes.size());
  *next++ = static_cast<std::int64_t>(boxes.at(0).offset.size());
  for (const Box& box : boxes) {
    next = std::copy(box.offset.begin(), box.offset.end(), next);
    next = std::copy(box.shape.begin(), box.shape.end(), next);
  }
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
  // Members of one group may send and get different numbers of positions.
  const bool is_routed = step.collective->is_routed;
  return fnv1a64(fmt::format("{} {} {} {} {} {} {} {} {} {}", plan_step,
                             name_of(step.collective->op), step.step, step.micro_batch, step.bucket,
                             payload_text(plan, step), group_index, is_routed ? 0 : elems_in,
                             is_routed ? 0 : elems_out, name_of(step.collective->dtype)));
}

Routing run_routing(const Plan& plan, const RunResult& run) {
  if (!run.has_numbers()) return balanced_routing(plan);
  return [&plan, &run](const Coordinate& coordinate, std::int64_t pass, int index) {
    const int module = experts_modules(plan.scenario.model).at(static_cast<std::size_t>(index));
    const std::int64_t* const counts = run.routed(plan.mesh().rank_at(coordinate), pass, index);
    const ModuleSpec& spec = plan.scenario.model.modules[static_cast<std::size_t>(module)];
    return RoutedCounts(counts, counts + spec.num_experts);
  };
}

namespace {

bool has_equal_values(const TensorView& a, const TensorView& b) {
  if (a.elems != b.elems) return false;
  for (std::int64_t i = 0; i < a.elems; ++i) {
    if (a.at(i) != b.at(i)) return false;
  }
  return true;
}

bool has_equal_collectives(const RunResult& a, const RunResult& b, Rank rank) {
  const std::int64_t count = a.rank_record(rank).num_collectives;
  if (b.rank_record(rank).num_collectives != count) return false;
  return std::equal(a.executed(rank), a.executed(rank) + count, b.executed(rank));
}

bool has_equal_records(const RunResult& a, const RunResult& b, Rank rank) {
  const RankRecord& x = a.rank_record(rank);
  const RankRecord& y = b.rank_record(rank);
  if (x.pad_allocations != y.pad_allocations || x.pad_copies != y.pad_copies ||
      x.padding_nonzero != y.padding_nonzero || x.wire_foreign != y.wire_foreign)
    return false;
  const auto of_a = a.memory_events(rank);
  const auto of_b = b.memory_events(rank);
  return std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end());
}

bool has_equal_step(const Plan& plan, const RunResult& a, const RunResult& b, Rank rank,
                    std::int64_t step) {
  const StepRecord& x = a.step_record(rank, step);
  const StepRecord& y = b.step_record(rank, step);
  if (x.norm_power != y.norm_power || x.clip_norm != y.clip_norm || x.inexact != y.inexact)
    return false;
  const std::int64_t terms = a.layout().num_loss_terms();
  if (!std::equal(a.losses(rank, step), a.losses(rank, step) + terms, b.losses(rank, step)))
    return false;
  const int num_states = plan.scenario.training.optimizer.num_state_tensors();
  for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
    if (!has_equal_values(a.parameter(rank, step + 1, p), b.parameter(rank, step + 1, p)) ||
        !has_equal_values(a.gradient(rank, step, p), b.gradient(rank, step, p)))
      return false;
    for (int s = 0; s < num_states; ++s) {
      if (!has_equal_values(a.state(rank, step, s, p), b.state(rank, step, s, p))) return false;
    }
  }
  return true;
}

}  // namespace

bool recorded_alike(const Plan& plan, const RunResult& a, const RunResult& b) {
  for (std::int64_t r = 0; r < plan.mesh().num_ranks(); ++r) {
    const Rank rank{r};
    if (!has_equal_collectives(a, b, rank) || !has_equal_records(a, b, rank)) return false;
    for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
      if (!has_equal_values(a.parameter(rank, 0, p), b.parameter(rank, 0, p))) return false;
    }
    for (std::int64_t step = 0; step < plan.scenario.training.steps; ++step) {
      if (!has_equal_step(plan, a, b, rank, step)) return false;
    }
  }
  return true;
}

TrainingState assemble_state(const Plan& plan, const RunResult& run, std::int64_t time) {
  const Mesh& mesh = plan.mesh();
  const auto num_states =
      static_cast<std::size_t>(plan.scenario.training.optimizer.num_state_tensors());
  TrainingState assembled;
  assembled.state.resize(num_states);
  assembled.scatter.resize(num_states);
  for (int p = 0; p < static_cast<int>(plan.parameters.size()); ++p) {
    const PlannedParameter& parameter = plan.parameters[static_cast<std::size_t>(p)];
    const bool is_mean = time > 0 && !plan.averaged_dims(p).empty();
    const std::vector<double> zeros(static_cast<std::size_t>(num_elems(parameter.shape)), 0.0);
    assembled.parameters.push_back(zeros);
    for (std::size_t s = 0; s < num_states; ++s) {
      assembled.state[s].push_back(zeros);
      assembled.scatter[s].push_back(is_mean ? zeros : std::vector<double>());
    }
    // The shards of the first replica: all other coordinates are 0.
    Coordinate coordinate(static_cast<std::size_t>(mesh.num_dims()), 0);
    const MeshDims dims = parameter.cut_dims();
    do {
      const Rank rank = mesh.rank_at(coordinate);
      const std::vector<Box> boxes = held_shard(mesh, parameter, coordinate).boxes;
      const auto copy = [&](const TensorView& view, std::vector<double>& full) {
        copy_boxes(view, parameter.shape, boxes, full);
      };
      copy(run.parameter(rank, time, p), assembled.parameters.back());
      for (std::size_t s = 0; s < num_states && time > 0; ++s) {
        const auto state_of = [&](Rank holder) {
          return run.state(holder, time - 1, static_cast<int>(s), p);
        };
        if (!is_mean) {
          copy(state_of(rank), assembled.state[s].back());
          continue;
        }
        const RankMean mean = own_mean(plan, p, rank, state_of);
        copy(as_view(mean.mean), assembled.state[s].back());
        copy(as_view(mean.scatter), assembled.scatter[s].back());
      }
    } while (advance(mesh, dims, coordinate));
  }
  return assembled;
}

std::vector<TrainingState> states_before_steps(const Plan& plan, const RunResult& run) {
  std::vector<TrainingState> states;
  for (std::int64_t step = 0; step < plan.scenario.training.steps; ++step)
    states.push_back(assemble_state(plan, run, step));
  return states;
}

}  // namespace hpsim
