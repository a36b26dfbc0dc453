#include "report/golden_numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "base/units.h"
#include "report/golden_diff.h"
#include "report/json_parts.h"

namespace hpsim {
namespace {

/// m * 10^exponent with m of two digits, 10 to 99: what "%.1e" prints.
struct TwoDigits {
  std::int64_t digits = 0;
  int exponent = 0;
  [[nodiscard]] double value() const {
    return std::strtod(fmt::format("{}e{}", digits, exponent).c_str(), nullptr);
  }
};

/// \pre 0 < value < infinity
TwoDigits nearest_two_digits(double value) {
  const std::string text = fmt::format("{:.1e}", value);  // "9.0e-07"
  return {(text[0] - '0') * 10 + (text[2] - '0'), std::atoi(text.c_str() + 4) - 1};
}

TwoDigits next(TwoDigits number) {
  return number.digits < 99 ? TwoDigits{number.digits + 1, number.exponent}
                            : TwoDigits{10, number.exponent + 1};
}

TwoDigits rounded_up(double value) {
  const TwoDigits nearest = nearest_two_digits(value);
  return nearest.value() < value ? next(nearest) : nearest;
}

constexpr std::array<const char*, 4> kNumericKeys = {"routing", "losses", "grad_norms", "digest"};

/// One of the two series of numbers of a golden.
struct Series {
  const char* key;    ///< of the golden
  const char* entry;  ///< of its elements, which are {"step", entry, "bound"}
  const char* word;   ///< in messages
  const std::vector<double>& got;
  const std::vector<double>& expected;
  const std::vector<double>& bounds;
};

std::vector<Series> series_of(const Report& report) {
  return {{"losses", "loss", "loss", report.losses, report.baseline_losses, report.loss_bounds},
          {"grad_norms", "grad_norm", "grad norm", report.grad_norms, report.baseline_grad_norms,
           report.grad_norm_bounds}};
}

Json bounded_numbers(const Series& series, DType dtype) {
  Json list = Json::array();
  // Bounds grow with the unit roundoff: that of the baseline, which computes in float64, is this.
  const double share = unit_roundoff(DType::Float64) / unit_roundoff(dtype);
  for (std::size_t step = 0; step < series.expected.size(); ++step) {
    const double bound = series.bounds.at(step);
    const auto frozen = golden_number(series.expected[step], bound, share * bound);
    list.push_back({{"step", step},
                    {series.entry, frozen ? Json(frozen->value) : Json(nullptr)},
                    {"bound", frozen ? Json(frozen->bound) : Json(nullptr)}});
  }
  return list;
}

/// Both numbers with as many digits as it takes to tell them apart, four at least.
std::string change_text(double from, double to) {
  for (int digits = 4; digits < 17; ++digits) {
    std::string a = fmt::format("{:#.{}g}", from, digits);
    std::string b = fmt::format("{:#.{}g}", to, digits);
    if (a != b) return a + " → " + b;
  }
  return fmt::format("{:.17g} → {:.17g}", from, to);
}

/// "31 times the bound"; "1.004 times the bound" just outside it.
std::string excess_text(double difference, double bound) {
  const double times = difference / bound;
  if (times >= 10 && times < 1e6) {
    return format_count(std::llround(times)) + " times the bound";
  }
  for (int digits = 2; digits < 17; ++digits) {
    std::string text = fmt::format("{:.{}g}", times, digits);
    if (text != "1") return text + " times the bound";
  }
  return "just past the bound";
}

class NumberDiff {
 public:
  NumberDiff(const Json& golden, const Json& now, GoldenComparison& comparison)
      : golden_(golden), now_(now), comparison_(comparison) {}

  /// Positions per expert are integers, and certain: near ties are refused.
  void compare_routing() {
    const Json& before = member(golden_, "routing");
    const Json& after = member(now_, "routing");
    if (before.is_null() && after.is_null()) return;
    if (!before.is_array() || before.size() != after.size()) return has_other_length("routing");
    const std::size_t first = comparison_.differences.size();
    for (std::size_t i = 0; i < after.size(); ++i) {
      comparison_.compared += static_cast<std::int64_t>(member(after[i], "tokens").size());
      if (before[i] == after[i]) continue;
      add("routing", after[i]["step"].get<std::size_t>(),
          fmt::format("routing of {} in step {}: tokens of each expert {} → {}",
                      brief(after[i]["module"]), after[i]["step"].get<std::size_t>(),
                      brief(member(before[i], "tokens")), brief(after[i]["tokens"])));
    }
    fold("routing", first, after.size());
  }

