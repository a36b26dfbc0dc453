#include "report/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/suggest.h"
#include "report/report.h"

namespace hpsim {
namespace {

struct Unit {
  std::string_view name;
  int power_of_1024 = 0;
};
constexpr std::array<Unit, 6> kUnits = {
    {{"", 0}, {"B", 0}, {"KiB", 1}, {"MiB", 2}, {"GiB", 3}, {"TiB", 4}}};
const std::vector<std::string_view> kNames = {"collectives", "bytes", "peak"};

/// A whole number of at least 0, or of bytes with a unit; nothing if it is neither.
std::optional<std::int64_t> parse_amount(std::string_view text, bool takes_units) {
  double number = 0;
  const auto [end, failure] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (failure != std::errc()) return {};
  const std::string_view suffix = text.substr(static_cast<std::size_t>(end - text.data()));
  const auto* unit = std::find_if(kUnits.begin(), kUnits.end(),
                                  [&](const Unit& other) { return other.name == suffix; });
  if (unit == kUnits.end() || (!takes_units && !suffix.empty())) return {};
  // "1.7GiB" is no whole number of bytes: those that fit.
  const double amount = std::floor(std::ldexp(number, 10 * unit->power_of_1024));
  const bool is_whole = unit->power_of_1024 > 0 || number == std::floor(number);
  if (!(amount >= 0) || amount > 9e18 || !is_whole) return {};
  return static_cast<std::int64_t>(amount);
}

Diagnostic wrong(std::string message, std::string help) {
  return {.message = "--budget " + std::move(message), .help = std::move(help)};
}

void parse_limit(std::string_view part, std::vector<BudgetLine>& limits,
                 std::vector<Diagnostic>& problems) {
  const std::size_t equals = part.find('=');
  const std::string_view word = part.substr(0, equals);
  const auto name = std::find(kNames.begin(), kNames.end(), word);
  if (name == kNames.end()) {
    const std::optional<std::string> near = suggest(std::string(word), kNames);
    problems.push_back(
        wrong(fmt::format("does not know \"{}\"", word),
              fmt::format("{}it takes {}", near ? fmt::format("did you mean \"{}\"? ", *near) : "",
                          "collectives=N, bytes=N and peak=N")));
    return;
  }
  const bool is_again = std::any_of(limits.begin(), limits.end(),
                                    [&](const BudgetLine& other) { return other.name == *name; });
  if (is_again) {
    problems.push_back(wrong(fmt::format("has \"{}\" twice", word), "keep one of the two"));
    return;
  }
  const bool takes_units = *name != "collectives";
  const std::string_view amount =
      equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
  const std::optional<std::int64_t> limit = parse_amount(amount, takes_units);
  if (!limit) {
    problems.push_back(
        wrong(fmt::format("{} is \"{}\", not a whole number of at least 0", word, amount),
              takes_units ? fmt::format("for example {0}=4096 or {0}=1.5GiB", word)
                          : fmt::format("for example {}=12", word)));
    return;
  }
  limits.push_back({.name = *name, .limit = *limit});
}

std::int64_t most_in_a_step(const Report& report, bool counts_bytes) {
  std::map<std::int64_t, std::int64_t> by_step;
  std::int64_t most = 0;
  for (const CollectiveReport& collective : report.collectives) {
    const CollectiveSpec& spec = collective.spec;
    const std::int64_t elems =
        std::max(collective.elems_in().largest(), collective.elems_out().largest());
    std::int64_t& sum = by_step[collective.step];
    sum += counts_bytes ? elems * size_bytes(spec.dtype) : 1;
    most = std::max(most, sum);
  }
  return most;
}

}  // namespace

std::vector<BudgetLine> parse_budget(const std::string& text) {
  std::vector<BudgetLine> limits;
  std::vector<Diagnostic> problems;
  std::string_view rest = text;
  while (true) {
    const std::size_t comma = rest.find(',');
    parse_limit(rest.substr(0, comma), limits, problems);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (!problems.empty()) throw Error(ErrorKind::Usage, std::move(problems));
  return limits;
}

void apply_budget(const std::vector<BudgetLine>& limits, Report& report) {
  if (!report.has_run) return;
  report.budget = limits;
  for (BudgetLine& line : report.budget) {
    if (line.name == "collectives") line.got = most_in_a_step(report, false);
    if (line.name == "bytes") line.got = most_in_a_step(report, true);
    if (line.name == "peak") line.got = report.counters.peak_bytes;
    if (line.is_over() && report.exit_code == 0) report.exit_code = kExitOverBudget;
  }
}

}  // namespace hpsim
