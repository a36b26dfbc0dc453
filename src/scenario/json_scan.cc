#include "scenario/json_scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace hpsim {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::size_t skip_blanks(std::string_view text, std::size_t byte) {
  if (byte == 0 && text.substr(0, 3) == kByteOrderMark) byte = 3;
  while (byte < text.size()) {
    const char c = text[byte];
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      ++byte;
    } else if (text.substr(byte, 2) == "//") {
      byte = std::min(text.find_first_of("\n\r", byte), text.size());
    } else {
      break;
    }
  }
  return byte;
}

std::size_t string_end(std::string_view text, std::size_t begin) {
  std::size_t byte = begin + 1;
  while (byte < text.size() && text[byte] != '"') {
    byte += text[byte] == '\\' ? 2 : 1;
  }
  return std::min(byte + 1, text.size());
}

/// The last token that begins before `byte`, and the one before it.
struct TokenPair {
  std::optional<ScannedToken> last;
  std::optional<ScannedToken> before_last;
};

TokenPair tokens_before(std::string_view text, std::size_t byte) {
  TokenPair pair;
  std::size_t next = 0;
  while (true) {
    const ScannedToken token = next_token(text, next);
    if (token.begin >= byte || token.begin == text.size()) return pair;
    pair.before_last = pair.last;
    pair.last = token;
    next = token.end;
  }
}

std::string_view between(std::string_view text, std::string_view from, std::string_view to) {
  const std::size_t begin = text.find(from);
  if (begin == std::string_view::npos) return text;
  text.remove_prefix(begin + from.size());
  return text.substr(0, text.find(to));
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// The token, shortened after 40 bytes; "this" if it would not print well.
std::string printable(std::string_view text, const ScannedToken& token) {
  constexpr std::size_t kLongest = 40;
  const std::string_view all = text.substr(token.begin, token.end - token.begin);
  const std::string_view shown = all.substr(0, kLongest);
  if (shown.empty() ||
      !std::all_of(shown.begin(), shown.end(), [](char c) { return c >= ' ' && c <= '~'; })) {
    return "this";
  }
  return std::string(shown) + (all.size() > kLongest ? "..." : "");
}

/// Puts the parser's messages on a single wrong token in the words of a scenario's author.
void explain_token(const std::string& token, SyntaxReport& report) {
  if (report.message == "invalid literal") {
    report.message = fmt::format("{} is no JSON value", token);
    report.help = "strings stand in double quotes; there is no NaN and no infinity";
  } else if (contains(report.message, "U+000A") || contains(report.message, "U+000D") ||
             contains(report.message, "missing closing quote")) {
    report.message = "the string is not closed on its line";
    report.help = "add the closing quote";
  } else if (contains(report.message, "ill-formed UTF-8")) {
    report.help = "save the file as UTF-8";
  }
}

}  // namespace

ScannedToken next_token(std::string_view text, std::size_t byte) {
  const std::size_t begin = skip_blanks(text, byte);
  if (begin >= text.size()) return {TokenKind::Value, text.size(), text.size()};
  switch (text[begin]) {
    case '{':
    case '[':
      return {TokenKind::Open, begin, begin + 1};
    case '}':
    case ']':
      return {TokenKind::Close, begin, begin + 1};
    case ',':
    case ':':
      return {TokenKind::Punctuation, begin, begin + 1};
    case '"':
      return {TokenKind::Value, begin, string_end(text, begin)};
    default:
      break;
  }
  if (text.substr(begin, 2) == "/*") return {TokenKind::BlockComment, begin, begin + 2};
  const std::size_t end = text.find_first_of(" \t\n\r{}[],:\"/", begin + 1);
  return {TokenKind::Value, begin, std::min(end, text.size())};
}

SyntaxReport describe_syntax_error(std::string_view text, std::size_t bytes_read,
                                   std::string_view parser_message) {
  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing
  //  object key - unexpected ']'; expected string literal"
  // "... syntax error while parsing value - invalid literal; last read: 'tru,'"
  // "[json.exception.out_of_range.406] number overflow parsing '1e999'"
  SyntaxReport report;
  report.help = "a scenario is JSON; beyond that only // comments are allowed";
  TokenPair tokens = tokens_before(text, bytes_read);
  // A word or number that ends too early is only noticed at the token that follows it.
  if (contains(parser_message, " - invalid ") && tokens.before_last &&
      tokens.last->begin + 1 == bytes_read && tokens.before_last->end == tokens.last->begin &&
      tokens.before_last->kind == TokenKind::Value) {
    tokens.last = tokens.before_last;
  }
  const bool at_end = contains(parser_message, "unexpected end of input");
  report.byte = at_end || !tokens.last ? text.size() : tokens.last->begin;
  const std::string token = !at_end && tokens.last ? printable(text, *tokens.last) : "";
  if (contains(parser_message, "number overflow")) {
    report.message = fmt::format("the number {} is too large", token);
    report.help = "the largest float64 is about 1.8e308";
    return report;
  }
  report.message = between(parser_message, " - ", "; last read");
  explain_token(token, report);
  const std::string_view context = between(parser_message, "while parsing ", " - ");
  const auto ends_with = [&](std::string_view ending) {
    return std::string_view(report.message).ends_with(ending);
  };
  if (context == "object" && ends_with("expected '}'")) {
    report.message.replace(report.message.size() - 3, 3, "',' or '}'");
  } else if (context == "array" && ends_with("expected ']'")) {
    report.message.replace(report.message.size() - 3, 3, "',' or ']'");
  }
  if (!at_end && tokens.last && tokens.last->kind == TokenKind::Close && tokens.before_last &&
      text[tokens.before_last->begin] == ',') {
    report.help = "remove the comma before it";
  } else if (skip_blanks(text, 0) == text.size()) {
    report.message = "the file is empty";
    report.help =
        R"(the smallest scenario is { "hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]}, "parameters": {"weight": [7, 8]} })";
  }
  return report;
}

}  // namespace hpsim
