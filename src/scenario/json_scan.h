#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hpsim {

enum class TokenKind {
  Value,        ///< string (keys too), number, true, false, null; anything else is a syntax error
  Open,         ///< { [
  Close,        ///< } ]
  Punctuation,  ///< , :
  BlockComment,
};

/// Bytes [begin, end) of the text.
struct ScannedToken {
  TokenKind kind = TokenKind::Value;
  std::size_t begin = 0;
  std::size_t end = 0;
};

[[nodiscard]] inline bool is_utf8_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

/// The first token at or after `byte`; `end == begin == text.size()` if none follows. Skips white
/// space, // comments and a byte order mark at the start. Takes any bytes: where the text is no
/// JSON the tokens mean nothing, but they still cover it.
[[nodiscard]] ScannedToken next_token(std::string_view text, std::size_t byte);

/// Calls `visit` with every token in turn.
template <class Visitor>
void scan_tokens(std::string_view text, Visitor visit) {
  std::size_t byte = 0;
  while (true) {
    const ScannedToken token = next_token(text, byte);
    if (token.begin == text.size()) return;
    visit(token);
    byte = token.end;
  }
}

struct SyntaxReport {
  std::size_t byte = 0;  ///< of the token that is wrong, or the end of the text
  std::string message;
  std::string help;
};

/// Says what the parser's message (of nlohmann's SAX interface) means, and where: it stopped after
/// `bytes_read` bytes.
[[nodiscard]] SyntaxReport describe_syntax_error(std::string_view text, std::size_t bytes_read,
                                                 std::string_view parser_message);

}  // namespace hpsim
