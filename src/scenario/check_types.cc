#include "scenario/check_types.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/suggest.h"
#include "scenario/schema.h"
#include "scenario/type_expr.h"

namespace hpsim {
namespace {

using Kind = TypeAlternative::Kind;

std::string list_keys(const std::vector<const KeySpec*>& keys) {
  std::string list;
  for (const KeySpec* key : keys) {
    if (!list.empty()) list += ", ";
    list += key->key;
  }
  return list;
}

/// `"steps": optimizer steps; default: 1`
std::string explain(const KeySpec& key) {
  std::string text = fmt::format("\"{}\": {}", key.key, key.meaning);
  if (!key.fallback.empty()) text += fmt::format("; default: {}", key.fallback);
  return text;
}

/// An integer that as_int64 cannot give.
bool is_beyond_int64(const Json& value) {
  return value.is_number() && !as_int64(value) &&
         std::trunc(value.get<double>()) == value.get<double>();
}

/// The first control character of the text, as `U+001B`; empty if it has none. \pre valid UTF-8
std::string first_control(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto code = static_cast<unsigned char>(text[i]);
    if (code == 0xC2)
      code = static_cast<unsigned char>(text[++i]);  // U+0080 to U+00BF
    else if (code >= 0x80)
      continue;
    if (code < 0x20 || (code >= 0x7F && code < 0xA0)) return fmt::format("U+{:04X}", code);
  }
  return {};
}

class TypeChecker {
 public:
  explicit TypeChecker(Problems& problems) : problems_(problems) {}

  /// Whether all is well. `allows_later`: not to complain of what is not supported yet.
  bool check_object(const JsonCursor& at, const std::string& object, bool allows_later);

 private:
  bool check_member(const JsonCursor& at, const std::string& key,
                    const std::vector<const KeySpec*>& keys, bool allows_later);
  bool check_missing(const JsonCursor& at, const std::vector<const KeySpec*>& keys);
  bool check_value(const JsonCursor& at, const TypeExpr& type, const KeySpec& key,
                   bool allows_later);
  bool check_children(const JsonCursor& at, const TypeAlternative& alternative, const KeySpec& key,
                      bool allows_later);
  void refuse_value(const JsonCursor& at, const TypeExpr& type, const KeySpec& key);
  /// Names and texts of the file end up on terminals and in reports.
  bool check_printable(const JsonCursor& at, std::string_view text, bool is_key);
  /// Notations are parsed and keys looked up once, however many modules a file has.
  const TypeExpr& type_of(const KeySpec& key);
  const std::vector<const KeySpec*>& cached_keys_of(const std::string& object);
  /// "Module" and its "type" -> "Module.linear"; the type itself if it has no variants or is wrong.
  std::string variant_of(const JsonCursor& at, const std::string& object);

