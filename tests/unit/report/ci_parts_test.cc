#include "report/ci_parts.h"

#include "support/catch.h"
#include "unit/report/sample_report.h"

namespace hpsim {
namespace {

TEST_CASE("printable text: what is no character becomes U+FFFD") {
  const std::string r = "\xEF\xBF\xBD";
  struct Row {
    std::string text, clean;
  };
  const Row rows[] = {
      {"", ""},
      {"a\xFF", "a" + r},
      {"\x1b[31m", r + "[31m"},
      {std::string("a\0b", 3), "a" + r + "b"},
      {"\xC3\xA9\t\n\r", "\xC3\xA9\t\n\r"},
      {"\xE2\x82", r + r},                       // cut short
      {"\xE2\x82z", r + r + "z"},                // and followed by a letter
      {"\xE2\x82\xAC", "\xE2\x82\xAC"},          // U+20AC
      {"\xC0\x80", r + r},                       // U+0000, overlong
      {"\xE0\x9F\xBF", r + r + r},               // U+07FF, overlong
      {"\xE0\xA0\x80", "\xE0\xA0\x80"},          // U+0800
      {"\xED\x9F\xBF", "\xED\x9F\xBF"},          // U+D7FF
      {"\xED\xA0\x80", r + r + r},               // U+D800, half a pair
      {"\xEE\x80\x80", "\xEE\x80\x80"},          // U+E000
      {"\xEF\xBF\xBE", r},                       // U+FFFE
      {"\xEF\xBF\xBF", r},                       // U+FFFF
      {"\xF0\x90\x80\x80", "\xF0\x90\x80\x80"},  // U+10000
      {"\xF4\x8F\xBF\xBD", "\xF4\x8F\xBF\xBD"},  // U+10FFFD
      {"\xF4\x90\x80\x80", r + r + r + r},       // U+110000
      {"\xF5\x80\x80\x80", r + r + r + r},
      {"\x80", r},
      {"\x7F\xC2\x80\xC2\x9F", r + r + r},  // C1 controls
      {"\xC2\xA0", "\xC2\xA0"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(printable(row.text) == row.clean);
  }
}

TEST_CASE("printable text on one line") {
  CHECK(printable_line("a\nb\tc\r\xFF") == "a b c \xEF\xBF\xBD");
}

TEST_CASE("a golden fails that differs or cannot be read; one that is missing by the exit code") {
  Report report = sample_report();
  CHECK_FALSE(fails_golden(report));
  report.golden = golden_of(GoldenState::Same, 0);
  report.exit_code = 4;
  CHECK_FALSE(fails_golden(report));
  report.golden = golden_of(GoldenState::Missing, 0);
  CHECK(fails_golden(report));
  report.exit_code = 0;
  CHECK_FALSE(fails_golden(report));
  for (const GoldenState state : {GoldenState::Differs, GoldenState::Unreadable}) {
    report.golden = golden_of(state, 1);
    CHECK(fails_golden(report));
  }
}

TEST_CASE("golden and budget in words") {
  CHECK(golden_claim(golden_of(GoldenState::Differs, 1)) == "differs in 1 place");
  CHECK(golden_cell(golden_of(GoldenState::Differs, 1234)) == "1,234 differences");
  CHECK(golden_claim(golden_of(GoldenState::Missing, 0)) == "is missing");
  CHECK(golden_claim(golden_of(GoldenState::Unreadable, 0)) == "cannot be read");
  CHECK(golden_claim(golden_of(GoldenState::Same, 0)) == "says the same");
  CHECK(budget_claim({"bytes", 1024, 1536}) == "bytes 1,536, allowed 1,024");
  Report report = sample_report();
  CHECK_FALSE(fails_budget(report));
  report.budget = {{"collectives", 3, 3}};
  CHECK_FALSE(fails_budget(report));
  report.budget.push_back({"peak", 3, 4});
  CHECK(fails_budget(report));
}

}  // namespace
}  // namespace hpsim
