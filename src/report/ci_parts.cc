#include "report/ci_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/units.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

/// Of the well-formed UTF-8 character at the beginning; none if there is no such character.
struct Character {
  std::size_t num_bytes = 0;
  std::uint32_t code = 0;
};

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i]));
  };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {1, lead};
  const std::size_t num_bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < num_bytes) return {};
  std::uint32_t code = lead & (0xFFU >> (num_bytes + 1));
  for (std::size_t i = 1; i < num_bytes; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return {};
    code = code << 6U | (byte(i) & 0x3FU);
  }
  constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xD800 && code < 0xE000;
  if (code < kSmallest[num_bytes] || code > 0x10FFFF || is_surrogate) return {};
  return {num_bytes, code};
}

bool is_printable(std::uint32_t code) {
  if (code == '\t' || code == '\n' || code == '\r') return true;
  const bool is_control = code < 0x20 || (code >= 0x7F && code < 0xA0);
  return !is_control && (code & 0xFFFEU) != 0xFFFEU;
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD
  std::string clean;
  while (!text.empty()) {
    const Character character = first_character(text);
    const std::size_t num_bytes = std::max<std::size_t>(character.num_bytes, 1);
    if (character.num_bytes > 0 && is_printable(character.code)) {
      clean += text.substr(0, num_bytes);
    } else {
      clean += kReplacement;
    }
    text.remove_prefix(num_bytes);
  }
  return clean;
}

std::string printable_line(std::string_view text) {
  std::string line = printable(text);
  for (char& c : line) {
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  }
  return line;
}

bool fails_golden(const Report& report) {
  if (!report.golden || report.golden->state == GoldenState::Same) return false;
  return report.golden->state != GoldenState::Missing || report.exit_code == kExitGolden;
}

std::string golden_cell(const GoldenComparison& golden) {
  switch (golden.state) {
    case GoldenState::Same:
      return "same";
    case GoldenState::Differs:
      return counted(static_cast<std::int64_t>(golden.differences.size()), "difference");
    case GoldenState::Missing:
      return "missing";
    case GoldenState::Unreadable:
      return "unreadable";
  }
  HPSIM_CHECK(false, "unknown golden state {}", static_cast<int>(golden.state));
  return {};
}

std::string golden_claim(const GoldenComparison& golden) {
  switch (golden.state) {
    case GoldenState::Same:
      return "says the same";
    case GoldenState::Differs:
      return "differs in " + counted(static_cast<std::int64_t>(golden.differences.size()), "place");
    case GoldenState::Missing:
      return "is missing";
    case GoldenState::Unreadable:
      return "cannot be read";
  }
  HPSIM_CHECK(false, "unknown golden state {}", static_cast<int>(golden.state));
  return {};
}

bool fails_budget(const Report& report) {
  return std::any_of(report.budget.begin(), report.budget.end(),
                     [](const BudgetLine& line) { return line.is_over(); });
}

std::string reservations(const Report& report) {
  std::string words;
  if (fails_golden(report)) words += fmt::format(", golden {}", name_of(report.golden->state));
  if (fails_budget(report)) words += ", over budget";
  return words;
}

std::string budget_claim(const BudgetLine& line) {
  return fmt::format("{} {}, allowed {}", line.name, format_count(line.got),
                     format_count(line.limit));
}

std::string_view error_name(int exit_code) {
  switch (exit_code) {
    case 2:
      return "usage";
    case 3:
      return "invalid scenario";
    case 6:
      return "rank failure";
    case 7:
      return "environment";
    default:
      return "internal error";
  }
}

}  // namespace hpsim
