#include "report/junit.h"

#include <fmt/format.h>

#include <pugixml.hpp>
#include <sstream>

#include "report/ci_parts.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

/// Attributes stay in the order in which they are first set.
void set_attribute(pugi::xml_node node, const char* name, std::string_view value) {
  pugi::xml_attribute attribute = node.attribute(name);
  if (!attribute) attribute = node.append_attribute(name);
  attribute = printable(value).c_str();
}

/// A child that says `text` in full.
void add_text(pugi::xml_node node, const char* name, const std::string& text) {
  node.append_child(name).text().set(printable(text).c_str());
}

struct Counts {
  int tests = 0;
  int failures = 0;
  int errors = 0;
  int skipped = 0;
  double time_s = 0;

  void add(const Counts& other) {
    tests += other.tests;
    failures += other.failures;
    errors += other.errors;
    skipped += other.skipped;
    time_s += other.time_s;
  }
};

void set_counts(pugi::xml_node node, const std::string& name, const Counts& counts) {
  set_attribute(node, "name", name);
  set_attribute(node, "tests", fmt::format("{}", counts.tests));
  set_attribute(node, "failures", fmt::format("{}", counts.failures));
  set_attribute(node, "errors", fmt::format("{}", counts.errors));
  set_attribute(node, "skipped", fmt::format("{}", counts.skipped));
  set_attribute(node, "time", fmt::format("{:.6f}", counts.time_s));
}

/// A <testsuite> that counts its cases.
class Suite {
 public:
  Suite(pugi::xml_node parent, std::string name, double time_s)
      : node_(parent.append_child("testsuite")), name_(std::move(name)) {
    counts_.time_s = time_s;
    set_counts(node_, name_, counts_);
  }

  /// A case; it has passed unless one of the following is called for it.
  pugi::xml_node add_case(std::string_view name) {
    pugi::xml_node test = node_.append_child("testcase");
    set_attribute(test, "classname", name_);
    set_attribute(test, "name", name);
    set_attribute(test, "time", fmt::format("{:.6f}", counts_.tests == 0 ? counts_.time_s : 0));
    ++counts_.tests;
    return test;
  }
  void fail(pugi::xml_node test, std::string_view type, std::string_view message,
            const std::string& text) {
    add_outcome(test, "failure", type, message, text);
    ++counts_.failures;
  }
  void end_in_error(pugi::xml_node test, std::string_view type, std::string_view message,
                    const std::string& text) {
    add_outcome(test, "error", type, message, text);
    ++counts_.errors;
  }
  void skip(pugi::xml_node test, std::string_view message) {
    set_attribute(test.append_child("skipped"), "message", message);
    ++counts_.skipped;
  }

  Counts finish() {
    set_counts(node_, name_, counts_);
    return counts_;
  }

 private:
  static void add_outcome(pugi::xml_node test, const char* element, std::string_view type,
                          std::string_view message, const std::string& text) {
    add_text(test, element, text);
    set_attribute(test.last_child(), "message", message);
    set_attribute(test.last_child(), "type", type);
  }

  pugi::xml_node node_;
  std::string name_;
  Counts counts_;
};

std::string finding_line(const Report& report, const Finding& finding) {
  return printable_line(fmt::format("{}: {} {}: {}", source_of(report, finding),
                                    name_of(finding.code), place_of(finding), finding.message)) +
         "\n";
}

void add_check(const Report& report, const CheckResult& check, Suite& suite) {
  const Finding* first_error = nullptr;
  std::string errors;
  std::string warnings;
  for (const Finding& finding : report.findings) {
    if (finding.check != check.id) continue;
    const bool is_error = finding.severity == Severity::Error;
    (is_error ? errors : warnings) += finding_line(report, finding);
    if (is_error && first_error == nullptr) first_error = &finding;
  }
  for (const LeftOut& left_out : report.left_out) {
    if (left_out.check == check.id) errors += report.file + ": " + left_out_text(left_out) + "\n";
  }
  const pugi::xml_node test = suite.add_case(name_of(check.id));
  if (first_error != nullptr) {
    suite.fail(test, name_of(first_error->code), first_error->message, errors);
  } else if (!check.passed) {
    suite.fail(test, "CHECK", fmt::format("{} failed", name_of(check.id)), report.file + "\n");
  }
  if (!warnings.empty()) add_text(test, "system-out", warnings);
}

void add_golden(const Report& report, Suite& suite) {
  const GoldenComparison& golden = report.golden.value();
  const pugi::xml_node test = suite.add_case("golden");
  const std::string claim = golden.file + " " + golden_claim(golden);
  if (fails_golden(report)) {
    std::string text = claim + "\n";
    for (const GoldenDifference& difference : golden.differences)
      text += printable_line(difference.message) + "\n";
    suite.fail(test, "GOLDEN", claim, text);
  } else if (golden.state == GoldenState::Missing) {
    suite.skip(test, claim);
  }
}

void add_budget(const Report& report, Suite& suite) {
  const pugi::xml_node test = suite.add_case("budget");
  std::string first;
  std::string text;
  for (const BudgetLine& line : report.budget) {
    if (!line.is_over()) continue;
    if (first.empty()) first = budget_claim(line);
    text += printable_line(fmt::format("{}: {}", report.file, budget_claim(line))) + "\n";
  }
  if (fails_budget(report)) suite.fail(test, "BUDGET", first, text);
}

void add_error(const Report& report, Suite& suite) {
  const std::string_view type = error_name(report.exit_code);
  std::string text;
  for (const Diagnostic& diagnostic : report.diagnostics)
    text += to_string(diagnostic) + "\n";
  const std::string_view message =
      report.diagnostics.empty() ? type : std::string_view(report.diagnostics.front().message);
  suite.end_in_error(suite.add_case("run"), type, message, text);
}

Counts add_report(const Report& report, pugi::xml_node root) {
  Suite suite(root, report.file, report.timing.total_s);
  if (report.outcome == Outcome::Error) add_error(report, suite);
  for (const CheckResult& check : report.checks)
    add_check(report, check, suite);
  if (report.golden) add_golden(report, suite);
  if (!report.budget.empty()) add_budget(report, suite);
  return suite.finish();
}

Counts add_obsolete(const std::vector<std::string>& goldens, pugi::xml_node root) {
  Suite suite(root, "goldens", 0);
  for (const std::string& golden : goldens) {
    suite.fail(suite.add_case(golden), "GOLDEN", "mirrors no scenario",
               golden + " mirrors no scenario\n");
  }
  return suite.finish();
}

}  // namespace

std::string junit_xml(const ReportSet& set) {
  pugi::xml_document document;
  pugi::xml_node declaration = document.append_child(pugi::node_declaration);
  set_attribute(declaration, "version", "1.0");
  set_attribute(declaration, "encoding", "UTF-8");
  const pugi::xml_node root = document.append_child("testsuites");
  Counts total;
  set_counts(root, "hpsim", total);
  for (const Report& report : set.reports)
    total.add(add_report(report, root));
  if (!set.obsolete_goldens.empty()) total.add(add_obsolete(set.obsolete_goldens, root));
  set_counts(root, "hpsim", total);

  std::ostringstream text;
  document.save(text, "  ", pugi::format_default, pugi::encoding_utf8);
  return text.str();
}

}  // namespace hpsim
