#include "base/glob.h"

#include <vector>

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

}  // namespace hpsim
