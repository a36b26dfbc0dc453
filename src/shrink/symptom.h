#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/report.h"

namespace hpsim {

/// What is wrong with a run, in words that stay the same when its scenario gets smaller.
struct Symptom {
  int exit_code = 1;
  std::string check;    ///< "gradient-parity"; of ranks that failed "plan-agreement"
  std::string code;     ///< "GRAD_SCALE", "HANG"; empty: a failure that says none
  std::string subject;  ///< the planted fault that was missed, or what `expect` says and what is
  std::vector<std::string> explanations;  ///< best first; see below
  bool operator==(const Symptom&) const = default;
};

/// Every error of the report, each once, in its order; none of a run that passed.
///
///   GRAD_SCALE, "D=4"                     1, gradient-parity, GRAD_SCALE, "", {"D=#"}
///   PARAM_VALUE, "is 2 times that: S=2"   1, parameter-parity, PARAM_VALUE, "", {"is # times
///   that"} GRAD_VALUE, "that of \"w2\""          1, gradient-parity, GRAD_VALUE, "", {"that of #"}
///   FAULT_MISSED at /faults/1             1, expect, FAULT_MISSED, "norm_local"
///   EXPECT at /expect/parameters/2/dtype  1, expect, EXPECT, "/expect/parameters/#/dtype: ..."
///   HANG                                  6, plan-agreement, HANG
///   internal error: 3 steps of 4          70, "", "", "internal error: # steps of #"
[[nodiscard]] std::vector<Symptom> symptoms_of(const Report& report);

/// The one to keep while the scenario gets smaller: of planted faults, what their own checks found;
/// else the first. Nothing for a run that passed.
[[nodiscard]] std::optional<Symptom> main_symptom(const Report& report);

/// Whether the report shows the symptom: the same check and code about the same, and the best
/// explanation, if there is one, among its own.
[[nodiscard]] bool shows(const Report& report, const Symptom& symptom);

/// Whether an error is VACUOUS_BOUND: being inside that bound would say nothing.
[[nodiscard]] bool has_vacuous_bound(const Report& report);

/// "gradient-parity GRAD_SCALE"; "exit 70" where it has neither check nor code.
[[nodiscard]] std::string to_string(const Symptom& symptom);

}  // namespace hpsim
