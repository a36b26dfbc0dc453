#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hpsim {

/// Whether a glob over fully qualified names matches all of `name`: `*` stands for any characters
/// within one component (no '.'), `**` for any characters across components, all else for itself.
///
///   "*.weight"   matches "l0.weight", not "blocks.l0.weight"
///   "**.weight"  matches both
///   "l*"         matches "l0" and "l", not "l0.weight"
///   "**"         matches everything
[[nodiscard]] bool glob_matches(std::string_view pattern, std::string_view name);

/// Many names, to be matched with many patterns: one without `*` is looked up, and one that begins
/// like "blocks.7.*" is only compared with the names that begin so.
///
/// A file may hold so many patterns and names that comparing all would take hours: after about
/// 4 * 10^9 steps it gives up.
class GlobIndex {
 public:
  /// \pre `names` outlives this
  explicit GlobIndex(const std::vector<std::string>& names);

  /// Indices of the names that match, ascending; none once it has given up.
  [[nodiscard]] std::vector<int> matches_of(std::string_view pattern);

  [[nodiscard]] bool has_given_up() const { return steps_left_ <= 0; }

 private:
  void match_range(std::string_view pattern, std::vector<int>& matches);
  /// Whether there are so many steps left; takes them.
  bool take_steps(std::size_t num_steps);

  const std::vector<std::string>& names_;
  std::vector<int> by_name_;  ///< indices in the order of the names
  std::int64_t steps_left_ = std::int64_t{1} << 32;
};

}  // namespace hpsim
