#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "report/golden.h"
#include "report/report.h"

namespace hpsim {

/// A number to the digits that its bound leaves, and the bound that makes up for the rest: two
/// digits, rounded up, the rounding of the number included. `own_bound` is how far the number
/// itself may be from the true one, since the baseline rounds too, and not in every build alike: a
/// digit is written only if it weighs a thousand times as much.
///
///   value           bound     own bound
///   0.16106228576   9.0e-7    1.7e-15     0.161062286 ± 9.1e-7      quantum 1e-9
///   0.38413815996   2.2e-15   2.2e-15     0.38413815996 ± 5.1e-12   quantum 1e-11: float64
///   2.5             0.5       0           nothing: passes 1/8 of the number
///   2.5             0         0           nothing: exact mode has no bounds
struct GoldenNumber {
  double value = 0;
  double bound = 0;
};
[[nodiscard]] std::optional<GoldenNumber> golden_number(double value, double bound,
                                                        double own_bound);

/// Whether two bounds are the same but for a unit of their second digit, which the rounding of
/// either may move.
[[nodiscard]] bool is_same_bound(double a, double b);

/// "losses" and "grad_norms" with bounds, or in exact mode "losses" and "digest"; where positions
/// are routed "routing", how many go to each expert; nothing if the run has no numbers.
void add_golden_numbers(const Report& report, nlohmann::ordered_json& golden);

/// Whether it is one of those keys: a run without numbers does not have it.
[[nodiscard]] bool is_golden_number_key(std::string_view key);

/// The warnings of a golden that are about numbers, for a report without numbers to take over; none
/// if the report has numbers, or the golden another form.
[[nodiscard]] std::vector<nlohmann::ordered_json> warnings_of_numbers(
    const nlohmann::ordered_json& golden, const Report& report);

/// Compares those keys; `now` is make_golden of the report.
void diff_golden_numbers(const nlohmann::ordered_json& golden, const nlohmann::ordered_json& now,
                         const Report& report, GoldenComparison& comparison);

/// Replaces the numbers of `now` by those of `golden` where the run is within their bounds.
void keep_numbers_that_hold(const nlohmann::ordered_json& golden, const Report& report,
                            nlohmann::ordered_json& now);

}  // namespace hpsim
