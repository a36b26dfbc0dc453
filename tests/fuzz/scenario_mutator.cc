#include "fuzz/scenario_mutator.h"

#include <algorithm>
#include <vector>

#include "fuzz/value_changes.h"
#include "scenario/json_scan.h"

namespace hpsim {
namespace {

/// As they stand in a file, not all of them JSON.
constexpr std::string_view kTokens[] = {"{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "null",
                                        "true",
                                        "false",
                                        "0",
                                        "-0",
                                        "-1",
                                        "1",
                                        "2",
                                        "0.5",
                                        "1.0",
                                        "-0.0",
                                        "1e308",
                                        "1e309",
                                        "1e999",
                                        "-1e400",
                                        "1e-400",
                                        "1e-308",
                                        "2147483647",
                                        "2147483648",
                                        "4294967296",
                                        "4611686018427387904",
                                        "9007199254740993",
                                        "9223372036854775807",
                                        "9223372036854775808",
                                        "-9223372036854775808",
                                        "18446744073709551615",
                                        "18446744073709551616",
                                        "1E+2",
                                        "01",
                                        ".5",
                                        "1.",
                                        "+1",
                                        "NaN",
                                        "nan",
                                        "Infinity",
                                        "-Infinity",
                                        "\"\"",
                                        "[]",
                                        "{}",
                                        "\"\\u0000\"",
                                        "\"\\ud800\"",
                                        "\"\\ud83d\\ude00\"",
                                        "\"\\u001b[31m\"",
                                        "\"\\n\"",
                                        "\"",
                                        "\\",
                                        "//",
                                        "/*",
                                        "\n",
                                        "\r\n",
                                        "\xEF\xBB\xBF",
                                        "\xFF",
                                        "\xC3\xA9",
                                        "\xE5\xB1\x82",
                                        "\xF0\x9F\x98\x80"};

void change_bytes(std::string& text, Dice& dice) {
  if (text.empty()) return;
  const std::size_t at = dice.below(text.size());
  switch (dice.below(3)) {
    case 0:
      text.erase(at, 1 + dice.below(4));
      break;
    case 1:
      text.insert(at, 1, text[at]);
      break;
    default:
      text[at] = static_cast<char>(dice.below(256));
  }
}

void change_tokens(std::string& text, Dice& dice) {
  std::vector<ScannedToken> tokens;
  scan_tokens(text, [&](const ScannedToken& token) { tokens.push_back(token); });
  if (tokens.empty()) return;
  const ScannedToken& token = dice.pick(tokens);
  const ScannedToken& other = dice.pick(tokens);
  const std::size_t length = token.end - token.begin;
  switch (dice.below(5)) {
    case 0:
      text.erase(token.begin, length);
      break;
    case 1:
      text.replace(token.begin, length, text.substr(other.begin, other.end - other.begin));
      break;
    case 2:
      text.insert(token.begin, text.substr(other.begin, other.end - other.begin));
      break;
    case 3:
      // Often whole members and elements, which are then given twice.
      text.insert(token.begin, text.substr(other.begin, dice.below(60)));
      break;
    default:
      text.replace(token.begin, length, dice.pick(kTokens));
  }
}

Json document(std::string_view text) {
  return Json::parse(text, nullptr, /*allow_exceptions=*/false, /*ignore_comments=*/true);
}

}  // namespace

std::string ScenarioMutator::mutate(std::string text) {
  for (std::size_t num_changes = 1 + dice_.below(3); num_changes > 0; --num_changes) {
    const std::size_t way = dice_.below(8);
    if (way == 0) {
      change_bytes(text, dice_);
      continue;
    }
    Json root = way < 3 ? Json() : document(text);
    if (way < 3 || root.is_discarded()) {
      change_tokens(text, dice_);
    } else {
      ValueChanges(dice_).change(root);
      text = root.dump();
    }
  }
  return text;
}

std::string ScenarioMutator::cross(std::string_view text, std::string_view other) {
  Json root = document(text);
  Json donor = document(other);
  if (root.is_discarded() || donor.is_discarded()) return std::string(text);
  ValueChanges(dice_).graft(root, donor);
  return root.dump();
}

}  // namespace hpsim