  void compare_exact() {
    compare_digest();
    const std::size_t first = comparison_.differences.size();
    const Json& before = member(golden_, "losses");
    const Json& after = member(now_, "losses");
    if (!before.is_array() || before.size() != after.size()) return has_other_length("losses");
    for (std::size_t step = 0; step < after.size(); ++step) {
      ++comparison_.compared;
      if (before[step] == after[step]) continue;
      const bool numbers = before[step].is_number() && after[step].is_number();
      add("losses", step,
          fmt::format("loss step {}: {}", step,
                      numbers ? change_text(before[step].get<double>(), after[step].get<double>())
                              : before[step].dump() + " → " + after[step].dump()));
    }
    fold("losses", first, after.size());
  }

  void compare_bounded(const Series& series) {
    const Json& before = member(golden_, series.key);
    const Json& after = member(now_, series.key);
    if (!before.is_array() || before.size() != after.size()) return has_other_length(series.key);
    const std::size_t first = comparison_.differences.size();
    for (std::size_t step = 0; step < after.size(); ++step)
      compare_entry(series, step, before[step], after[step]);
    fold(series.key, first, after.size());
  }

 private:
  void add(const char* section, std::optional<std::size_t> step, std::string message) {
    GoldenDifference difference{.section = section, .message = std::move(message)};
    if (step) difference.step = static_cast<std::int64_t>(*step);
    comparison_.differences.push_back(std::move(difference));
  }

  void has_other_length(const char* key) {
    ++comparison_.compared;
    const Json& before = member(golden_, key);
    if (!before.is_array()) return add(key, {}, fmt::format("{}: the golden has none", key));
    add(key, {}, fmt::format("{}: {} → {} of them", key, before.size(), member(now_, key).size()));
  }

  /// Of many steps that differ the first ones are told, and the number of the others.
  void fold(const char* key, std::size_t first, std::size_t num_steps) {
    constexpr std::size_t kMost = 4;
    std::vector<GoldenDifference>& all = comparison_.differences;
    const std::size_t count = all.size() - first;
    if (count <= kMost + 1) return;
    all.resize(first + kMost);
    add(key, {}, fmt::format("{}: {} of {} steps differ", key, count, num_steps));
  }

  void compare_digest() {
    ++comparison_.compared;
    const Json& before = member(golden_, "digest");
    const Json& after = member(now_, "digest");
    if (before == after) return;
    if (before.is_null()) return add("digest", {}, "digest: the golden has none");
    add("digest", {}, fmt::format("digest: {} → {}", before.dump(), after.dump()));
  }

  void compare_entry(const Series& series, std::size_t step, const Json& before,
                     const Json& after) {
    const auto fail = [&](const std::string& claim) {
      add(series.key, step, fmt::format("{} step {}: {}", series.word, step, claim));
    };
    const Json& value = member(before, series.entry);
    const Json& bound = member(before, "bound");
    const Json& new_bound = member(after, "bound");
    const bool is_frozen = value.is_number() && bound.is_number() && bound.get<double>() > 0;
    if (before.size() != after.size() || member(before, "step") != after["step"] ||
        (!is_frozen && !(value.is_null() && bound.is_null()))) {
      return fail(fmt::format("the golden has {}", before.dump()));
    }
    if (!is_frozen && new_bound.is_null()) return;
    ++comparison_.compared;
    if (!is_frozen) return fail("could be compared, but the golden has null");
    if (new_bound.is_null()) return fail("its bound passes 1/8 of it now, the golden has a number");
    const double got = series.got.at(step);
    const double difference = std::abs(got - value.get<double>());
    if (!(difference <= bound.get<double>())) {
      return fail(fmt::format("{}, {}", change_text(value.get<double>(), got),
                              excess_text(difference, bound.get<double>())));
    }
    if (!is_same_bound(bound.get<double>(), new_bound.get<double>()))
      fail(fmt::format("bound {:.1e} → {:.1e}", bound.get<double>(), new_bound.get<double>()));
  }

