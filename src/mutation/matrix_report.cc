#include "mutation/matrix_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/units.h"
#include "report/table.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> texts_of(const std::vector<CaughtAs>& found) {
  std::vector<std::string> texts;
  for (const CaughtAs& each : found)
    texts.push_back(to_string(each));
  return texts;
}

/// "gradient-parity GRAD_VALUE, ledger MEM_ESTIMATE"; how the run ended if that is all there is.
std::string text_of(const std::vector<CaughtAs>& found, const std::string& failure) {
  if (found.empty()) return failure.empty() ? "nothing found" : failure;
  return fmt::format("{}", fmt::join(texts_of(found), ", "));
}

/// Calls f(fault, scenario, trial) for trials of this outcome.
template <class F>
void each_trial(const KillMatrix& matrix, TrialOutcome outcome, const F& f) {
  for (std::size_t fault = 0; fault < matrix.faults.size(); ++fault) {
    for (const ScenarioTrials& scenario : matrix.scenarios) {
      const Trial& trial = scenario.trials.at(fault);
      if (trial.outcome == outcome) f(matrix.faults[fault], scenario.scenario, trial);
    }
  }
}

std::string trials_text(const KillMatrix& matrix, TrialOutcome outcome, const std::string& title,
                        bool color) {
  Table table({{"fault"}, {"scenario"}, {"found", false, true}});
  bool is_empty = true;
  each_trial(
      matrix, outcome,
      [&](const std::string& fault, const std::string& scenario, const Trial& trial) {
        table.add_row({{fault, Ink::Red}, {scenario}, {text_of(trial.found, trial.failure)}});
        is_empty = false;
      });
  if (is_empty) return {};
  return fmt::format("\n{}\n{}", painted(title, Ink::Bold, color), table.text(2, 160, color));
}

std::string noise_text(const KillMatrix& matrix, bool color) {
  std::string text;
  for (const ScenarioTrials& scenario : matrix.scenarios) {
    if (scenario.noise.empty() && scenario.noise_failure.empty()) continue;
    text += fmt::format("  {}: {}\n", scenario.scenario,
                        text_of(scenario.noise, scenario.noise_failure));
  }
  if (text.empty()) return {};
  return fmt::format("\n{}\n{}", painted("reports without a fault", Ink::Bold, color), text);
}

double score_of(const KillMatrix::Counts& counts) {
  return counts.places == 0 ? 1.0
                            : static_cast<double>(counts.own) / static_cast<double>(counts.places);
}

Json trials_json(const KillMatrix& matrix, TrialOutcome outcome) {
  Json array = Json::array();
  each_trial(matrix, outcome,
             [&](const std::string& fault, const std::string& scenario, const Trial& trial) {
               Json entry = {{"fault", fault}, {"scenario", scenario}};
               entry["found"] = texts_of(trial.found);
               if (!trial.failure.empty()) entry["failure"] = trial.failure;
               array.push_back(std::move(entry));
             });
  return array;
}

std::set<std::string> words_of(const Json& text) {
  std::istringstream stream(text.get<std::string>());
  std::set<std::string> words;
  for (std::string word; stream >> word;)
    words.insert(word);
  return words;
}

void fault_differences(const Json& golden, const Json& got, std::vector<std::string>& texts) {
  for (const auto& [fault, counts] : golden.items()) {
    if (!got.contains(fault)) {
      texts.push_back(fault + ": there is no such fault any more");
      continue;
    }
    for (const auto& [key, count] : counts.items()) {
      const Json& other = got.at(fault).at(key);
      if (other != count)
        texts.push_back(fmt::format("{}: {} {} → {}", fault, key, count.dump(), other.dump()));
    }
  }
  for (const auto& [fault, counts] : got.items()) {
    if (!golden.contains(fault)) texts.push_back(fault + ": the golden does not know this fault");
  }
}

void scenario_differences(const Json& golden, const Json& got, std::vector<std::string>& texts) {
  for (const auto& [scenario, faults] : golden.items()) {
    if (!got.contains(scenario)) {
      texts.push_back(scenario + ": not among the scenarios any more");
      continue;
    }
    const std::set<std::string> before = words_of(faults);
    const std::set<std::string> now = words_of(got.at(scenario));
    for (const std::string& fault : before) {
      if (!now.contains(fault))
        texts.push_back(fmt::format("{}: {} has no place any more", scenario, fault));
    }
    for (const std::string& fault : now) {
      if (!before.contains(fault))
        texts.push_back(fmt::format("{}: {} has a place now", scenario, fault));
    }
  }
  for (const auto& [scenario, faults] : got.items()) {
    if (!golden.contains(scenario))
      texts.push_back(scenario + ": the golden does not know this scenario");
  }
}

}  // namespace

