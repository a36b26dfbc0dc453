#include "report/expect.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"
#include "base/suggest.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 5> kNumericKeys = {"losses", "baseline_losses", "grad_norms",
                                                          "drift", "digest"};
constexpr std::array<std::string_view, 4> kCountedOps = {"all_gather", "reduce_scatter",
                                                         "all_reduce", "all_to_all"};

template <std::size_t N>
bool is_one_of(std::string_view word, const std::array<std::string_view, N>& words) {
  for (const std::string_view candidate : words) {
    if (candidate == word) return true;
  }
  return false;
}

/// A reference token of RFC 6901.
std::string escaped(std::string_view key) {
  std::string token;
  for (const char c : key) {
    if (c == '~') {
      token += "~0";
    } else if (c == '/') {
      token += "~1";
    } else {
      token += c;
    }
  }
  return token;
}

std::string shown(const Json& value) {
  constexpr std::size_t kMaxColumns = 120;
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kMaxColumns) text = text.substr(0, kMaxColumns) + "...";
  return text;
}

std::string nearest(std::string_view key, const std::vector<std::string_view>& keys) {
  const std::optional<std::string> candidate = suggest(key, keys);
  return candidate ? fmt::format("; did you mean \"{}\"?", *candidate) : "";
}

/// Bounds above this part of the expected number say nothing about it.
constexpr double kLargestBound = 1.0 / 8;

class Comparison {
 public:
  Comparison(const Json& report, const ExpectBounds& bounds) : report_(report), bounds_(bounds) {}

  void compare_report(const Json& expect) {
    for (const auto& [key, expected] : expect.items()) {
      const std::string pointer = "/expect/" + escaped(key);
      if (key == "counts") {
        compare_counts(expected, {"forward", "backward"}, pointer);
      } else if (key == "optimizer_counts") {
        compare_counts(expected, {"optimizer"}, pointer);
      } else if (!bounds_.has_numbers && is_one_of(key, kNumericKeys)) {
        result_.not_compared.push_back(key);
      } else if (!report_.contains(key)) {
        missing_key(key, report_, pointer);
      } else if (!bounds_.has_numbers && key == "warnings" && expected.is_array()) {
        compare(without_numbers(expected), report_.at(key), pointer);
      } else if (key == "parameters") {
        compare_parameters(expected, pointer);
      } else if (key == "losses" || key == "baseline_losses") {
        compare_bounded(expected, report_.at(key), bounds_.losses, pointer);
      } else if (key == "grad_norms") {
        compare_bounded(expected, report_.at(key), bounds_.grad_norms, pointer);
      } else {
        compare(expected, report_.at(key), pointer);
      }
    }
  }

  ExpectResult finish() {
    if (compared_ == 0 && !result_.not_compared.empty()) return std::move(result_);
    if (compared_ == 0) {
      mismatch("/expect",
               "names nothing, so there is nothing to compare; name a part of the "
               "report, or leave \"expect\" out");
    }
    result_.check = CheckResult{
        .id = CheckId::Expect, .passed = result_.findings.empty(), .compared = compared_};
    return std::move(result_);
  }

 private:
  /// Those warnings that are about no numbers of a run; the others are named as not compared.
  [[nodiscard]] Json without_numbers(const Json& warnings) {
    Json rest = Json::array();
    for (const Json& warning : warnings) {
      const bool has_code = warning.is_object() && warning.contains("code");
      const std::string code =
          has_code && warning["code"].is_string() ? warning["code"].get<std::string>() : "";
      if (warns_of_numbers(code)) {
        result_.not_compared.push_back("warning " + code);
      } else {
        rest.push_back(warning);
      }
    }
    return rest;
  }

  void compare(const Json& expected, const Json& got, const std::string& pointer) {
    if (expected.is_object() && got.is_object()) {
      for (const auto& [key, item] : expected.items()) {
        const std::string below = pointer + "/" + escaped(key);
        if (got.contains(key)) {
          compare(item, got.at(key), below);
        } else {
          missing_key(key, got, below);
        }
      }
    } else if (expected.is_array() && got.is_array()) {
      if (!same_length(expected, got, pointer)) return;
      for (std::size_t i = 0; i < expected.size(); ++i)
        compare(expected[i], got[i], fmt::format("{}/{}", pointer, i));
    } else {
      ++compared_;
      if (expected != got) differs(expected, got, pointer);
    }
  }

  /// An empty array is a claim of its own, and a leaf.
  bool same_length(const Json& expected, const Json& got, const std::string& pointer) {
    if (expected.size() == got.size() && !expected.empty()) return true;
    ++compared_;
    if (expected.size() == got.size()) return true;
    mismatch(pointer, fmt::format("expected {} elements, got {}: {}", expected.size(), got.size(),
                                  shown(got)));
    set_numbers(static_cast<double>(expected.size()), static_cast<double>(got.size()));
    return false;
  }

