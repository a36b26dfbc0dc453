#include "scenario/locate.h"

#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

namespace hpsim {
namespace {

/// Follows pointers; each object is indexed once, so that many pointers into it cost no search.
class Descent {
 public:
  explicit Descent(const Json& root) : root_(root) {}

  const Json& deepest(std::string_view pointer) {
    const Json* value = &root_;
    while (!pointer.empty() && pointer.front() == '/') {
      const std::string_view token = pointer.substr(1, pointer.find('/', 1) - 1);
      const Json* const below = child(*value, token);
      if (below == nullptr) break;
      value = below;
      pointer.remove_prefix(1 + token.size());
    }
    return *value;
  }

 private:
  using Members = std::unordered_map<std::string_view, const Json*>;

  /// Null if there is none.
  const Json* child(const Json& value, std::string_view token) {
    if (value.is_array()) return element(value, token);
    if (!value.is_object()) return nullptr;
    const Members& members = members_of(value);
    const auto member = members.find(unescaped(token));
    return member == members.end() ? nullptr : member->second;
  }

  static const Json* element(const Json& array, std::string_view token) {
    std::size_t index = 0;
    const char* const end = token.data() + token.size();
    const auto [rest, error] = std::from_chars(token.data(), end, index);
    const bool is_index = error == std::errc() && rest == end &&
                          (token.size() == 1 || token.front() != '0') && index < array.size();
    return is_index ? &array[index] : nullptr;
  }

  static std::string unescaped(std::string_view token) {
    std::string key;
    for (std::size_t i = 0; i < token.size(); ++i) {
      const char next = token[i] == '~' && i + 1 < token.size() ? token[i + 1] : '\0';
      const bool is_escape = next == '0' || next == '1';
      key += is_escape ? (next == '0' ? '~' : '/') : token[i];
      if (is_escape) ++i;
    }
    return key;
  }

  const Members& members_of(const Json& object) {
    const auto [entry, is_new] = indexed_.try_emplace(&object);
    if (is_new) {
      for (const auto& [key, value] : object.get_ref<const Json::object_t&>())
        entry->second.emplace(key, &value);
    }
    return entry->second;
  }

  const Json& root_;
  std::unordered_map<const Json*, Members> indexed_;
};

}  // namespace

std::vector<SourcePosition> locate(std::string_view text,
                                   const std::vector<std::string>& pointers) {
  const JsonText json(text, "");
  Descent descent(json.root());
  std::vector<const Json*> values;
  for (const std::string& pointer : pointers)
    values.push_back(&descent.deepest(pointer));
  const auto positions = json.positions_of({values.begin(), values.end()});
  std::vector<SourcePosition> places;
  for (const Json* value : values)
    places.push_back(positions.at(value).value);
  return places;
}

std::string module_pointer(const ModelSpec& model, int module) {
  using Kind = ModuleGroup::Kind;
  const std::vector<ModuleGroup>& groups = model.groups;
  std::string pointer = "/model";
  std::size_t next = 0;  // the first group that may lie at `at`
  int at = 0;
  for (int index = 0; at <= module; ++index) {
    const bool is_group = next < groups.size() && groups[next].first == at;
    const int end = is_group ? groups[next].end : at + 1;
    if (module >= end) {
      at = end;
      while (next < groups.size() && groups[next].first < end)
        ++next;
      continue;
    }
    const bool is_sum =
        !is_group && model.modules[static_cast<std::size_t>(module)].type == ModuleType::Add;
    if (is_sum) return pointer.substr(0, pointer.rfind('/'));
    if (!pointer.ends_with("/module")) pointer += fmt::format("/{}", index);
    if (!is_group) break;
    const Kind kind = groups[next++].kind;
    if (kind == Kind::Attention || kind == Kind::Mlp || kind == Kind::Moe) break;
    pointer += kind == Kind::Repeat ? "/module" : "/modules";
    index = -1;
  }
  return pointer;
}

std::string parameter_pointer(const Scenario& scenario, const ParameterSpec& parameter) {
  if (scenario.model.is_elementwise()) return "/parameters/" + pointer_token(parameter.name);
  return module_pointer(scenario.model, parameter.module);
}

}  // namespace hpsim
