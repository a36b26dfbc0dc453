#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/suggest.h"
#include "commands.h"

namespace hpsim {

std::size_t choose(const std::string& flag, const std::string& word,
                   const std::vector<std::string_view>& choices) {
  const auto found = std::find(choices.begin(), choices.end(), word);
  if (found != choices.end()) return static_cast<std::size_t>(found - choices.begin());
  const std::optional<std::string> near = suggest(word, choices);
  throw Error(ErrorKind::Usage, fmt::format("{} does not know \"{}\"", flag, word),
              fmt::format("{}it takes {}",
                          near ? fmt::format("did you mean \"{}\"? ", *near) : std::string(),
                          fmt::join(choices, ", ")));
}

int worst_exit_code(const std::vector<int>& codes) {
  static constexpr std::array<int, 8> kWorstFirst = {70, 7, 6, 3, 2, 1, 4, 5};
  for (const int code : kWorstFirst) {
    if (std::find(codes.begin(), codes.end(), code) != codes.end()) return code;
  }
  return 0;
}

int worst_exit_code(const ReportSet& set) {
  std::vector<int> codes;
  for (const Report& report : set.reports)
    codes.push_back(report.exit_code);
  if (!set.obsolete_goldens.empty()) codes.push_back(kExitGolden);
  return worst_exit_code(codes);
}

void require_timeout(double timeout_s) {
  if (timeout_s > 0 && timeout_s <= 1e6) return;
  throw Error(
      ErrorKind::Usage,
      fmt::format("--timeout is {} s, but must be more than 0 and at most 1000000", timeout_s));
}

}  // namespace hpsim
