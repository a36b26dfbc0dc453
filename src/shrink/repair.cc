#include "shrink/repair.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;

/// Those below are fine, but for the shape and names of the mesh.
bool is_indispensable(const std::string& pointer) {
  static const char* const kKept[] = {
      "", "/hpsim", "/mesh", "/mesh/shape", "/mesh/mesh_dim_names", "/model", "/parameters"};
  return std::find(std::begin(kKept), std::end(kKept), pointer) != std::end(kKept) ||
         pointer.rfind("/mesh/shape/", 0) == 0 || pointer.rfind("/mesh/mesh_dim_names/", 0) == 0;
}

std::size_t index_of(const std::string& token) {
  return static_cast<std::size_t>(std::stoull(token));
}

bool is_index(const std::string& token) {
  return !token.empty() && token.size() < 10 &&
         token.find_first_not_of("0123456789") == std::string::npos;
}

/// Whether the value at `a` must go before that at `b`: behind it in the same array, or deeper.
bool goes_before(const Json::json_pointer& a, const Json::json_pointer& b) {
  const auto key = [](const Json::json_pointer& pointer) {
    const std::string last = pointer.back();
    return std::tuple(pointer.parent_pointer().to_string(), is_index(last) ? index_of(last) : 0,
                      last);
  };
  return key(a) > key(b);
}

void erase(Json& scenario, const Json::json_pointer& pointer) {
  if (!scenario.contains(pointer)) return;
  Json& parent = scenario.at(pointer.parent_pointer());
  if (parent.is_array()) {
    parent.erase(index_of(pointer.back()));
  } else {
    parent.erase(pointer.back());
  }
}

}  // namespace

bool leave_out_refused(Json& scenario, const std::vector<Diagnostic>& diagnostics) {
  std::vector<Json::json_pointer> refused;
  for (const Diagnostic& diagnostic : diagnostics) {
    if (is_indispensable(diagnostic.pointer)) return false;
    const Json::json_pointer pointer(diagnostic.pointer);
    if (!scenario.contains(pointer)) return false;  // long keys are shortened in pointers
    refused.push_back(pointer);
  }
  std::sort(refused.begin(), refused.end(), goes_before);
  refused.erase(std::unique(refused.begin(), refused.end()), refused.end());
  for (const Json::json_pointer& pointer : refused)
    erase(scenario, pointer);
  return !refused.empty();
}

}  // namespace hpsim
