#include "verify/told_findings.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace hpsim {
namespace {

/// Which of the findings of one check are told: positions in `all`.
std::set<std::size_t> told_of(const std::vector<Finding>& findings,
                              const std::vector<std::size_t>& all) {
  std::set<std::size_t> told;
  std::set<std::pair<FindingCode, Severity>> kinds;
  for (const std::size_t i : all) {
    const bool is_new = kinds.insert({findings[i].code, findings[i].severity}).second;
    if (is_new && told.size() < kMaxFindingsPerCheck) told.insert(i);
  }
  for (const std::size_t i : all) {
    if (told.size() < kMaxFindingsPerCheck) told.insert(i);
  }
  return told;
}

}  // namespace

std::vector<LeftOut> keep_told(std::vector<Finding>& findings) {
  std::map<CheckId, std::vector<std::size_t>> by_check;
  for (std::size_t i = 0; i < findings.size(); ++i)
    by_check[findings[i].check].push_back(i);
  std::vector<bool> is_told(findings.size(), true);
  std::vector<LeftOut> left_out;
  for (const auto& [check, all] : by_check) {
    if (all.size() <= kMaxFindingsPerCheck) continue;
    const std::set<std::size_t> told = told_of(findings, all);
    LeftOut& rest = left_out.emplace_back(LeftOut{check, 0, 0});
    for (const std::size_t i : all) {
      is_told[i] = told.count(i) > 0;
      if (!is_told[i]) ++(findings[i].severity == Severity::Error ? rest.errors : rest.warnings);
    }
  }
  std::vector<Finding> kept;
  for (std::size_t i = 0; i < findings.size(); ++i) {
    if (is_told[i]) kept.push_back(std::move(findings[i]));
  }
  findings = std::move(kept);
  return left_out;
}

}  // namespace hpsim
