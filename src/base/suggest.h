#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace hpsim {

/// The candidate nearest to `word` by edit distance (insert, delete, replace, swap of neighbours),
/// if it is near enough to be meant: distance at most a third of the longer word, and at least 1
/// allowed. The first of equals wins.
///
///   "fsdb", {"fsdp", "tp"}   -> "fsdp"
///   "mehs", {"mesh"}         -> "mesh"
///   "xyz",  {"mesh"}         -> nothing
[[nodiscard]] std::optional<std::string> suggest(std::string_view word,
                                                 std::span<const std::string_view> candidates);

}  // namespace hpsim