  const Json& golden_;
  const Json& now_;
  GoldenComparison& comparison_;
};

}  // namespace

std::optional<GoldenNumber> golden_number(double value, double bound, double own_bound) {
  constexpr double kLargestShare = 0.125;
  constexpr double kWeightOfDigit = 1000;
  if (!(bound > 0) || !(bound <= kLargestShare * std::abs(value)) || std::isinf(value)) return {};
  // A tenth of the second digit of the bound, if that is not lost in the number's own error.
  int quantum = nearest_two_digits(bound).exponent - 1;
  if (own_bound > 0) {
    quantum =
        std::max(quantum, static_cast<int>(std::ceil(std::log10(kWeightOfDigit * own_bound))));
  }
  const int digits = static_cast<int>(std::floor(std::log10(std::abs(value)))) - quantum + 1;
  const double rounded =
      std::strtod(fmt::format("{:.{}g}", value, std::clamp(digits, 1, 17)).c_str(), nullptr);
  const double whole_bound = rounded_up(bound + 0.5 * std::pow(10, quantum)).value();
  // So coarse a quantum may take the bound past it after all.
  if (own_bound > 0 && whole_bound > kLargestShare * std::abs(rounded)) return {};
  return GoldenNumber{rounded, whole_bound};
}

bool is_same_bound(double a, double b) {
  if (!(a > 0) || !(b > 0) || std::isinf(a) || std::isinf(b)) return a == b;
  const double low = std::min(a, b);
  return std::max(a, b) <= next(nearest_two_digits(low)).value();
}

bool is_golden_number_key(std::string_view key) {
  return std::find(kNumericKeys.begin(), kNumericKeys.end(), key) != kNumericKeys.end();
}

void add_golden_numbers(const Report& report, Json& golden) {
  if (report.losses.empty()) return;
  if (!report.routing.empty()) {
    golden["routing"] = list_json(report.routing, [](const RoutingReport& routing) {
      return Json{{"module", routing.module}, {"step", routing.step}, {"tokens", routing.tokens}};
    });
  }
  if (report.scenario->is_exact()) {
    golden["losses"] = numbers(report.losses);
    golden["digest"] = report.digest;
    return;
  }
  for (const Series& series : series_of(report))
    golden[series.key] = bounded_numbers(series, report.scenario->numerics.dtype);
}

std::vector<Json> warnings_of_numbers(const Json& golden, const Report& report) {
  std::vector<Json> warnings;
  const Json& listed = member(golden, "warnings");
  if (!report.losses.empty() || !listed.is_array()) return warnings;
  for (const Json& warning : listed) {
    const Json& code = member(warning, "code");
    if (code.is_string() && warns_of_numbers(code.get<std::string>())) warnings.push_back(warning);
  }
  return warnings;
}

void diff_golden_numbers(const Json& golden, const Json& now, const Report& report,
                         GoldenComparison& comparison) {
  if (report.losses.empty()) {
    for (const char* key : kNumericKeys) {
      if (golden.contains(key)) comparison.not_compared.emplace_back(key);
    }
    return;
  }
  if (member(golden, "numerics") != now["numerics"] &&
      member(member(golden, "numerics"), "mode") != now["numerics"]["mode"]) {
    return;  // told already, and then no number is of the same kind
  }
  NumberDiff diff(golden, now, comparison);
  diff.compare_routing();
  if (report.scenario->is_exact()) return diff.compare_exact();
  for (const Series& series : series_of(report))
    diff.compare_bounded(series);
}

void keep_numbers_that_hold(const Json& golden, const Report& report, Json& now) {
  if (report.losses.empty()) {
    for (const char* key : kNumericKeys) {
      if (golden.contains(key)) now[key] = golden[key];
    }
    return;
  }
  if (report.scenario->is_exact() || member(member(golden, "numerics"), "mode") != "derived")
    return;
  GoldenComparison comparison;
  diff_golden_numbers(golden, now, report, comparison);
  for (const Series& series : series_of(report)) {
    const bool holds = std::none_of(
        comparison.differences.begin(), comparison.differences.end(),
        [&](const GoldenDifference& difference) { return difference.section == series.key; });
    if (holds) now[series.key] = golden[series.key];
  }
}

}  // namespace hpsim
