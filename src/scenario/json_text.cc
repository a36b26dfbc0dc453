#include "scenario/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "scenario/json_scan.h"

namespace hpsim {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{16} << 20;
constexpr int kMaxDepth = 64;
constexpr std::size_t kLongestShown = 60;
constexpr std::size_t kLongestKeyInPointer = 200;
constexpr std::size_t kMostDuplicatesShown = 100;

struct SyntaxError {
  std::size_t byte = 0;
  std::string message;
  std::string help;
};

struct DuplicateKey {
  std::string key;
  std::string pointer;
  std::size_t first_byte = 0;
  std::size_t byte = 0;
};

/// Builds the document from the events of the parser, which come in the order of the token starts.
class DocumentBuilder final : public nlohmann::json_sax<Json> {
 public:
  DocumentBuilder(const std::vector<std::uint32_t>& token_starts, Json& root)
      : token_starts_(token_starts), root_(root) {}

  std::optional<SyntaxError> syntax_error;
  std::vector<DuplicateKey> duplicates;  ///< the first ones
  std::size_t num_duplicates = 0;

  bool null() override { return add(Json(nullptr)); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(value)); }
  bool number_float(number_float_t value, const string_t&) override { return add(Json(value)); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    const std::size_t byte = next_token();
    Container& object = open_.back();
    const auto [entry, is_new] = object.keys.emplace(name, byte);
    if (!is_new && ++num_duplicates <= kMostDuplicatesShown) {
      duplicates.push_back({name, pointer_to(name), entry->second, byte});
    }
    object.key = std::move(name);
    return true;
  }

  bool parse_error(std::size_t byte, const std::string&,
                   const nlohmann::detail::exception& error) override {
    syntax_error = SyntaxError{byte, error.what(), {}};
    return false;
  }

 private:
  struct Container {
    Json* value = nullptr;
    std::string key;  ///< of the member that comes next
    std::unordered_map<std::string, std::size_t> keys;
  };

  std::size_t next_token() {
    HPSIM_CHECK(next_token_ < token_starts_.size(), "token {} of {}", next_token_,
                token_starts_.size());
    return token_starts_[next_token_++];
  }

  Json* append(Json value) {
    next_token();
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Container& parent = open_.back();
    if (parent.value->is_array()) {
      parent.value->push_back(std::move(value));
      return &parent.value->back();
    }
    // Straight to the underlying vector: the map's own insertion searches all keys.
    auto& members = parent.value->get_ref<Json::object_t&>();
    members.emplace_back(std::move(parent.key), std::move(value));
    return &members.back().second;
  }

