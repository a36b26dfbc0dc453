#include "plan/prefetch_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "plan/recomputation.h"

namespace hpsim {
namespace {

std::vector<std::size_t> places_in(const std::vector<int>& units, std::size_t num_units) {
  std::vector<std::size_t> places(num_units, 0);
  for (std::size_t place = 0; place < units.size(); ++place)
    places[static_cast<std::size_t>(units[place])] = place;
  return places;
}

}  // namespace

PrefetchReplay::PrefetchReplay(const Plan& plan)
    : plan_(plan), buckets_of_unit_(plan.scenario.units.size()) {
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    states_.push_back(bucket.is_unsharded() ? State::Sharded : State::Whole);
    buckets_of_unit_.at(static_cast<std::size_t>(bucket.unit)).push_back(static_cast<int>(b));
  }
  const std::size_t num_units = plan.scenario.units.size();
  for (int unit = 0; unit < static_cast<int>(num_units); ++unit) {
    if (!unit_at(unit).is_ignored) forward_units_.push_back(unit);
  }
  backward_units_ = forward_units_;
  std::stable_sort(forward_units_.begin(), forward_units_.end(), [&](int a, int b) {
    const auto key = [&](const UnitSpec& unit) {
      return std::tuple(!unit.is_root, unit.first, -unit.end);
    };
    return key(unit_at(a)) < key(unit_at(b));
  });
  std::stable_sort(backward_units_.begin(), backward_units_.end(), [&](int a, int b) {
    const auto key = [&](const UnitSpec& unit) {
      return std::tuple(!unit.is_root, -unit.end, unit.first);
    };
    return key(unit_at(a)) < key(unit_at(b));
  });
  forward_places_ = places_in(forward_units_, num_units);
  backward_places_ = places_in(backward_units_, num_units);
}

std::optional<std::string> PrefetchReplay::take(const Step& step) {
  enter(step);
  if (step.kind == StepKind::Forward || step.kind == StepKind::Backward) return compute(step);
  if (step.bucket >= 0) follow(step);
  return std::nullopt;
}

void PrefetchReplay::enter(const Step& step) {
  const Pass pass{step.step, step.micro_batch, step.phase};
  if (std::exchange(pass_, pass) == pass) return;
  begun_.clear();
  gathered_.clear();
  num_looked_at_ = 0;
}

void PrefetchReplay::follow(const Step& step) {
  State& state = states_.at(static_cast<std::size_t>(step.bucket));
  const int unit = plan_.bucket(step.bucket).unit;
  const bool gathers = step.kind == StepKind::Unshard || step.kind == StepKind::WaitUnshard;
  if (!gathers && step.kind != StepKind::Reshard) return;
  begun_.erase({place_of(unit), step.bucket});
  if (!gathers) {
    state = State::Sharded;
  } else if (step.is_async) {
    state = State::Begun;
    begun_.emplace(place_of(unit), step.bucket);
  } else {
    state = State::Whole;
    // A cast alone has nothing to overlap with, and is done ahead of time.
    if (step.collective || step.kind == StepKind::WaitUnshard) gathered_.push_back(unit);
  }
}

bool PrefetchReplay::is_sharded(int unit) const {
  const std::vector<int>& buckets = buckets_of_unit_[static_cast<std::size_t>(unit)];
  return std::any_of(buckets.begin(), buckets.end(),
                     [&](int b) { return states_[static_cast<std::size_t>(b)] == State::Sharded; });
}

std::size_t PrefetchReplay::num_asked(int module) const {
  const bool is_forward = pass_.phase == Phase::Forward;
  const auto next = std::partition_point(units().begin(), units().end(), [&](int at) {
    const UnitSpec& unit = unit_at(at);
    return unit.is_root || (is_forward ? unit.first <= module : unit.end > module);
  });
  return static_cast<std::size_t>(next - units().begin());
}

std::optional<std::string> PrefetchReplay::compute(const Step& step) {
  const Scenario& scenario = plan_.scenario;
  int last = step.module;
  const int part = step.is_recomputed ? recomputed_part_of(scenario, step.module) : -1;
  // The units that end with the part are asked for before it is computed again.
  if (part >= 0) last = scenario.training.recomputed[static_cast<std::size_t>(part)].end - 1;
  const std::size_t asked = num_asked(last);
  const bool is_forward = pass_.phase == Phase::Forward;
  const FullyShardSpec& spec = scenario.fully_shard;
  const std::int64_t ahead = is_forward ? spec.forward_prefetch : spec.backward_prefetch;
  const auto fault = [&](int unit, const char* what) {
    return fmt::format("the unshard of unit \"{}\" {}; {}_prefetch is {}", unit_at(unit).name, what,
                       is_forward ? "forward" : "backward", ahead);
  };

  for (const int unit : std::exchange(gathered_, {})) {
    const bool computes = unit_at(unit).first <= step.module && step.module < unit_at(unit).end;
    if (!computes && place_of(unit) >= asked) return fault(unit, "is done before it is needed");
  }
  // Units are begun after the unshard of another one: before the first, none is.
  const std::size_t all = asked == 0 ? 0 : units().size();
  const std::size_t end = static_cast<std::int64_t>(all - asked) > ahead
                              ? asked + static_cast<std::size_t>(ahead)
                              : all;
  for (std::size_t place = std::max(asked, num_looked_at_); place < end; ++place) {
    num_looked_at_ = place + 1;
    if (is_sharded(units()[place])) return fault(units()[place], "is not begun");
  }
  if (!begun_.empty() && begun_.rbegin()->first >= end)
    return fault(units()[begun_.rbegin()->first], "is begun already");
  return std::nullopt;
}

}  // namespace hpsim
