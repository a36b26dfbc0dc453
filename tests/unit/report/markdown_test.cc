
#include "report/markdown_parts.h"
#include "report/text.h"
#include "support/catch.h"
#include "unit/report/sample_report.h"

namespace hpsim {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string markdown_of(const Report& report) {
  return reports_markdown({{report}, {}});
}

TEST_CASE("text in Markdown: what would style it is escaped") {
  struct Row {
    const char* text;
    const char* markdown;
  };
  const Row rows[] = {
      {"l0.weight", "l0.weight"},
      {"a2_uneven_7x8", "a2_uneven_7x8"},
      {"_x_", "\\_x\\_"},
      {"a__b", "a\\_\\_b"},
      {"a|b", "a\\|b"},
      {"a\\|b", "a\\\\\\|b"},
      {"*x* `y` <b> [l](u)", "\\*x\\* \\`y\\` \\<b\\> \\[l\\](u)"},
      {"~~x~~ &amp; $x$ #1", "\\~\\~x\\~\\~ \\&amp; \\$x\\$ \\#1"},
      {"a\nb\rc\td", "a b c d"},
      {"\x1b", "\xEF\xBF\xBD"},
  };
  for (const Row& row : rows)
    CHECK(markdown_text(row.text) == row.markdown);
}

TEST_CASE("code in Markdown: fences are longer than what they hold") {
  CHECK(code_span("a.json:1:2") == "`a.json:1:2`");
  CHECK(code_span("a`b``c\nd") == "```a`b``c d```");
  CHECK(code_span("`a") == "`` `a ``");
  CHECK(code_span("").empty());
  CHECK(code_block("a\nb\n") == "```\na\nb\n```\n");
  CHECK(code_block("```\n````") == "`````\n```\n````\n`````\n");
}

TEST_CASE("a pass is a line and a table") {
  CHECK(markdown_of(sample_report()) ==
        "**1 passed** of 1\n"
        "\n"
        "| verdict | scenario | backend | ranks | checks | compared | worst err/bound | time |\n"
        "| --- | --- | --- | --: | --: | --: | --: | --: |\n"
        "| pass | uneven | local | 4 | 7 | 1,313 | 0.12 | 19.3 ms |\n");
}

TEST_CASE("failures follow with their places, before warnings of what passed") {
  Report warned = failed_report();
  warned.name = "warned";
  warned.outcome = Outcome::Pass;
  warned.exit_code = 0;
  warned.findings.erase(warned.findings.begin());
  warned.notes = {"a note"};
  Report quiet = sample_report();
  quiet.name = "quiet";
  quiet.notes = {"a note that nobody needs"};
  const std::string text =
      reports_markdown({{warned, failed_report(), error_report(), quiet}, {"old.json"}});
  CHECK(text.rfind("**1 failed, 1 ended in an error, 1 obsolete golden**, 2 passed of 4\n", 0) ==
        0);
  CHECK(contains(text, "\n| **fail** | uneven |"));
  CHECK(contains(text, "\n| **error** | b.json |"));
  CHECK(contains(text,
                 "\n### uneven\n"
                 "\n"
                 "- **GRAD_SCALE** `scenarios/fsdp/uneven.json:6:18` "
                 "gradient-parity: weight, rank 3 at (3,), step 0, index (6, 0)\\\n"
                 "  got 0.5, expected 0.125; 4 times the expected value: S=4\n"
                 "- **SPEC_DISAGREES** (warning) `scenarios/fsdp/uneven.json:6:18` "
                 "placements: weight\\\n"
                 "  torch has no name for 2 2 2 1\n"
                 "\n### b.json\n"
                 "\n"
                 "```\n"
                 "b.json: error: rank 1 died of signal 9\n"
                 "  help: ranks 0, 2 waited in all_gather\n"
                 "```\n"
                 "\n### warned\n"
                 "\n"
                 "- **SPEC_DISAGREES** (warning) `"));
  CHECK(contains(text, "\n- note: a note\n"));
  CHECK_FALSE(contains(text, "### quiet"));
  CHECK(contains(text, "\n### Changed goldens\n\n`old.json` mirrors no scenario\n"));
}

TEST_CASE("goldens have a column, and a section with what changed") {
  Report differs = sample_report();
  differs.exit_code = 4;
  differs.golden = golden_of(GoldenState::Differs, 2);
  Report missing = sample_report();
  missing.golden = golden_of(GoldenState::Missing, 0);
  Report unreadable = sample_report();
  unreadable.exit_code = 4;
  unreadable.golden = golden_of(GoldenState::Unreadable, 0);
  Report same = sample_report();
  same.golden = golden_of(GoldenState::Same, 0);
  const std::string text = reports_markdown({{differs, missing, unreadable, same}, {}});
  CHECK(text ==
        "**2 failed**, 2 passed of 4\n"
        "\n"
        "| verdict | scenario | backend | ranks | checks | compared | worst err/bound | golden "
        "| time |\n"
        "| --- | --- | --- | --: | --: | --: | --: | --- | --: |\n"
        "| **pass, golden differs** | uneven | local | 4 | 7 | 1,313 | 0.12 | 2 differences "
        "| 19.3 ms |\n"
        "| pass | uneven | local | 4 | 7 | 1,313 | 0.12 | missing | 19.3 ms |\n"
        "| **pass, golden unreadable** | uneven | local | 4 | 7 | 1,313 | 0.12 | unreadable "
        "| 19.3 ms |\n"
        "| pass | uneven | local | 4 | 7 | 1,313 | 0.12 | same | 19.3 ms |\n"
        "\n### Changed goldens\n"
        "\n"
        "`scenarios/fsdp/uneven.json`: `golden/fsdp/uneven.json` differs in 2 places:\n"
        "\n"
        "```\n"
        "d0\n"
        "d1\n"
        "```\n"
        "\n"
        "`scenarios/fsdp/uneven.json`: `golden/fsdp/uneven.json` is missing\n"
        "\n"
        "`scenarios/fsdp/uneven.json`: `golden/fsdp/uneven.json` cannot be read\n");
  missing.exit_code = 4;
  CHECK(contains(markdown_of(missing), "| **pass, golden missing** |"));
}

TEST_CASE("differences of a golden are folded after twenty, findings and messages too") {
  Report report = failed_report();
  report.golden = golden_of(GoldenState::Differs, 20);
  CHECK(contains(markdown_of(report), "d19\n```\n"));
  CHECK_FALSE(contains(markdown_of(report), "not shown"));
  report.golden = golden_of(GoldenState::Differs, 22);
  report.findings.assign(21, report.findings[0]);
  const std::string text = markdown_of(report);
  CHECK(contains(text, "d19\n```\n\nand 2 more differences not shown here\n"));
  CHECK(contains(text, "\n\nand 1 more finding not shown here\n"));
  CHECK(contains(text, "| **fail, golden differs** |"));
  Report invalid = error_report();
  invalid.diagnostics.assign(23, invalid.diagnostics[0]);
  CHECK(contains(markdown_of(invalid), "```\n\nand 3 more messages not shown here\n"));
}

TEST_CASE("errors stand before warnings, so that folding hides none of them first") {
  Report report = failed_report();
  report.findings.insert(report.findings.begin(), 25, report.findings[1]);
  const std::string text = markdown_of(report);
  CHECK(contains(text, "### uneven\n\n- **GRAD_SCALE** `"));
  CHECK(contains(text, "\n\nand 7 more findings not shown here\n"));
}

TEST_CASE("a budget has a column, and a section with what is over") {
  Report over = sample_report();
  over.exit_code = 5;
  over.budget = {{"collectives", 3, 4}, {"bytes", 2000, 2000}, {"peak", 1000, 1536}};
  Report within = sample_report();
  within.budget = {{"collectives", 3, 3}};
  const std::string text = reports_markdown({{over, within}, {}});
  CHECK(contains(text, "| worst err/bound | budget | time |\n"));
  CHECK(contains(text, "| **pass, over budget** | uneven | local | 4 | 7 | 1,313 | 0.12 | over |"));
  CHECK(contains(text, "| pass | uneven | local | 4 | 7 | 1,313 | 0.12 | within |"));
  CHECK(contains(text,
                 "\n### Over budget\n\n- `scenarios/fsdp/uneven.json` "
                 "collectives 4, allowed 3; peak 1,536, allowed 1,000\n"));
}

TEST_CASE("names of any kind break neither table nor lists") {
  Report report = failed_report();
  report.name = "a|b*c*\n<i>";
  report.file = "`x|y`.json";
  report.findings.resize(1);
  report.findings[0].param = "w_[0]*";
  report.findings[0].message = "2 * 4 > 3";
  const std::string text = markdown_of(report);
  CHECK(contains(text, "| **fail** | a\\|b\\*c\\* \\<i\\> | local |"));
  CHECK(contains(text, "\n### a\\|b\\*c\\* \\<i\\>\n"));
  CHECK(contains(text, "- **GRAD_SCALE** `` `x|y`.json:6:18 `` gradient-parity: w\\_\\[0\\]\\*, "));
  CHECK(contains(text, "\\\n  2 \\* 4 \\> 3"));
}

}  // namespace
}  // namespace hpsim