  void compare_parameters(const Json& expected, const std::string& pointer) {
    if (!expected.is_array()) {
      compare(expected, report_.at("parameters"), pointer);
      return;
    }
    if (expected.empty()) same_length(expected, report_.at("parameters"), pointer);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::string below = fmt::format("{}/{}", pointer, i);
      if (!expected[i].is_object() || !expected[i].contains("name")) {
        ++compared_;
        mismatch(below, "is matched by name, but has no \"name\"");
        continue;
      }
      compare_parameter(expected[i], below);
    }
    param_.clear();
  }

  void compare_parameter(const Json& expected, const std::string& pointer) {
    std::vector<std::string_view> names;
    for (const Json& parameter : report_.at("parameters")) {
      if (parameter.at("name") == expected.at("name")) {
        param_ = parameter.at("name").get<std::string>();
        compare(expected, parameter, pointer);
        return;
      }
      names.emplace_back(parameter.at("name").get_ref<const std::string&>());
    }
    param_.clear();
    ++compared_;
    mismatch(pointer + "/name",
             fmt::format("no parameter is named {}{}", shown(expected.at("name")),
                         expected.at("name").is_string()
                             ? nearest(expected.at("name").get_ref<const std::string&>(), names)
                             : ""));
  }

  void compare_bounded(const Json& expected, const Json& got, const std::vector<double>& bounds,
                       const std::string& pointer) {
    if (!expected.is_array()) {
      compare(expected, got, pointer);
      return;
    }
    if (!same_length(expected, got, pointer)) return;
    for (std::size_t step = 0; step < expected.size(); ++step) {
      const std::string below = fmt::format("{}/{}", pointer, step);
      if (!expected[step].is_number() || !got[step].is_number() || step >= bounds.size()) {
        compare(expected[step], got[step], below);
        continue;
      }
      ++compared_;
      const auto value = expected[step].get<double>();
      const double difference = std::abs(got[step].get<double>() - value);
      if (difference == 0) continue;
      // Errors of a free training grow from step to step; once they may be as large, agreement
      // within them proves nothing.
      if (!(bounds[step] <= kLargestBound * std::abs(value))) {
        mismatch(below,
                 fmt::format("rounding alone may move it by {:.3g}, more than 1/8 of {:.6g}: "
                             "comparing it proves nothing; expect fewer steps",
                             bounds[step], value));
        result_.findings.back().code = FindingCode::VacuousBound;
        result_.findings.back().step = static_cast<std::int64_t>(step);
        continue;
      }
      if (difference <= bounds[step]) continue;
      differs(expected[step], got[step], below,
              fmt::format(", {:.3g} apart where {:.3g} is allowed", difference, bounds[step]));
      result_.findings.back().step = static_cast<std::int64_t>(step);
    }
  }

  void compare_counts(const Json& expected, const std::vector<std::string_view>& phases,
                      const std::string& pointer) {
    if (!expected.is_object()) {
      ++compared_;
      mismatch(pointer, fmt::format("expected an object of counts, got {}", shown(expected)));
      return;
    }
    for (const auto& [op, count] : expected.items()) {
      const std::string below = pointer + "/" + escaped(op);
      if (!is_one_of(op, kCountedOps)) {
        ++compared_;
        mismatch(below, fmt::format("no collective is named \"{}\"{}", op,
                                    nearest(op, {kCountedOps.begin(), kCountedOps.end()})));
        continue;
      }
      compare_count(op, count, phases, below);
    }
  }

  void compare_count(const std::string& op, const Json& expected,
                     const std::vector<std::string_view>& phases, const std::string& pointer) {
    std::vector<std::int64_t> counts(num_steps(), 0);
    for (const Json& collective : report_.at("collectives")) {
      if (collective.at("op") != op) continue;
      for (const std::string_view phase : phases) {
        if (collective.at("phase") == phase) ++counts.at(collective.at("step").get<std::size_t>());
      }
    }
    for (std::size_t step = 0; step < counts.size(); ++step) {
      ++compared_;
      if (expected == counts[step]) continue;
      differs(expected, counts[step], pointer, fmt::format(" in step {}", step));
      result_.findings.back().step = static_cast<std::int64_t>(step);
    }
  }

  /// Every kind of memory is reported after each step.
  [[nodiscard]] std::size_t num_steps() const {
    return report_.at("ledger").front().at("after_step").size();
  }

  void missing_key(const std::string& key, const Json& object, const std::string& pointer) {
    std::vector<std::string_view> keys;
    for (const auto& item : object.items())
      keys.emplace_back(item.key());
    // `items` hands out its keys by reference to the object, so the views stay valid.
    ++compared_;
    mismatch(pointer, fmt::format("the report has no \"{}\" there{}", key, nearest(key, keys)));
  }

  void differs(const Json& expected, const Json& got, const std::string& pointer,
               const std::string& where = {}) {
    mismatch(pointer, fmt::format("expected {}, got {}{}", shown(expected), shown(got), where));
    if (expected.is_number() && got.is_number()) {
      set_numbers(expected.get<double>(), got.get<double>());
    }
  }

  void mismatch(const std::string& pointer, const std::string& claim) {
    Finding finding;
    finding.code = FindingCode::Expect;
    finding.check = CheckId::Expect;
    finding.param = param_;
    finding.message = fmt::format("{}: {}", pointer, claim);
    finding.pointer = pointer;
    result_.findings.push_back(std::move(finding));
  }

  void set_numbers(double expected, double got) {
    result_.findings.back().expected = expected;
    result_.findings.back().got = got;
  }

  const Json& report_;
  const ExpectBounds& bounds_;
  ExpectResult result_;
  std::int64_t compared_ = 0;
  std::string param_;  ///< of the entry of `parameters` that is being compared
};

}  // namespace

ExpectResult check_expect(const std::string& expect, const Json& report,
                          const ExpectBounds& bounds) {
  const Json expected = Json::parse(expect, nullptr, false, true);
  HPSIM_CHECK(expected.is_object(), "expect is no JSON object: {}", expect);
  Comparison comparison(report, bounds);
  comparison.compare_report(expected);
  return comparison.finish();
}

}  // namespace hpsim
