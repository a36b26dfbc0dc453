#include "base/glob.h"

#include <algorithm>
#include <numeric>

namespace hpsim {

bool glob_matches(std::string_view pattern, std::string_view name) {
  // reachable[i]: the pattern read so far matches the first i characters of name.
  std::vector<char> reachable(name.size() + 1, 0);
  reachable[0] = 1;
  for (std::size_t p = 0; p < pattern.size(); ++p) {
    if (pattern[p] == '*') {
      const bool crosses_dots = p + 1 < pattern.size() && pattern[p + 1] == '*';
      if (crosses_dots) ++p;
      for (std::size_t i = 0; i < name.size(); ++i) {
        if (reachable[i] && (crosses_dots || name[i] != '.')) reachable[i + 1] = 1;
      }
    } else {
      for (std::size_t i = name.size(); i > 0; --i) {
        reachable[i] = static_cast<char>(reachable[i - 1] && name[i - 1] == pattern[p]);
      }
      reachable[0] = 0;
    }
  }
  return reachable[name.size()] != 0;
}

GlobIndex::GlobIndex(const std::vector<std::string>& names)
    : names_(names), by_name_(names.size()) {
  std::iota(by_name_.begin(), by_name_.end(), 0);
  std::sort(by_name_.begin(), by_name_.end(), [&](int a, int b) {
    return names_[static_cast<std::size_t>(a)] < names_[static_cast<std::size_t>(b)];
  });
}

std::vector<int> GlobIndex::matches_of(std::string_view pattern) {
  std::vector<int> matches;
  match_range(pattern, matches);
  if (has_given_up()) return {};
  std::sort(matches.begin(), matches.end());
  return matches;
}

void GlobIndex::match_range(std::string_view pattern, std::vector<int>& matches) {
  const std::string_view prefix = pattern.substr(0, pattern.find('*'));
  const bool is_literal = prefix.size() == pattern.size();
  const std::string_view suffix = is_literal ? "" : pattern.substr(pattern.rfind('*') + 1);
  const auto name_of = [&](int index) -> std::string_view {
    return names_[static_cast<std::size_t>(index)];
  };
  auto next =
      std::lower_bound(by_name_.begin(), by_name_.end(), prefix,
                       [&](int index, std::string_view text) { return name_of(index) < text; });
  for (; next != by_name_.end() && name_of(*next).starts_with(prefix); ++next) {
    const std::string_view name = name_of(*next);
    if (is_literal && name.size() != prefix.size()) return;
    constexpr std::size_t kStepsPerName = 16;
    const bool is_close = is_literal || name.ends_with(suffix);
    if (!take_steps(kStepsPerName + (is_close && !is_literal ? pattern.size() * name.size() : 0))) {
      return;
    }
    if (is_literal || (is_close && glob_matches(pattern, name))) matches.push_back(*next);
  }
}

bool GlobIndex::take_steps(std::size_t num_steps) {
  // No product of two lengths of one file gets near 2^63.
  steps_left_ -= static_cast<std::int64_t>(num_steps);
  return !has_given_up();
}

}  // namespace hpsim
