#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "scenario/gradients.h"
#include "scenario/inactive.h"
#include "scenario/module_layouts.h"

namespace hpsim {
namespace {

using Numbers = std::vector<std::int64_t>;

/// Micro-batches up to one that reduces gradients, and from the one after the last that did.
struct Period {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

std::vector<Period> periods_of(const TrainingSpec& training) {
  std::vector<Period> periods;
  std::int64_t first = 0;
  for (std::int64_t m = 0; m < training.micro_batches; ++m) {
    if (!training.syncs_gradients(m)) continue;
    periods.push_back({first, m});
    first = m + 1;
  }
  return periods;
}

class UnusedCheck {
 public:
  UnusedCheck(const Scenario& scenario, const std::vector<InactivePart>& parts, Problems& problems)
      : scenario_(scenario),
        parts_(parts),
        problems_(problems),
        periods_(periods_of(scenario.training)),
        parts_around_(parameters_of_modules(scenario).size()) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (int m = parts[i].spec.first; m < parts[i].spec.end; ++m)
        parts_around_[static_cast<std::size_t>(m)].push_back(i);
    }
  }

  void check() {
    const std::vector<std::vector<int>> modules = modules_of_parameters(scenario_);
    for (std::size_t p = 0; p < modules.size(); ++p) {
      if (may_be_unused(modules[p])) check_parameter(static_cast<int>(p), modules[p]);
    }
    for (const auto& [part, found] : found_)
      tell(parts_[part], found);
  }

 private:
  /// The first parameter that a part leaves unused on some ranks, and how many others.
  struct Found {
    int parameter = 0;
    std::int64_t step = 0;
    Period period;
    Numbers unused;  ///< data ranks
    std::int64_t num_others = 0;
  };

  /// Whether parts leave out each of the modules that compute with a parameter.
  [[nodiscard]] bool may_be_unused(const std::vector<int>& modules) const {
    return std::none_of(modules.begin(), modules.end(),
                        [&](int m) { return parts_around_[static_cast<std::size_t>(m)].empty(); });
  }

  void check_parameter(int p, const std::vector<int>& modules) {
    const std::vector<std::size_t>& around = parts_around_[static_cast<std::size_t>(modules[0])];
    for (const auto& [step, indices] : periods_left_out(around)) {
      if (!is_trained(scenario_, p, step)) continue;
      for (const std::size_t index : indices) {
        const Period& period = periods_[index];
        Numbers unused = unused_on(modules, step, period);
        const auto num_unused = static_cast<std::int64_t>(unused.size());
        if (num_unused == 0 || num_unused == scenario_.num_data_ranks()) continue;
        const auto [entry, is_new] =
            found_.try_emplace(around.front(), Found{p, step, period, std::move(unused)});
        if (!is_new) ++entry->second.num_others;
        return;
      }
    }
  }

  /// By step, the periods in which one of the parts is left out.
  [[nodiscard]] std::map<std::int64_t, std::vector<std::size_t>> periods_left_out(
      const std::vector<std::size_t>& parts) const {
    std::map<std::int64_t, std::vector<std::size_t>> periods;
    for (const std::size_t i : parts) {
      for (const std::int64_t step : parts_[i].spec.steps) {
        std::vector<std::size_t>& of_step = periods[step];
        for (const std::int64_t pass : parts_[i].spec.micro_batches) {
          const std::size_t period = period_of(pass);
          if (of_step.empty() || of_step.back() != period) of_step.push_back(period);
        }
      }
    }
    for (auto& [step, of_step] : periods) {
      if (parts.size() == 1) continue;
      std::sort(of_step.begin(), of_step.end());
      of_step.erase(std::unique(of_step.begin(), of_step.end()), of_step.end());
    }
    return periods;
  }

  [[nodiscard]] std::size_t period_of(std::int64_t pass) const {
    const auto found = std::lower_bound(
        periods_.begin(), periods_.end(), pass,
        [](const Period& period, std::int64_t other) { return period.last < other; });
    return static_cast<std::size_t>(found - periods_.begin());
  }

  /// Data ranks on which no module of a parameter is active in any pass of the period.
  [[nodiscard]] Numbers unused_on(const std::vector<int>& modules, std::int64_t step,
                                  const Period& period) const {
    Numbers unused;
    bool is_first = true;
    for (std::int64_t pass = period.first; pass <= period.last; ++pass) {
      for (const int m : modules) {
        const Numbers out = left_out_by(m, step, pass);
        if (is_first) {
          unused = out;
          is_first = false;
        } else {
          Numbers both;
          std::set_intersection(unused.begin(), unused.end(), out.begin(), out.end(),
                                std::back_inserter(both));
          unused = std::move(both);
        }
        if (unused.empty()) return unused;
      }
    }
    return unused;
  }

