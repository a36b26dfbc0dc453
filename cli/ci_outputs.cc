#include "ci_outputs.h"

#include <cstdlib>
#include <string_view>

#include "base/error.h"
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

void require_value(const char* flag, const std::optional<std::string>& value) {
  if (!value || !value->empty()) return;
  throw Error(ErrorKind::Usage, std::string(flag) + " is empty",
              "give it a value, or leave the flag out");
}

CiOutputs::CiOutputs(const CiArguments& arguments) : annotates_(arguments.annotations) {
  require_value("--budget", arguments.budget);
  require_value("--junit", arguments.junit);
  if (arguments.budget) limits_ = parse_budget(*arguments.budget);
  if (arguments.junit) junit_ = std::make_unique<OutputFile>(*arguments.junit);
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