std::string matrix_text(const KillMatrix& matrix, bool color) {
  Table table({{"fault"},
               {"stage"},
               {"places", true},
               {"own", true},
               {"other", true},
               {"survived", true},
               {"its own checks", false, true}});
  for (std::size_t fault = 0; fault < matrix.faults.size(); ++fault) {
    const KillMatrix::Counts counts = matrix.counts_of(fault);
    const FaultKind& kind = fault_kind(matrix.faults[fault]);
    const bool is_killed = counts.own == counts.places;
    const auto number = [&](std::int64_t count, Ink ink) {
      return Cell{format_count(count), count > 0 ? ink : Ink::Dim};
    };
    table.add_row({{matrix.faults[fault], counts.places == 0 ? Ink::Dim
                                          : is_killed        ? Ink::Green
                                                             : Ink::Red},
                   {std::string(name_of(kind.stage))},
                   number(counts.places, Ink::Plain),
                   number(counts.own, Ink::Plain),
                   number(counts.other, Ink::Red),
                   number(counts.survived, Ink::Red),
                   {fmt::format("{}", fmt::join(texts_of(kind.caught_by), ", "))}});
  }
  const KillMatrix::Counts total = matrix.total();
  std::string text = table.text(0, 160, color);
  text += trials_text(matrix, TrialOutcome::Survived, "survived", color);
  text += trials_text(matrix, TrialOutcome::Other, "found by other checks only", color);
  text += noise_text(matrix, color);
  text += fmt::format("\n{} of {} planted faults found by their own check ({:.1f} %), {} in {}\n",
                      format_count(total.own), format_count(total.places), 100 * score_of(total),
                      counted(std::ssize(matrix.faults), "fault"),
                      counted(std::ssize(matrix.scenarios), "scenario"));
  return text;
}

Json matrix_json(const KillMatrix& matrix) {
  Json faults = Json::object();
  for (std::size_t fault = 0; fault < matrix.faults.size(); ++fault) {
    const KillMatrix::Counts counts = matrix.counts_of(fault);
    faults[matrix.faults[fault]] = {{"places", counts.places},
                                    {"own", counts.own},
                                    {"other", counts.other},
                                    {"survived", counts.survived}};
  }
  Json scenarios = Json::object();
  Json noise = Json::array();
  for (const ScenarioTrials& scenario : matrix.scenarios) {
    std::vector<std::string> placed;
    for (std::size_t fault = 0; fault < matrix.faults.size(); ++fault) {
      if (scenario.trials.at(fault).outcome != TrialOutcome::NoPlace)
        placed.push_back(matrix.faults[fault]);
    }
    scenarios[scenario.scenario] = fmt::format("{}", fmt::join(placed, " "));
    if (scenario.noise.empty() && scenario.noise_failure.empty()) continue;
    Json entry = {{"scenario", scenario.scenario}};
    entry["found"] = texts_of(scenario.noise);
    if (!scenario.noise_failure.empty()) entry["failure"] = scenario.noise_failure;
    noise.push_back(std::move(entry));
  }
  return {{"faults", std::move(faults)},
          {"scenarios", std::move(scenarios)},
          {"other", trials_json(matrix, TrialOutcome::Other)},
          {"survived", trials_json(matrix, TrialOutcome::Survived)},
          {"without_fault", std::move(noise)},
          {"score", score_of(matrix.total())}};
}

std::vector<std::string> matrix_differences(const Json& golden, const Json& got) {
  std::vector<std::string> texts;
  const Json none = Json::object();
  const auto part = [&](const Json& of, const char* key) -> const Json& {
    return of.is_object() && of.contains(key) && of.at(key).is_object() ? of.at(key) : none;
  };
  fault_differences(part(golden, "faults"), part(got, "faults"), texts);
  scenario_differences(part(golden, "scenarios"), part(got, "scenarios"), texts);
  return texts;
}

}  // namespace hpsim