  [[nodiscard]] Numbers left_out_by(int m, std::int64_t step, std::int64_t pass) const {
    Numbers out;
    for (const std::size_t i : parts_around_[static_cast<std::size_t>(m)]) {
      const InactiveSpec& spec = parts_[i].spec;
      if (!spec.lists_pass(step, pass)) continue;
      out.insert(out.end(), spec.data_ranks.begin(), spec.data_ranks.end());
    }
    std::sort(out.begin(), out.end());  // no rank comes twice: parts do not overlap
    return out;
  }

  /// `ranks 0, 1, 4 and 5 more` of the mesh, of the data ranks that are `listed`, or that are not.
  [[nodiscard]] std::string ranks(const Numbers& listed, bool are_listed) const {
    constexpr std::size_t kMost = 9;
    Numbers shown;
    const std::int64_t num_data_ranks = scenario_.num_data_ranks();
    const auto num_listed = static_cast<std::int64_t>(listed.size());
    const std::int64_t count = (are_listed ? num_listed : num_data_ranks - num_listed) *
                               (scenario_.mesh.num_ranks() / num_data_ranks);
    std::size_t num_found = 0;
    for (std::int64_t rank = 0; rank < num_data_ranks && num_found < kMost; ++rank) {
      if (std::binary_search(listed.begin(), listed.end(), rank) != are_listed) continue;
      ++num_found;
      const Numbers alike = ranks_of_data_rank(scenario_, rank, kMost);
      shown.insert(shown.end(), alike.begin(), alike.end());
    }
    std::sort(shown.begin(), shown.end());
    return fmt::format("rank{} {}", count == 1 ? "" : "s", first_of(shown, count));
  }

  void tell(const InactivePart& part, const Found& found) {
    const auto p = static_cast<std::size_t>(found.parameter);
    std::string name = in_quotes(scenario_.parameters[p].name);
    if (found.num_others > 0) {
      name += fmt::format(" and {} other parameter{}", found.num_others,
                          found.num_others == 1 ? "" : "s");
    }
    std::string when = fmt::format("step {}", found.step);
    if (periods_.size() > 1) {
      when += found.period.last > found.period.first
                  ? fmt::format(", micro-batches {} to {}", found.period.first, found.period.last)
                  : fmt::format(", micro-batch {}", found.period.last);
    }
    problems_.add(
        part.ranks,
        fmt::format("in {}, {} get{} no gradient on {}, but one on {}: the ranks would reduce "
                    "buffers of different sizes, and hang",
                    when, name, found.num_others > 0 ? "" : "s", ranks(found.unused, true),
                    ranks(found.unused, false)),
        "write \"training\": {\"reduce_unused\": true}: gradients of zeros are then reduced; or "
        "let all ranks leave the part out, or none");
  }

  const Scenario& scenario_;
  const std::vector<InactivePart>& parts_;
  Problems& problems_;
  std::vector<Period> periods_;
  std::vector<std::vector<std::size_t>> parts_around_;  ///< per module, or elementwise parameter
  std::map<std::size_t, Found> found_;                  ///< by part
};

/// In every optimizer step.
void require_some_gradient(const Scenario& scenario, const std::vector<InactivePart>& parts,
                           Problems& problems) {
  const auto num_parameters = static_cast<int>(scenario.parameters.size());
  for (std::int64_t step = 0; step < scenario.training.steps; ++step) {
    int p = 0;
    while (p < num_parameters && !has_gradient(scenario, p, step))
      ++p;
    if (p < num_parameters) continue;
    const auto left_out = std::find_if(parts.begin(), parts.end(), [&](const InactivePart& part) {
      return std::binary_search(part.spec.steps.begin(), part.spec.steps.end(), step);
    });
    if (left_out == parts.end()) continue;  // all are frozen, which is told
    return problems.add(
        left_out->ranks,
        fmt::format("in step {} none of {} parameters gets a gradient: backward has "
                    "nothing to do; PyTorch refuses it too",
                    step, num_parameters),
        "leave fewer parts out, or write \"training\": {\"reduce_unused\": true}");
  }
}

}  // namespace

void check_unused(const Scenario& scenario, const std::vector<InactivePart>& parts,
                  Problems& problems) {
  if (parts.empty() || scenario.training.reduce_unused) return;
  UnusedCheck(scenario, parts, problems).check();
  if (problems.empty()) require_some_gradient(scenario, parts, problems);
}

}  // namespace hpsim
