#include "scenario/type_expr.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "base/check.h"
#include "scenario/fault_catalog.h"

namespace hpsim {
namespace {

using Kind = TypeAlternative::Kind;

/// Recursive descent over the notation of type_expr.h.
class TypeParser {
 public:
  explicit TypeParser(std::string_view notation) : notation_(notation), rest_(notation) {}

  TypeExpr parse_all() {
    TypeExpr type = parse_alternatives();
    HPSIM_CHECK(rest_.empty(), "type \"{}\": \"{}\" is left over", notation_, rest_);
    return type;
  }

 private:
  TypeExpr parse_alternatives() {
    TypeExpr type;
    do {
      if (take("fault")) {
        add_faults(type);
      } else {
        type.push_back(parse_alternative());
      }
    } while (take("|"));
    return type;
  }

  static void add_faults(TypeExpr& type) {
    for (const FaultKind& fault : all_faults()) {
      TypeAlternative name;
      name.kind = Kind::Literal;
      name.literal = std::string(fault.name);
      type.push_back(std::move(name));
    }
  }

  TypeAlternative parse_alternative() {
    TypeAlternative alternative;
    alternative.is_supported = !take("~");
    if (take("[")) {
      alternative.kind = Kind::Array;
      alternative.element = parse_alternatives();
      expect("]");
    } else if (take("{")) {
      alternative.kind = Kind::Map;
      alternative.element = parse_alternatives();
      expect("}");
    } else if (take("'")) {
      alternative.kind = Kind::Literal;
      const std::size_t end = rest_.find('\'');
      alternative.literal = std::string(rest_.substr(0, end));
      rest_.remove_prefix(end);
      expect("'");
    } else if (!rest_.empty() && rest_[0] >= '0' && rest_[0] <= '9') {
      alternative.kind = Kind::Literal;
      alternative.literal = static_cast<std::int64_t>(parse_number());
    } else {
      parse_named(alternative);
    }
    return alternative;
  }

  void parse_named(TypeAlternative& alternative) {
    static constexpr std::pair<std::string_view, Kind> kNames[] = {
        {"any", Kind::Any},      {"null", Kind::Null},     {"bool", Kind::Boolean},
        {"int", Kind::Integer},  {"uint", Kind::Unsigned}, {"number", Kind::Number},
        {"string", Kind::String}};
    const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
    const auto end = static_cast<std::size_t>(
        std::find_if_not(rest_.begin(), rest_.end(), is_letter) - rest_.begin());
    const std::string_view name = rest_.substr(0, end);
    HPSIM_CHECK(!name.empty(), "type \"{}\": a name is missing", notation_);
    rest_.remove_prefix(end);
    const auto* const known = std::find_if(std::begin(kNames), std::end(kNames),
                                           [&](const auto& entry) { return entry.first == name; });
    if (known == std::end(kNames)) {
      alternative.kind = Kind::Object;
      alternative.object = std::string(name);
      return;
    }
    alternative.kind = known->second;
    if (take(">=")) {
      alternative.at_least = parse_number();
    } else if (take(">")) {
      alternative.greater_than = parse_number();
    }
    if (take("<")) alternative.below = parse_number();
  }

  double parse_number() {
    const std::string digits(rest_.substr(0, rest_.find_first_not_of("0123456789.")));
    HPSIM_CHECK(!digits.empty(), "type \"{}\": a number is missing", notation_);
    rest_.remove_prefix(digits.size());
    return std::strtod(digits.c_str(), nullptr);
  }

  bool take(std::string_view token) {
    skip_blanks();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    skip_blanks();
    return true;
  }

  void expect(std::string_view token) {
    HPSIM_CHECK(take(token), "type \"{}\": \"{}\" is missing", notation_, token);
  }

  void skip_blanks() { rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size())); }

  std::string_view notation_;
  std::string_view rest_;
};

std::string describe_range(const TypeAlternative& alternative) {
  std::string text;
  if (alternative.at_least) text += fmt::format(" of at least {}", *alternative.at_least);
  if (alternative.greater_than) text += fmt::format(" greater than {}", *alternative.greater_than);
  if (alternative.below) text += fmt::format(" and below {}", *alternative.below);
  return text;
}

std::string describe(const TypeAlternative& alternative) {
  switch (alternative.kind) {
    case Kind::Any:
      return "anything";
    case Kind::Null:
      return "null";
    case Kind::Boolean:
      return "false";
    case Kind::Integer:
      return "an integer" + describe_range(alternative);
    case Kind::Unsigned:
      return "an integer in 0..2^64-1";
    case Kind::Number:
      return "a number" + describe_range(alternative);
    case Kind::String:
      return "a string";
    case Kind::Literal:
      return alternative.literal.dump();
    case Kind::Array:
      return "an array";
    case Kind::Map:
    case Kind::Object:
      return "an object";
  }
  HPSIM_CHECK(false, "unknown kind {}", static_cast<int>(alternative.kind));
  return {};
}

bool in_range(double value, const TypeAlternative& alternative) {
  return (!alternative.at_least || value >= *alternative.at_least) &&
         (!alternative.greater_than || value > *alternative.greater_than) &&
         (!alternative.below || value < *alternative.below);
}

}  // namespace

TypeExpr parse_type(std::string_view notation) {
  return TypeParser(notation).parse_all();
}

std::string describe(const TypeExpr& type) {
  const bool any_supported =
      std::any_of(type.begin(), type.end(), [](const auto& a) { return a.is_supported; });
  std::vector<std::string> parts;
  for (const TypeAlternative& alternative : type) {
    if (any_supported && !alternative.is_supported) continue;
    if (alternative.kind == Kind::Boolean) parts.push_back("true");
    const std::string part = describe(alternative);
    if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
  }
  constexpr std::size_t kMostListed = 16;
  if (parts.size() > kMostListed) return "one of the known names";
  std::string text = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    text += (i + 1 == parts.size() ? " or " : ", ") + parts[i];
  }
  return text;
}

bool matches(const Json& value, const TypeAlternative& alternative) {
  switch (alternative.kind) {
    case Kind::Any:
      return true;
    case Kind::Null:
      return value.is_null();
    case Kind::Boolean:
      return value.is_boolean();
    case Kind::Integer: {
      const auto integer = as_int64(value);
      return integer && in_range(static_cast<double>(*integer), alternative);
    }
    case Kind::Unsigned:
      return value.is_number_unsigned();
    case Kind::Number:
      return value.is_number() && in_range(value.get<double>(), alternative);
    case Kind::String:
      return value.is_string();
    case Kind::Literal:
      return value == alternative.literal;
    case Kind::Array:
      return value.is_array();
    case Kind::Map:
    case Kind::Object:
      return value.is_object();
  }
  HPSIM_CHECK(false, "unknown kind {}", static_cast<int>(alternative.kind));
  return false;
}

std::optional<std::int64_t> as_int64(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return {};
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number_float()) return {};
  const double number = value.get<double>();
  if (std::trunc(number) != number || std::abs(number) >= 0x1p63) return {};
  return static_cast<std::int64_t>(number);
}

}  // namespace hpsim
