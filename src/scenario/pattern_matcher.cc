#include "scenario/pattern_matcher.h"

#include <fmt/format.h>

#include <utility>

namespace hpsim {

PatternMatcher::PatternMatcher(std::vector<std::string> names, std::string kind, Problems& problems)
    : names_(std::move(names)), kind_(std::move(kind)), problems_(problems), index_(names_) {}

std::vector<int> PatternMatcher::matches_of(const std::string& pattern, const JsonCursor& at) {
  if (index_.has_given_up()) return {};
  std::vector<int> matches = index_.matches_of(pattern);
  if (index_.has_given_up()) {
    problems_.add(at,
                  fmt::format("comparing the patterns up to this one with {} names takes too long",
                              names_.size()),
                  "give fewer patterns with *, or longer beginnings before the *");
  } else if (matches.empty()) {
    problems_.add(at, fmt::format("{} matches no {}", in_quotes(pattern), kind_),
                  fmt::format("the {}s are {}", kind_, quoted_list(names_)));
  }
  return matches;
}

}  // namespace hpsim
