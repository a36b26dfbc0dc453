#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "scenario/schema.h"
#include "shrink/feature_sizes.h"
#include "shrink/reductions.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;
using Pointer = Json::json_pointer;

/// Keys that every object that may have them must have.
const std::set<std::string, std::less<>>& required_keys() {
  static const std::set<std::string, std::less<>> kKeys = [] {
    std::set<std::string, std::less<>> keys;
    for (const KeySpec& spec : all_keys()) {
      if (spec.presence == Presence::Required) keys.emplace(spec.key);
    }
    for (const KeySpec& spec : all_keys()) {
      if (spec.presence != Presence::Required) keys.erase(std::string(spec.key));
    }
    return keys;
  }();
  return kKeys;
}

/// Other kinds of reductions are for these, or none is.
bool is_left_alone(const std::string& pointer) {
  static const char* const kAlone[] = {"/hpsim", "/mesh", "/model", "/parameters", "/data/seed"};
  return std::find(std::begin(kAlone), std::end(kAlone), pointer) != std::end(kAlone);
}

/// Calls f(pointer, value) for every value below `value`, outer ones first.
template <class F>
void each_value(const Json& value, const Pointer& at, const F& f) {
  if (!value.is_structured()) return;
  std::size_t index = 0;
  for (const auto& [key, item] : value.items()) {
    const Pointer below = value.is_object() ? at / key : at / index++;
    f(below, item);
    each_value(item, below, f);
  }
}

bool is_below(const Pointer& at, const char* section) {
  const std::string text = at.to_string();
  return text == section || text.rfind(std::string(section) + "/", 0) == 0;
}

/// What stands below "parameters" are names, whatever they are called.
bool is_parameter(const Pointer& at) {
  return at.parent_pointer().to_string() == "/parameters";
}

/// As a section it is left out but for its seed.
bool has_seed(const Json& value) {
  return value.is_object() && value.contains("seed");
}

std::int64_t least_of(const Pointer& at) {
  return is_below(at, "/mesh") || is_below(at, "/model") || is_below(at, "/parameters") ||
                 is_below(at, "/training")
             ? 1
             : 0;
}

}  // namespace

std::vector<Reduction> key_reductions(const Json& scenario) {
  std::vector<Reduction> reductions;
  each_value(scenario, Pointer(), [&](const Pointer& at, const Json& value) {
    const std::string pointer = at.to_string();
    if (has_seed(value) || scenario[at.parent_pointer()].is_array() || is_left_alone(pointer) ||
        is_parameter(at))
      return;
    if (!is_below(at, "/expect") && required_keys().contains(at.back())) return;
    reductions.push_back({fmt::format("{} left out", pointer), [at](Json& smaller) {
                            smaller[at.parent_pointer()].erase(at.back());
                            fit_features(smaller);
                          }});
  });
  return reductions;
}

std::vector<Reduction> element_reductions(const Json& scenario) {
  std::vector<Reduction> reductions;
  each_value(scenario, Pointer(), [&](const Pointer& at, const Json& value) {
    if (!value.is_array() || is_below(at, "/mesh") || is_below(at, "/expect")) return;
    if (at.back() == "modules" || at.to_string() == "/model") return;
    for (const auto& [begin, end] : parts_of(value.size())) {
      reductions.push_back(
          {fmt::format("{}: elements {} to {} left out", at.to_string(), begin, end - 1),
           [at, begin = begin, end = end](Json& smaller) {
             Json& list = smaller[at];
             list.erase(list.begin() + static_cast<std::ptrdiff_t>(begin),
                        list.begin() + static_cast<std::ptrdiff_t>(end));
           }});
    }
  });
  return reductions;
}

std::vector<Reduction> number_reductions(const Json& scenario) {
  std::vector<Reduction> reductions;
  each_value(scenario, Pointer(), [&](const Pointer& at, const Json& value) {
    if (!value.is_number_integer() || is_left_alone(at.to_string()) || is_below(at, "/expect") ||
        is_below(at, "/mesh"))
      return;
    const auto number = value.get<std::int64_t>();
    for (const std::int64_t smaller_number : smaller_numbers(number, least_of(at))) {
      reductions.push_back({fmt::format("{}: {} -> {}", at.to_string(), number, smaller_number),
                            [at, smaller_number](Json& smaller) {
                              smaller[at] = smaller_number;
                              fit_features(smaller);
                            }});
    }
  });
  return reductions;
}

}  // namespace hpsim
