#include "report/markdown_parts.h"

#include <algorithm>
#include <cstddef>

#include "report/ci_parts.h"

namespace hpsim {
namespace {

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

std::size_t longest_run_of_backticks(std::string_view text) {
  std::size_t longest = 0;
  std::size_t run = 0;
  for (const char c : text) {
    run = c == '`' ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  return longest;
}

}  // namespace

std::string markdown_text(std::string_view text) {
  constexpr std::string_view kSpecial = "\\`*[]<>|~&$#";
  const std::string line = printable_line(text);
  std::string escaped;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool is_in_word =
        i > 0 && i + 1 < line.size() && is_word(line[i - 1]) && is_word(line[i + 1]);
    if (kSpecial.find(line[i]) != std::string_view::npos || (line[i] == '_' && !is_in_word)) {
      escaped += '\\';
    }
    escaped += line[i];
  }
  return escaped;
}

std::string code_span(std::string_view text) {
  const std::string line = printable_line(text);
  if (line.empty()) return {};
  const std::string fence(longest_run_of_backticks(line) + 1, '`');
  const bool touches = line.front() == '`' || line.back() == '`';
  const char* const pad = touches ? " " : "";
  return fence + pad + line + pad + fence;
}

std::string code_block(std::string_view lines) {
  const std::string text = printable(lines);
  const std::string fence(std::max<std::size_t>(longest_run_of_backticks(text) + 1, 3), '`');
  const bool is_closed = text.empty() || text.back() == '\n';
  return fence + "\n" + text + (is_closed ? "" : "\n") + fence + "\n";
}

}  // namespace hpsim
