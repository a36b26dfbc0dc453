#include "scenario/problems.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace hpsim {

void Problems::add(const JsonCursor& at, std::string message, std::string help) {
  add({at, false, std::move(message), std::move(help)});
}

void Problems::add_at_key(const JsonCursor& at, std::string message, std::string help) {
  add({at, true, std::move(message), std::move(help)});
}

void Problems::add(Problem problem) {
  constexpr std::size_t kLongest = 2000;
  if (is_full()) return count(*problem.at.value);
  mark_bad(*problem.at.value);
  problem.message = shortened(problem.message, kLongest);
  problem.help = shortened(problem.help, kLongest);
  problems_.push_back(std::move(problem));
}

void Problems::count(const Json& value) {
  mark_bad(value);
  ++num_not_kept_;
}

void Problems::throw_if_any() const {
  if (problems_.empty()) return;
  std::unordered_set<const Json*> values;
  for (const Problem& problem : problems_)
    values.insert(problem.at.value);
  const auto positions = text_.positions_of(values);
  std::vector<Diagnostic> diagnostics;
  for (const Problem& problem : problems_) {
    const NodePosition& node = positions.at(problem.at.value);
    const SourcePosition at = problem.is_key ? node.key : node.value;
    diagnostics.push_back({.file = text_.file(),
                           .line = at.line,
                           .column = at.column,
                           .pointer = problem.at.pointer,
                           .message = problem.message,
                           .help = problem.help});
  }
  std::stable_sort(diagnostics.begin(), diagnostics.end(),
                   [](const Diagnostic& a, const Diagnostic& b) {
                     return std::tie(a.line, a.column) < std::tie(b.line, b.column);
                   });
  if (num_not_kept_ > 0) {
    diagnostics.push_back({.file = text_.file(),
                           .message = fmt::format("{} more mistakes are not shown", num_not_kept_),
                           .help = "mend the first ones"});
  }
  throw Error(ErrorKind::InvalidScenario, std::move(diagnostics));
}

}  // namespace hpsim
