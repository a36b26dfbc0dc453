#include "ci_outputs.h"

#include <cstdlib>
#include <string_view>

#include "report/annotations.h"
#include "report/junit.h"
#include "terminal.h"

namespace hpsim {

bool is_ci() {
  const char* value = std::getenv("CI");
  if (value == nullptr) return false;
  const std::string_view text = value;
  return !text.empty() && text != "0" && text != "false";
}

CiOutputs::CiOutputs(const CiArguments& arguments) : annotates_(arguments.annotations) {
  if (!arguments.budget.empty()) limits_ = parse_budget(arguments.budget);
  if (!arguments.junit.empty()) junit_ = std::make_unique<OutputFile>(arguments.junit);
}

void CiOutputs::judge(Report& report) const {
  if (!limits_.empty()) apply_budget(limits_, report);
}

void CiOutputs::finish(const ReportSet& set, bool stdout_is_text) {
  if (junit_) junit_->commit(junit_xml(set));
  if (!annotates_) return;
  const std::string annotations = github_annotations(set);
  if (stdout_is_text) {
    write_stdout(annotations);
  } else {
    write_stderr(annotations);
  }
}

}  // namespace hpsim
