#include "scenario_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "scenario/parse.h"
#include "support/catch.h"

namespace hpsim {
namespace {

std::string closed(std::string text, std::string_view members) {
  if (!members.empty()) text.append(", ").append(members);
  return text + "}";
}

}  // namespace

std::string minimal_with(std::string_view members) {
  return closed(R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]}, )"
                R"("parameters": {"weight": [7, 8]})",
                members);
}

std::string chain_with(std::string_view members) {
  return closed(
      R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]}, )"
      R"("model": [{"name": "l0", "type": "linear", "in_features": 8, "out_features": 7}, )"
      R"({"name": "a0", "type": "tanh"}, )"
      R"({"name": "l1", "type": "linear", "in_features": 7, "out_features": 3}])",
      members);
}

std::string on_mesh(std::string_view shape, std::string_view names, std::string_view members) {
  return closed(fmt::format(R"({{"hpsim": 1, "mesh": {{"shape": {}, "mesh_dim_names": {}}}, )"
                            R"("parameters": {{"weight": [7, 8]}})",
                            shape, names),
                members);
}

Scenario parsed(std::string_view text) {
  return parse_scenario(text, "dir/file.json");
}

std::vector<Diagnostic> diagnostics_of(std::string_view text) {
  try {
    static_cast<void>(parsed(text));
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::InvalidScenario);
    return error.diagnostics();
  }
  FAIL("no complaint about " << text);
  return {};
}

std::string messages_of(std::string_view text) {
  std::string messages;
  for (const Diagnostic& diagnostic : diagnostics_of(text))
    messages += diagnostic.message + "\n";
  return messages;
}

std::string read_file(const std::string& path) {
  std::ifstream file(std::string(HPSIM_SOURCE_DIR) + "/" + path, std::ios::binary);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> files_in(const std::string& folder, std::string_view extension) {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(HPSIM_SOURCE_DIR) + "/" + folder)) {
    if (entry.path().extension() == extension) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace hpsim
