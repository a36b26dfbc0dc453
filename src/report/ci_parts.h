#pragma once

#include <string>
#include <string_view>

#include "report/report.h"

namespace hpsim {

// Parts of the forms that continuous integration reads: JUnit, annotations, Markdown.

/// The text with U+FFFD for each byte that begins no well-formed UTF-8 character, and for each
/// control or noncharacter but tabs and ends of lines: what XML 1.0, a web page and a log can hold.
///
///   "a\xff" -> "a\uFFFD"    "\x1b[31m" -> "\uFFFD[31m"    "\xE2\x82" -> "\uFFFD\uFFFD"
///   "é\t\n" -> "é\t\n"      U+FFFF -> U+FFFD              "\xC0\x80" (overlong) -> two U+FFFD
[[nodiscard]] std::string printable(std::string_view text);

/// Printable text on one line: ends of lines and tabs become blanks.
[[nodiscard]] std::string printable_line(std::string_view text);

/// Whether the golden makes the command fail; a missing one does where the report's exit code says
/// so. False without a golden.
[[nodiscard]] bool fails_golden(const Report& report);

/// "same", "3 differences", "missing", "unreadable"
[[nodiscard]] std::string golden_cell(const GoldenComparison& golden);

/// What is said after its file: "says the same", "differs in 3 places", "is missing", "cannot be
/// read"
[[nodiscard]] std::string golden_claim(const GoldenComparison& golden);

/// Whether any limit of the budget is passed.
[[nodiscard]] bool fails_budget(const Report& report);

/// What a run that passed does not pass: ", golden differs, over budget"; empty if nothing.
[[nodiscard]] std::string reservations(const Report& report);

/// "collectives 4, allowed 3"
[[nodiscard]] std::string budget_claim(const BudgetLine& line);

/// Why a report has no verdict, by its exit code: 2 "usage", 3 "invalid scenario", 6 "rank
/// failure", 7 "environment", 70 "internal error".
[[nodiscard]] std::string_view error_name(int exit_code);

}  // namespace hpsim
