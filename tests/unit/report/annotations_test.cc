#include "report/annotations.h"

#include <algorithm>

#include "support/catch.h"
#include "unit/report/sample_report.h"

namespace hpsim {
namespace {

std::string annotations_of(const Report& report) {
  return github_annotations({{report}, {}});
}

TEST_CASE("a pass, and a golden that says the same, need no annotation") {
  Report report = sample_report();
  CHECK(annotations_of(report).empty());
  report.golden = golden_of(GoldenState::Same, 0);
  report.budget = {{"collectives", 3, 3}};
  CHECK(annotations_of(report).empty());
  CHECK(github_annotations({}).empty());
}

TEST_CASE("findings stand at their place in the scenario file") {
  CHECK(annotations_of(failed_report()) ==
        "::error file=scenarios/fsdp/uneven.json,line=6,col=18,title=GRAD_SCALE::"
        "gradient-parity: weight, rank 3 at (3,), step 0, index (6, 0): "
        "got 0.5, expected 0.125; 4 times the expected value: S=4\n"
        "::warning file=scenarios/fsdp/uneven.json,line=6,col=18,title=SPEC_DISAGREES::"
        "placements: weight: torch has no name for 2 2 2 1\n");
  Report unplaced = failed_report();
  unplaced.findings.resize(1);
  unplaced.findings[0].line = 0;
  CHECK(annotations_of(unplaced).rfind("::error file=scenarios/fsdp/uneven.json,title=GRAD", 0) ==
        0);
}

TEST_CASE("diagnostics keep their own place, pointer and help") {
  CHECK(annotations_of(error_report()) ==
        "::error file=b.json,title=rank failure::rank 1 died of signal 9%0A"
        "help: ranks 0, 2 waited in all_gather\n");
  const Report invalid =
      make_error_report("c.json", "local",
                        Error(ErrorKind::InvalidScenario, {{.file = "c.json",
                                                            .line = 3,
                                                            .column = 12,
                                                            .pointer = "/mesh/ranks",
                                                            .message = "6 ranks listed"},
                                                           {.message = "and more"}}));
  CHECK(annotations_of(invalid) ==
        "::error file=c.json,line=3,col=12,title=invalid scenario::/mesh/ranks: 6 ranks listed\n"
        "::error file=c.json,title=invalid scenario::and more\n");
}

TEST_CASE("a line of every annotation is one line, and GitHub's runner reads it back") {
  Report report = failed_report();
  report.findings.resize(1);
  report.file = "50%,a:b\n::error::\xFF\r.json";
  report.findings[0].message = "50% of ::x\r\n, y";
  report.findings[0].ratio.reset();
  report.findings[0].explains.clear();
  CHECK(annotations_of(report) ==
        "::error file=50%25%2Ca%3Ab%0A%3A%3Aerror%3A%3A\xEF\xBF\xBD%0D.json,line=6,col=18,"
        "title=GRAD_SCALE::gradient-parity: weight, rank 3 at (3,), step 0, index (6, 0): "
        "50%25 of ::x%0D%0A, y\n");
}

TEST_CASE("ten differences of a golden are annotated, and how many more there are") {
  Report report = sample_report();
  report.exit_code = 4;
  report.golden = golden_of(GoldenState::Differs, 10);
  const std::string ten = annotations_of(report);
  CHECK(std::count(ten.begin(), ten.end(), '\n') == 10);
  CHECK(ten.rfind("::error file=scenarios/fsdp/uneven.json,title=golden differs::d0\n", 0) == 0);
  report.golden = golden_of(GoldenState::Differs, 12);
  const std::string twelve = annotations_of(report);
  CHECK(twelve == ten +
                      "::error file=scenarios/fsdp/uneven.json,title=golden differs::"
                      "and 2 more differences from golden/fsdp/uneven.json\n");
}

TEST_CASE("goldens that are missing, unreadable or obsolete, and limits that are passed") {
  Report report = sample_report();
  report.golden = golden_of(GoldenState::Missing, 0);
  CHECK(annotations_of(report) ==
        "::warning file=scenarios/fsdp/uneven.json,title=golden missing::"
        "golden/fsdp/uneven.json is missing\n");
  report.exit_code = 4;
  CHECK(annotations_of(report).rfind("::error ", 0) == 0);
  report.golden = golden_of(GoldenState::Unreadable, 1);
  report.budget = {{"collectives", 3, 4}, {"bytes", 10, 10}};
  CHECK(github_annotations({{report}, {"golden/old.json"}}) ==
        "::error file=scenarios/fsdp/uneven.json,title=golden unreadable::"
        "golden/fsdp/uneven.json cannot be read\n"
        "::error file=scenarios/fsdp/uneven.json,title=golden unreadable::d0\n"
        "::error file=scenarios/fsdp/uneven.json,title=over budget::collectives 4, allowed 3\n"
        "::error file=golden/old.json,title=golden obsolete::this golden mirrors no scenario\n");
}

}  // namespace
}  // namespace hpsim
