#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "scenario/fault_catalog.h"
#include "scenario/pattern_matcher.h"
#include "scenario/sections.h"

namespace hpsim {
namespace {

std::vector<Rank> read_ranks(const ObjectReader& fault, const std::optional<Mesh>& mesh) {
  Problems& problems = fault.problems();
  const auto listed = fault.integers("ranks");
  if (!listed) return {};
  if (listed->empty()) {
    problems.add(fault.where("ranks"), "no rank is listed", "list at least one, such as [0]");
  }
  if (!mesh) return {};
  const std::vector<JsonCursor> elements = fault.elements("ranks");
  const std::int64_t last = mesh->num_ranks() - 1;
  std::set<Rank> ranks;
  for (std::size_t i = 0; i < listed->size(); ++i) {
    const Rank rank{(*listed)[i]};
    if (rank.value > last) {
      problems.add(elements[i],
                   fmt::format("rank {} at position {} is outside 0..{}", rank.value, i, last),
                   fmt::format("the mesh has {} ranks", last + 1));
    } else if (!ranks.insert(rank).second) {
      problems.add(elements[i], fmt::format("rank {} is listed twice", rank.value),
                   "list each rank once");
    }
  }
  return {ranks.begin(), ranks.end()};
}

std::optional<int> read_unit(const ObjectReader& fault, const std::vector<UnitSpec>& units) {
  const auto name = fault.string("unit");
  if (!name || units.empty()) return std::nullopt;
  const auto found = std::find_if(units.begin(), units.end(),
                                  [&](const UnitSpec& unit) { return unit.name == *name; });
  if (found != units.end()) return static_cast<int>(found - units.begin());
  std::vector<std::string> names;
  for (const UnitSpec& unit : units)
    names.push_back(in_quotes(unit.name));
  fault.problems().add(fault.where("unit"),
                       fmt::format("no unit has the name {}", in_quotes(*name)),
                       fmt::format("the units are {}", fmt::join(names, ", ")));
  return std::nullopt;
}

/// Keys that aim other faults, not this one.
void refuse_foreign_aims(const FaultKind& kind, const ObjectReader& fault) {
  struct Aim {
    const char* key;
    bool is_taken;
  };
  const Aim aims[] = {{"params", kind.aims.params},
                      {"ranks", kind.aims.ranks},
                      {"unit", kind.aims.unit},
                      {"step", kind.aims.step},
                      {"seq", kind.aims.seq}};
  std::vector<std::string> taken;
  for (const Aim& aim : aims) {
    if (aim.is_taken) taken.push_back(in_quotes(aim.key));
  }
  for (const Aim& aim : aims) {
    if (aim.is_taken || !fault.has(aim.key)) continue;
    fault.problems().add(
        fault.where(aim.key), fmt::format("fault \"{}\" takes no \"{}\"", kind.name, aim.key),
        taken.empty()
            ? std::string("it takes no key but \"fault\"")
            : fmt::format("leave it out; what aims this fault is {}", fmt::join(taken, ", ")));
  }
}

class FaultReader {
 public:
  FaultReader(const ObjectReader& scenario, const std::optional<Mesh>& mesh, const Scenario& result)
      : mesh_(mesh),
        result_(result),
        num_steps_(scenario.object("training", "Training").integer("steps")),
        matcher_(names_of(result.parameters), "parameter", scenario.problems()) {}

  FaultSpec read(const ObjectReader& fault) {
    FaultSpec spec;
    spec.pointer = fault.at().pointer;
    spec.ranks = read_ranks(fault, mesh_);
    spec.unit = read_unit(fault, result_.units);
    spec.step = fault.integer("step");
    spec.seq = fault.integer("seq");
    if (spec.step && num_steps_ && *spec.step >= *num_steps_) {
      fault.problems().add(
          fault.where("step"),
          fmt::format("optimizer step {} is outside 0..{}", *spec.step, *num_steps_ - 1),
          fmt::format("steps are counted from 0, and \"training\" has {} of them", *num_steps_));
    }
    if (const auto pattern = fault.string("params"); pattern && !result_.parameters.empty())
      spec.params = matcher_.matches_of(*pattern, fault.where("params"));
    if (const auto name = fault.string("fault")) {
      spec.name = *name;
      const FaultKind& kind = fault_kind(*name);
      refuse_foreign_aims(kind, fault);
      if (kind.stage == FaultStage::Process && !fault.has("ranks")) {
        fault.problems().add(fault.at(), fmt::format("\"{}\" needs \"ranks\"", *name),
                             "list the ranks that do it, such as \"ranks\": [0]");
      }
    }
    return spec;
  }

 private:
  const std::optional<Mesh>& mesh_;
  const Scenario& result_;
  std::optional<std::int64_t> num_steps_;
  PatternMatcher matcher_;
};

/// Refuses faults that leave nobody to wait for the ranks that stall: no timeout would run out.
class StallCheck {
 public:
  explicit StallCheck(std::int64_t num_ranks) : num_ranks_(num_ranks) {}

  void add(const FaultSpec& spec, const ObjectReader& fault) {
    if (spec.name != "stall" || is_reported_) return;
    stalled_.insert(spec.ranks.begin(), spec.ranks.end());
    if (static_cast<std::int64_t>(stalled_.size()) < num_ranks_) return;
    is_reported_ = true;
    fault.problems().add(
        fault.where("ranks"),
        fmt::format("{} of {} ranks stall: none is left that would wait for them until the timeout",
                    stalled_.size(), num_ranks_),
        num_ranks_ == 1 ? "use a mesh of at least 2 ranks" : "leave one rank out");
  }

 private:
  std::int64_t num_ranks_;
  std::set<Rank> stalled_;
  bool is_reported_ = false;
};

}  // namespace

std::vector<FaultSpec> read_faults(const ObjectReader& scenario, const std::optional<Mesh>& mesh,
                                   const Scenario& result) {
  if (!scenario.has("faults")) return {};
  std::vector<FaultSpec> faults;
  FaultReader reader(scenario, mesh, result);
  std::optional<StallCheck> stalls;
  if (mesh) stalls.emplace(mesh->num_ranks());
  for (const JsonCursor& at : scenario.elements("faults")) {
    if (!at.is_object()) continue;
    const ObjectReader fault(at, "Fault", scenario.problems());
    faults.push_back(reader.read(fault));
    if (stalls) stalls->add(faults.back(), fault);
  }
  return faults;
}

}  // namespace hpsim
