#pragma once

#include <string>
#include <string_view>

namespace hpsim {

/// The text as GitHub's Markdown shows it in a heading, a list or a table: unchanged and on one
/// line.
///
///   "a|b" -> "a\|b"    "*x*" -> "\*x\*"    "<b>" -> "\<b\>"    "l0_weight" -> itself, "_x_" ->
///   "\_x\_": underscores inside a word mean nothing
[[nodiscard]] std::string markdown_text(std::string_view text);

/// The text in a span of code, on one line; not for tables, where `\|` cannot be told from `|`.
///
///   a.json:1:2 -> `a.json:1:2`    a`b -> ``a`b``    `a -> `` `a ``
[[nodiscard]] std::string code_span(std::string_view text);

/// Lines in a block of code, whatever they hold.
[[nodiscard]] std::string code_block(std::string_view lines);

}  // namespace hpsim