  Problems& problems_;
  std::unordered_map<const KeySpec*, TypeExpr> types_;
  std::unordered_map<std::string, std::vector<const KeySpec*>> keys_;
};

bool TypeChecker::check_object(const JsonCursor& at, const std::string& object, bool allows_later) {
  const std::string variant = variant_of(at, object);
  const bool knows_variant = variant != object || discriminator_of(object).empty();
  const std::vector<const KeySpec*>& keys = cached_keys_of(variant);
  bool is_good = true;
  for (const auto& [key, value] : at.value->get_ref<const Json::object_t&>()) {
    const bool is_shared = std::any_of(keys.begin(), keys.end(),
                                       [&key = key](const auto* spec) { return spec->key == key; });
    if (!knows_variant && !is_shared) continue;
    is_good &= check_member(at.member(key, value), key, keys, allows_later);
  }
  is_good &= check_missing(at, keys);
  if (!is_good) problems_.mark_bad(*at.value);
  return is_good;
}

const TypeExpr& TypeChecker::type_of(const KeySpec& key) {
  const auto [entry, is_new] = types_.try_emplace(&key);
  if (is_new) entry->second = parse_type(key.type);
  return entry->second;
}

const std::vector<const KeySpec*>& TypeChecker::cached_keys_of(const std::string& object) {
  const auto [entry, is_new] = keys_.try_emplace(object);
  if (is_new) entry->second = keys_of(object);
  return entry->second;
}

std::string TypeChecker::variant_of(const JsonCursor& at, const std::string& object) {
  const std::string_view discriminator = discriminator_of(object);
  if (discriminator.empty()) return object;
  const auto found = at.value->find(std::string(discriminator));
  if (found == at.value->end()) return object;
  for (const TypeAlternative& value : type_of(key_spec(object, discriminator))) {
    if (matches(*found, value)) {
      return fmt::format("{}.{}", object, found->get_ref<const std::string&>());
    }
  }
  return object;
}

bool TypeChecker::check_member(const JsonCursor& at, const std::string& key,
                               const std::vector<const KeySpec*>& keys, bool allows_later) {
  const auto found =
      std::find_if(keys.begin(), keys.end(), [&](const KeySpec* spec) { return spec->key == key; });
  if (found == keys.end()) {
    if (problems_.is_full()) {
      problems_.count(*at.value);
      return false;
    }
    std::vector<std::string_view> names;
    for (const KeySpec* spec : keys)
      names.push_back(spec->key);
    const auto meant = suggest(key, names);
    problems_.add_at_key(at, fmt::format("unknown key {}", in_quotes(key)),
                         meant ? fmt::format("did you mean \"{}\"?", *meant)
                               : fmt::format("the keys here are {}", list_keys(keys)));
    return false;
  }
  const KeySpec& spec = **found;
  const bool is_later = spec.presence == Presence::NotYet;
  if (!check_value(at, type_of(spec), spec, allows_later || is_later)) return false;
  if (!is_later || allows_later) return true;
  if (!spec.fallback.empty() && *at.value == Json::parse(spec.fallback)) return true;
  problems_.add_at_key(at, fmt::format("not supported yet: \"{}\": {}", spec.key, shown(*at.value)),
                       spec.fallback.empty() ? fmt::format("leave \"{}\" out", spec.key)
                                             : fmt::format("leave \"{}\" out; it is then {}",
                                                           spec.key, spec.fallback));
  return false;
}

bool TypeChecker::check_missing(const JsonCursor& at, const std::vector<const KeySpec*>& keys) {
  bool is_good = true;
  for (const KeySpec* key : keys) {
    if (key->presence != Presence::Required || at.value->contains(std::string(key->key))) continue;
    problems_.add(at, fmt::format("key \"{}\" is missing", key->key),
                  fmt::format("add \"{}\": {} ({})", key->key, describe(parse_type(key->type)),
                              key->meaning));
    is_good = false;
  }
  return is_good;
}

bool TypeChecker::check_value(const JsonCursor& at, const TypeExpr& type, const KeySpec& key,
                              bool allows_later) {
  const auto found = std::find_if(type.begin(), type.end(),
                                  [&](const auto& option) { return matches(*at.value, option); });
  if (found == type.end()) {
    refuse_value(at, type, key);
    return false;
  }
  bool is_good = check_children(at, *found, key, allows_later || !found->is_supported);
  if (found->kind == Kind::String) {
    is_good = check_printable(at, at.value->get_ref<const std::string&>(), false);
  }
  if (is_good && !found->is_supported && !allows_later) {
    problems_.add(at, fmt::format("not supported yet: \"{}\": {}", key.key, shown(*at.value)),
                  fmt::format("this version takes {}", describe(type)));
    is_good = false;
  }
  if (!is_good) problems_.mark_bad(*at.value);
  return is_good;
}

bool TypeChecker::check_children(const JsonCursor& at, const TypeAlternative& alternative,
                                 const KeySpec& key, bool allows_later) {
  if (alternative.kind == Kind::Object) {
    return check_object(at, alternative.object, allows_later);
  }
  bool is_good = true;
  if (alternative.kind == Kind::Array) {
    for (std::size_t i = 0; i < at.value->size(); ++i) {
      is_good &= check_value(at.element(i, (*at.value)[i]), alternative.element, key, allows_later);
    }
  } else if (alternative.kind == Kind::Map) {
    for (const auto& [name, value] : at.value->get_ref<const Json::object_t&>()) {
      const JsonCursor member = at.member(name, value);
      is_good &= check_printable(member, name, true);
      is_good &= check_value(member, alternative.element, key, allows_later);
    }
  }
  return is_good;
}

bool TypeChecker::check_printable(const JsonCursor& at, std::string_view text, bool is_key) {
  const std::string control = first_control(text);
  if (control.empty()) return true;
  std::string message = fmt::format("{} holds the control character {}", in_quotes(text), control);
  const char* const help = "leave it out: names and texts may hold all other characters";
  if (is_key) {
    problems_.add_at_key(at, std::move(message), help);
  } else {
    problems_.add(at, std::move(message), help);
  }
  return false;
}

void TypeChecker::refuse_value(const JsonCursor& at, const TypeExpr& type, const KeySpec& key) {
  if (problems_.is_full()) return problems_.count(*at.value);
  std::string help = explain(key);
  if (at.value->is_string()) {
    std::vector<std::string_view> words;
    for (const TypeAlternative& option : type) {
      if (option.kind == Kind::Literal && option.literal.is_string() && option.is_supported) {
        words.push_back(option.literal.get_ref<const std::string&>());
      }
    }
    const auto meant = suggest(at.value->get_ref<const std::string&>(), words);
    if (meant) help = fmt::format("did you mean \"{}\"?", *meant);
  }
  std::string message = fmt::format("expected {}, found {}", describe(type), shown(*at.value));
  const bool wants_integer = std::any_of(
      type.begin(), type.end(), [](const auto& option) { return option.kind == Kind::Integer; });
  if (wants_integer && is_beyond_int64(*at.value)) message += ", beyond 64 bits";
  problems_.add(at, std::move(message), std::move(help));
}

}  // namespace

void check_types(const JsonCursor& root, Problems& problems) {
  if (!root.value->is_object()) {
    problems.add(root, fmt::format("expected an object, found {}", shown(*root.value)),
                 "a scenario is one JSON object with at least \"hpsim\", \"mesh\" and "
                 "\"parameters\" or \"model\"");
    return;
  }
  TypeChecker(problems).check_object(root, "Scenario", /*allows_later=*/false);
}

}  // namespace hpsim
