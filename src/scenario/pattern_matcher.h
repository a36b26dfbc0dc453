#pragma once

#include <string>
#include <vector>

#include "base/glob.h"
#include "scenario/problems.h"

namespace hpsim {

/// Matches the patterns of a file with the names of its parameters or modules. A pattern that
/// matches none is a mistake; so is the one at which comparing takes too long, and those after it
/// match nothing (see GlobIndex).
///
///   names "l0.weight", "l0.bias"     "**.bias" -> 1     "l0.*" -> 0, 1     "l1.*" -> refused
class PatternMatcher {
 public:
  /// `kind` is what the names are of: "parameter", "module".
  PatternMatcher(std::vector<std::string> names, std::string kind, Problems& problems);
  PatternMatcher(const PatternMatcher&) = delete;
  PatternMatcher& operator=(const PatternMatcher&) = delete;

  /// Indices of the names that the pattern at `at` matches, ascending.
  [[nodiscard]] std::vector<int> matches_of(const std::string& pattern, const JsonCursor& at);

 private:
  std::vector<std::string> names_;
  std::string kind_;
  Problems& problems_;
  GlobIndex index_;
};

}  // namespace hpsim