  bool add(Json value) {
    append(std::move(value));
    return true;
  }
  bool open(Json container) {
    Json* const value = append(std::move(container));
    open_.push_back({value, {}, {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  [[nodiscard]] std::string pointer_to(const std::string& name) const {
    JsonCursor cursor{&root_, ""};
    for (std::size_t i = 0; i + 1 < open_.size(); ++i) {
      const Json& container = *open_[i].value;
      if (container.is_array()) {
        cursor = cursor.element(container.size() - 1, container.back());
      } else {
        const auto& member = container.get_ref<const Json::object_t&>().back();
        cursor = cursor.member(member.first, member.second);
      }
    }
    return cursor.member(name, root_).pointer;
  }

  const std::vector<std::uint32_t>& token_starts_;
  Json& root_;
  std::size_t next_token_ = 0;
  std::vector<Container> open_;
};

/// At most `size` bytes of the text, without cutting a character.
std::string_view beginning_of(std::string_view text, std::size_t size) {
  if (text.size() <= size) return text;
  while (size > 0 && is_utf8_continuation(text[size]))
    --size;
  return text.substr(0, size);
}

/// Says where bytes are that are asked for in ascending order, in one pass over the text.
class PositionCounter {
 public:
  PositionCounter(std::string_view text, const std::vector<std::uint32_t>& line_starts)
      : text_(text), line_starts_(line_starts) {}

  SourcePosition at(std::size_t byte) {
    const auto next_line = std::upper_bound(line_starts_.begin(), line_starts_.end(), byte);
    const std::size_t line_start = *(next_line - 1);
    if (line_start > byte_ || byte < byte_) {
      byte_ = line_start;
      column_ = 1;
    }
    const std::string_view passed = text_.substr(byte_, byte - byte_);
    column_ += std::count_if(passed.begin(), passed.end(),
                             [](char c) { return !is_utf8_continuation(c); });
    byte_ = byte;
    return {next_line - line_starts_.begin(), column_};
  }

 private:
  std::string_view text_;
  const std::vector<std::uint32_t>& line_starts_;
  std::size_t byte_ = 0;
  std::int64_t column_ = 1;  ///< of byte_
};

}  // namespace

JsonText::JsonText(std::string_view text, std::string file)
    : file_(std::move(file)), text_(text), root_(std::make_unique<Json>()) {
  line_starts_.push_back(0);
  if (text_.size() > kMaxBytes) {
    throw Error(
        ErrorKind::InvalidScenario,
        {{.file = file_,
          .message = fmt::format("the file has {} bytes, more than the limit of {} (16 MiB)",
                                 text_.size(), kMaxBytes),
          .help = "a scenario describes data, it does not contain them"}});
  }
  for (std::size_t i = 0; i < text_.size(); ++i) {
    if (text_[i] == '\n') line_starts_.push_back(static_cast<std::uint32_t>(i + 1));
  }
  check_size_and_depth();
  parse();
}

JsonText::~JsonText() = default;

void JsonText::check_size_and_depth() {
  const auto refuse = [&](std::size_t byte, std::string message, std::string help) {
    const SourcePosition at = position_at(byte);
    throw Error(ErrorKind::InvalidScenario, {{.file = file_,
                                              .line = at.line,
                                              .column = at.column,
                                              .message = std::move(message),
                                              .help = std::move(help)}});
  };
  // The parser would take it for the end of the text.
  if (const std::size_t nul = text_.find('\0'); nul != std::string::npos) {
    refuse(nul, "the file holds a NUL byte", "a scenario is text: save the file as UTF-8");
  }
  int depth = 0;
  scan_tokens(text_, [&](const ScannedToken& token) {
    switch (token.kind) {
      case TokenKind::Open:
        token_starts_.push_back(static_cast<std::uint32_t>(token.begin));
        if (++depth > kMaxDepth) {
          refuse(token.begin, fmt::format("nested {} deep, the limit is {}", depth, kMaxDepth),
                 "no key of the format is nested that deep");
        }
        break;
      case TokenKind::Close:
        --depth;
        break;
      case TokenKind::Value:
        token_starts_.push_back(static_cast<std::uint32_t>(token.begin));
        break;
      case TokenKind::BlockComment:
        refuse(token.begin, "/* */ comments are not part of the format",
               "comments begin with // and end with the line");
        break;
      case TokenKind::Punctuation:
        break;
    }
  });
}

void JsonText::parse() {
  DocumentBuilder builder(token_starts_, *root_);
  Json::sax_parse(text_.begin(), text_.end(), &builder, nlohmann::detail::input_format_t::json,
                  /*strict=*/true, /*ignore_comments=*/true);
  std::vector<Diagnostic> diagnostics;
  if (builder.syntax_error) {
    const SyntaxReport report =
        describe_syntax_error(text_, builder.syntax_error->byte, builder.syntax_error->message);
    const SourcePosition at = position_at(report.byte);
    diagnostics.push_back({.file = file_,
                           .line = at.line,
                           .column = at.column,
                           .message = report.message,
                           .help = report.help});
  } else {
    HPSIM_CHECK(!token_starts_.empty(), "a document without tokens");
    for (const DuplicateKey& duplicate : builder.duplicates) {
      const SourcePosition first = position_at(duplicate.first_byte);
      const SourcePosition at = position_at(duplicate.byte);
      diagnostics.push_back(
          {.file = file_,
           .line = at.line,
           .column = at.column,
           .pointer = duplicate.pointer,
           .message = fmt::format("key {} is given twice in one object, first at {}:{}",
                                  in_quotes(duplicate.key), first.line, first.column),
           .help = "keep one of the two"});
    }
    if (builder.num_duplicates > kMostDuplicatesShown) {
      diagnostics.push_back({.file = file_,
                             .message = fmt::format("{} more duplicate keys are not shown",
                                                    builder.num_duplicates - kMostDuplicatesShown),
                             .help = "mend the first ones"});
    }
  }
  if (!diagnostics.empty()) throw Error(ErrorKind::InvalidScenario, std::move(diagnostics));
}

SourcePosition JsonText::position_at(std::size_t byte) const {
  return PositionCounter(text_, line_starts_).at(byte);
}

std::unordered_map<const Json*, NodePosition> JsonText::positions_of(
    const std::unordered_set<const Json*>& values) const {
  std::unordered_map<const Json*, NodePosition> positions;
  PositionCounter counter(text_, line_starts_);
  std::size_t token = 0;
  const auto walk = [&](const auto& self, const Json& value, std::size_t key_token) -> void {
    const std::size_t value_token = token++;
    if (values.count(&value) != 0) {
      const SourcePosition key = counter.at(token_starts_[key_token]);
      positions[&value] = {counter.at(token_starts_[value_token]), key};
    }
    if (value.is_array()) {
      for (const Json& element : value)
        self(self, element, token);
    } else if (value.is_object()) {
      for (const auto& member : value.get_ref<const Json::object_t&>()) {
        const std::size_t member_key = token++;
        self(self, member.second, member_key);
      }
    }
  };
  walk(walk, *root_, 0);
  return positions;
}

std::string pointer_token(std::string_view key) {
  std::string token;
  for (const char c : key) {
    if (c == '~') {
      token += "~0";
    } else if (c == '/') {
      token += "~1";
    } else {
      token += c;
    }
  }
  return token;
}

JsonCursor JsonCursor::member(std::string_view key, const Json& child) const {
  std::string token = pointer_token(beginning_of(key, kLongestKeyInPointer));
  if (key.size() > kLongestKeyInPointer) token += "...";
  return {&child, pointer + "/" + token};
}

JsonCursor JsonCursor::element(std::size_t index, const Json& child) const {
  return {&child, fmt::format("{}/{}", pointer, index)};
}

JsonCursor JsonCursor::below(const std::string& from_root) const {
  return {&value->at(Json::json_pointer(from_root)), from_root};
}

bool JsonCursor::is_array() const {
  return value->is_array();
}

bool JsonCursor::is_object() const {
  return value->is_object();
}

bool JsonCursor::is_string() const {
  return value->is_string();
}

const std::string& JsonCursor::string() const {
  return value->get_ref<const std::string&>();
}

std::vector<std::int64_t> JsonCursor::integers() const {
  return value->get<std::vector<std::int64_t>>();
}

std::vector<std::pair<std::string, JsonCursor>> JsonCursor::members() const {
  std::vector<std::pair<std::string, JsonCursor>> members;
  for (const auto& [name, child] : value->get_ref<const Json::object_t&>())
    members.emplace_back(name, member(name, child));
  return members;
}

std::string shortened(std::string_view text, std::size_t size) {
  return std::string(beginning_of(text, size)) + (text.size() > size ? "..." : "");
}

std::string shown(const Json& value) {
  if (value.is_string()) return in_quotes(value.get_ref<const std::string&>());
  const std::string text = value.dump();
  if (text.size() <= kLongestShown) return text;
  return value.is_array()    ? "an array"
         : value.is_object() ? "an object"
                             : shortened(text, kLongestShown);
}

std::string in_quotes(std::string_view text) {
  // Escapes make it longer, never shorter: the rest of a long text would not be seen.
  const std::string escaped = Json(std::string(beginning_of(text, kLongestShown + 4))).dump();
  return fmt::format("\"{}\"", shortened(escaped.substr(1, escaped.size() - 2), kLongestShown));
}

std::string quoted_list(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 10;
  std::string list;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    if (i > 0) list += ", ";
    list += in_quotes(names[i]);
  }
  if (names.size() > kMost) list += fmt::format(" and {} more", names.size() - kMost);
  return list;
}

}  // namespace hpsim
