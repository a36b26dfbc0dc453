#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace hpsim {

/// A value of the file; objects keep file order.
using Json = nlohmann::ordered_json;

/// 1-based; columns count characters, not bytes.
struct SourcePosition {
  std::int64_t line = 0;
  std::int64_t column = 0;
  bool operator==(const SourcePosition&) const = default;
};

/// Where a value begins, and its key if it is the member of an object (else again the value).
struct NodePosition {
  SourcePosition value;
  SourcePosition key;
};

/// A JSON text with // comments, parsed once, that still knows where everything stood.
///
///   {"a": 1, "a": 2}      refused: duplicate key, with both positions
///   [1, 2,]               refused: line:column of ']', and to remove the comma
///   /* no */ {}           refused: comments are // to the end of the line
///   64 nested arrays      taken; 65 are refused before parsing, and so are more than 16 MiB
///   "\xff"                refused: ill-formed UTF-8
///   {}\0                  refused: a NUL byte, wherever it stands
class JsonText {
 public:
  /// `file` only stands in messages.
  /// \throws Error (InvalidScenario) with one diagnostic at the first syntax error, or one for
  ///         each duplicate key
  JsonText(std::string_view text, std::string file);
  ~JsonText();
  JsonText(const JsonText&) = delete;
  JsonText& operator=(const JsonText&) = delete;

  [[nodiscard]] const Json& root() const { return *root_; }
  [[nodiscard]] const std::string& file() const { return file_; }

  /// Where the given values of this document stood. Walks the document once.
  [[nodiscard]] std::unordered_map<const Json*, NodePosition> positions_of(
      const std::unordered_set<const Json*>& values) const;

 private:
  std::string file_;
  std::string text_;
  std::vector<std::uint32_t> token_starts_;  ///< bytes, of values and keys in file order
  std::vector<std::uint32_t> line_starts_;   ///< bytes
  std::unique_ptr<Json> root_;

  [[nodiscard]] SourcePosition position_at(std::size_t byte) const;
  void check_size_and_depth();
  void parse();
};

/// A key as a JSON pointer (RFC 6901) has it: "a/b~c" -> "a~1b~0c".
[[nodiscard]] std::string pointer_token(std::string_view key);

/// A value with its JSON pointer (RFC 6901), in which keys are shortened after 200 bytes: names of
/// any length must not multiply into the pointers of everything below them.
struct JsonCursor {
  const Json* value = nullptr;
  std::string pointer;

  /// The member `key`, or element `index`, which is `child`.
  [[nodiscard]] JsonCursor member(std::string_view key, const Json& child) const;
  [[nodiscard]] JsonCursor element(std::size_t index, const Json& child) const;
  /// What the pointer reaches. \pre this is the root, and there is something
  [[nodiscard]] JsonCursor below(const std::string& from_root) const;

  // What most readers ask of a value, so that they need not know all of the JSON library.
  [[nodiscard]] bool is_array() const;
  [[nodiscard]] bool is_object() const;
  [[nodiscard]] bool is_string() const;
  /// \pre is_string()
  [[nodiscard]] const std::string& string() const;
  /// \pre is_array(), of integers
  [[nodiscard]] std::vector<std::int64_t> integers() const;
  /// In file order. \pre is_object()
  [[nodiscard]] std::vector<std::pair<std::string, JsonCursor>> members() const;
};

/// At most `size` bytes of the text, whole characters, and "..." if that is not all.
[[nodiscard]] std::string shortened(std::string_view text, std::size_t size);

/// The value as a message shows it: as JSON, shortened after 60 characters; then "an array" or
/// "an object".
[[nodiscard]] std::string shown(const Json& value);

/// The text as a JSON string, shortened after 60 characters: `"fsdp"`. \pre valid UTF-8
[[nodiscard]] std::string in_quotes(std::string_view text);

/// `"l0", "l1" and 3 more`: the first ten names.
[[nodiscard]] std::string quoted_list(const std::vector<std::string>& names);

}  // namespace hpsim
