#include "scenario/json_text.h"

#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

NodePosition position_of(const JsonText& text, const Json& value) {
  return text.positions_of({&value}).at(&value);
}

Diagnostic refusal(const std::string& text) {
  try {
    const JsonText json(text, "x.json");
  } catch (const Error& error) {
    return error.diagnostics().at(0);
  }
  FAIL("parsed: " << text.substr(0, 100));
  return {};
}

TEST_CASE("values and keys know where they stood") {
  const JsonText text(
      "// comment with \"quotes\" and {\n"
      "{\n"
      "  \"a\": [10, {\"b\" :\ttrue}], // [1]\n"
      "  \"c\\\"d\": \"x\", \"e\": null\n"
      "}",
      "x.json");
  const Json& root = text.root();
  CHECK(position_of(text, root).value == SourcePosition{2, 1});
  CHECK(position_of(text, root["a"]).key == SourcePosition{3, 3});
  CHECK(position_of(text, root["a"]).value == SourcePosition{3, 8});
  CHECK(position_of(text, root["a"][0]).value == SourcePosition{3, 9});
  CHECK(position_of(text, root["a"][0]).key == SourcePosition{3, 9});
  CHECK(position_of(text, root["a"][1]["b"]).key == SourcePosition{3, 14});
  CHECK(position_of(text, root["a"][1]["b"]).value == SourcePosition{3, 20});
  CHECK(position_of(text, root["c\"d"]).key == SourcePosition{4, 3});
  CHECK(position_of(text, root["e"]).value == SourcePosition{4, 21});
}

TEST_CASE("columns count characters, and a byte order mark is skipped") {
  const JsonText text("\xEF\xBB\xBF{\"\xE5\xB1\x82\": \"\xC3\xA9\", \"a\": 1}", "x.json");
  CHECK(position_of(text, text.root()["\xE5\xB1\x82"]).value.column == 8);
  CHECK(position_of(text, text.root()["a"]).key.column == 13);
}

TEST_CASE("a NUL byte is refused where the parser would see the end of the text") {
  using namespace std::string_literals;
  const Diagnostic diagnostic = refusal("{}\n \0{"s);
  CHECK(diagnostic.message == "the file holds a NUL byte");
  CHECK(diagnostic.line == 2);
  CHECK(diagnostic.column == 2);
}

TEST_CASE("a file of 16 MiB is read and a larger one is refused") {
  constexpr std::size_t kLimit = std::size_t{16} << 20;
  std::string text = "{}";
  text.resize(kLimit, ' ');
  CHECK(JsonText(text, "x.json").root().empty());
  text += ' ';
  CHECK(refusal(text).message ==
        "the file has 16777217 bytes, more than the limit of 16777216 (16 MiB)");
}

TEST_CASE("64 levels are read and 65 are refused, even where the text is not JSON") {
  CHECK(JsonText(std::string(64, '[') + std::string(64, ']'), "x.json").root().size() == 1);
  const Diagnostic deep = refusal(std::string(65, '['));
  CHECK(deep.message == "nested 65 deep, the limit is 64");
  CHECK(deep.column == 65);
  CHECK(refusal(std::string(1000000, '[')).column == 65);
  CHECK(JsonText("\"" + std::string(100, '[') + "\"", "x.json").root().is_string());
}

TEST_CASE("a duplicate key is refused with its pointer and both positions") {
  try {
    const JsonText text(
        "{\"a/b\": [0, {\"x\": 1,\n \"x\": 2}], \"c\": 1, \"c\": {\"d\": 1, \"d\": 1}}", "x.json");
    FAIL("parsed");
  } catch (const Error& error) {
    REQUIRE(error.diagnostics().size() == 3);
    CHECK(error.diagnostics()[0].pointer == "/a~1b/1/x");
    CHECK(error.diagnostics()[0].message ==
          "key \"x\" is given twice in one object, first at 1:14");
    CHECK(error.diagnostics()[0].line == 2);
    CHECK(error.diagnostics()[0].column == 2);
    CHECK(error.diagnostics()[1].pointer == "/c");
    CHECK(error.diagnostics()[2].pointer == "/c/d");
  }
}

TEST_CASE("beyond a hundred duplicate keys only their number is told") {
  std::string text = "{\"a\": 0";
  for (int i = 0; i < 130; ++i)
    text += ", \"a\": 0";
  try {
    const JsonText json(text + "}", "x.json");
    FAIL("parsed");
  } catch (const Error& error) {
    REQUIRE(error.diagnostics().size() == 101);
    CHECK(error.diagnostics().back().message == "30 more duplicate keys are not shown");
  }
}

