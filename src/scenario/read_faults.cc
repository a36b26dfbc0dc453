#include <fmt/format.h>

#include <set>

#include "base/check.h"
#include "scenario/sections.h"

namespace hpsim {
namespace {

using Kind = FaultSpec::Kind;

Kind kind_of(std::string_view name) {
  for (const Kind kind : {Kind::Kill, Kind::Throw, Kind::Stall}) {
    if (name == name_of(kind)) return kind;
  }
  HPSIM_CHECK(false, "no fault is called {}", name);
  return Kind::Kill;
}

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

FaultSpec read_fault(const ObjectReader& fault, const std::string& pointer,
                     const std::optional<Mesh>& mesh, std::optional<std::int64_t> num_steps) {
  Problems& problems = fault.problems();
  FaultSpec spec;
  spec.pointer = pointer;
  spec.ranks = read_ranks(fault, mesh);
  spec.step = fault.integer("step");
  spec.seq = fault.integer("seq");
  if (spec.step && num_steps && *spec.step >= *num_steps) {
    problems.add(
        fault.where("step"),
        fmt::format("optimizer step {} is outside 0..{}", *spec.step, *num_steps - 1),
        fmt::format("steps are counted from 0, and \"training\" has {} of them", *num_steps));
  }
  const auto name = fault.string("fault");
  if (!name) return spec;
  spec.kind = kind_of(*name);
  if (fault.has("params")) {
    problems.add(fault.where("params"),
                 fmt::format("\"{}\" befalls ranks, and takes no \"params\"", *name),
                 "leave \"params\" out");
  }
  return spec;
}

/// Refuses faults that leave nobody to wait for the ranks that stall: no timeout would run out.
class StallCheck {
 public:
  explicit StallCheck(std::int64_t num_ranks) : num_ranks_(num_ranks) {}

  void add(const FaultSpec& spec, const ObjectReader& fault) {
    if (spec.kind != Kind::Stall || is_reported_) return;
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

std::vector<FaultSpec> read_faults(const ObjectReader& scenario, const std::optional<Mesh>& mesh) {
  const std::optional<std::int64_t> num_steps =
      scenario.object("training", "Training").integer("steps");
  std::vector<FaultSpec> faults;
  std::optional<StallCheck> stalls;
  if (mesh) stalls.emplace(mesh->num_ranks());
  for (const JsonCursor& at : scenario.elements("faults")) {
    if (!at.value->is_object()) continue;
    const ObjectReader fault(at, "Fault", scenario.problems());
    faults.push_back(read_fault(fault, at.pointer, mesh, num_steps));
    if (stalls) stalls->add(faults.back(), fault);
  }
  return faults;
}

}  // namespace hpsim
