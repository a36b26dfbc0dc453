#include <fmt/format.h>

#include "report/table.h"
#include "report/text.h"
#include "report/text_parts.h"

namespace hpsim {
namespace {

constexpr std::size_t kMaxFindings = 10;

}  // namespace

std::string findings_text(const Report& report, const TextStyle& style) {
  if (report.findings.empty()) return {};
  std::string text = "\n";
  const std::size_t count = report.findings.size();
  const bool folds = !style.full && count > kMaxFindings;
  const std::size_t shown = folds ? kMaxFindings : count;
  for (std::size_t i = 0; i < shown; ++i) {
    const Finding& finding = report.findings[i];
    const bool is_error = finding.severity == Severity::Error;
    text += painted(fmt::format("{} {}", is_error ? "✗" : "!", name_of(finding.code)),
                    is_error ? Ink::Red : Ink::Yellow, style.color);
    text += "  " + place_of(finding) + "\n";
    text += wrapped(finding.message, 4, kTextWidth);
    if (is_error && finding.line > 0) {
      text += "    " + painted(source_of(report, finding), Ink::Dim, style.color) + "\n";
    }
  }
  for (const LeftOut& left_out : report.left_out)
    text += painted("… " + left_out_text(left_out), Ink::Dim, style.color) + "\n";
  if (folds) {
    text += painted(fmt::format("… {} more findings; --full or --format json lists them",
                                count - shown),
                    Ink::Dim, style.color) +
            "\n";
  }
  return text;
}

}  // namespace hpsim