TEST_CASE("syntax errors point at the wrong token") {
  struct Row {
    const char* text;
    std::int64_t line, column;
    const char* message;
  };
  const Row rows[] = {
      {"[1, 2,]", 1, 7, "unexpected ']'; expected '[', '{', or a literal"},
      {"[1 2]", 1, 4, "unexpected number literal; expected ',' or ']'"},
      {"{\"a\": 1\n\n \"b\": 2}", 3, 2, "unexpected string literal; expected ',' or '}'"},
      {"{\"a\": tru}", 1, 7, "tru is no JSON value"},
      {"{\"a\": 'x'}", 1, 7, "'x' is no JSON value"},
      {"{\"a\": 01}", 1, 7, "unexpected number literal; expected ',' or '}'"},
      {"{a: 1}", 1, 2, "a is no JSON value"},
      {"{} {}", 1, 4, "unexpected '{'; expected end of input"},
      {"{\"a\": \"x", 1, 7, "the string is not closed on its line"},
      {"{\"a\": \"\\q\"}", 1, 7, "invalid string: forbidden character after backslash"},
      {"{\"a\": 1e400}", 1, 7, "the number 1e400 is too large"},
      {"{\"a\": -}", 1, 7, "invalid number; expected digit after '-'"},
      {"{\n", 2, 1, "unexpected end of input; expected string literal"},
      {"  \n ", 2, 2, "the file is empty"},
      {"\xEF\xBB\xBF// no more", 1, 12, "the file is empty"},
  };
  for (const Row& row : rows) {
    INFO(row.text);
    const Diagnostic diagnostic = refusal(row.text);
    CHECK(diagnostic.message == row.message);
    CHECK(diagnostic.line == row.line);
    CHECK(diagnostic.column == row.column);
    CHECK_FALSE(diagnostic.help.empty());
  }
}

TEST_CASE("pointers shorten keys, so that their length is bounded") {
  const Json value = 1;
  const JsonCursor root{&value, ""};
  CHECK(root.member("a/b~c", value).element(3, value).pointer == "/a~1b~0c/3");
  CHECK(root.member(std::string(200, 'k'), value).pointer == "/" + std::string(200, 'k'));
  CHECK(root.member(std::string(201, 'k'), value).pointer == "/" + std::string(200, 'k') + "...");
  // 199 and a character of two bytes: it is left out, not cut.
  CHECK(root.member(std::string(199, 'k') + "\xC3\xA9", value).pointer ==
        "/" + std::string(199, 'k') + "...");
}

TEST_CASE("positions on one line are counted on from each other") {
  const JsonText text("{\"\xC3\xA9\": [1, \"\xC3\xA9\xC3\xA9\", 2],\n \"b\": {\"c\": 3}}",
                      "x.json");
  const Json& root = text.root();
  const auto positions = text.positions_of(
      {&root["\xC3\xA9"][0], &root["\xC3\xA9"][1], &root["\xC3\xA9"][2], &root["b"]["c"]});
  CHECK(positions.at(&root["\xC3\xA9"][0]).value == SourcePosition{1, 8});
  CHECK(positions.at(&root["\xC3\xA9"][1]).value == SourcePosition{1, 11});
  CHECK(positions.at(&root["\xC3\xA9"][2]).value == SourcePosition{1, 17});
  CHECK(positions.at(&root["b"]["c"]).key == SourcePosition{2, 8});
  CHECK(positions.at(&root["b"]["c"]).value == SourcePosition{2, 13});
}

TEST_CASE("messages shorten what they quote without cutting a character") {
  std::string letters;
  for (int i = 0; i < 100; ++i)
    letters += "\xC3\xA9";
  const std::string quote = in_quotes(letters);
  CHECK(quote.size() == 65);
  CHECK(Json::parse(quote).is_string());
  CHECK(shown(Json::parse("[1, {\"a\": 2}]")) == "[1,{\"a\":2}]");
  CHECK(shown(Json(std::vector<int>(100, 7))) == "an array");
  CHECK(in_quotes("\x1b[31m") == "\"\\u001b[31m\"");
  CHECK(quoted_list({"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"}) ==
        R"("a", "b", "c", "d", "e", "f", "g", "h", "i", "j" and 2 more)");
}

}  // namespace
}  // namespace hpsim
