#include "scenario/locate.h"

#include <nlohmann/json.hpp>

#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

struct Row {
  std::string pointer;
  std::int64_t line;
  std::int64_t column;
};

void check_rows(const std::string& text, const std::vector<Row>& rows) {
  std::vector<std::string> pointers;
  for (const Row& row : rows)
    pointers.push_back(row.pointer);
  const std::vector<SourcePosition> places = locate(text, pointers);
  REQUIRE(places.size() == rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CAPTURE(rows[i].pointer, places[i].line, places[i].column);
    CHECK(places[i] == SourcePosition{rows[i].line, rows[i].column});
  }
}

TEST_CASE("a pointer reaches a value, or the deepest there is") {
  check_rows(
      "{\n"
      "  \"mesh\": {\"shape\": [2, 4]},\n"
      "  \"a/b\": {\"\": null}\n"
      "}",
      {
          {"", 1, 1},
          {"/mesh", 2, 11},
          {"/mesh/shape", 2, 21},
          {"/mesh/shape/0", 2, 22},
          {"/mesh/shape/1", 2, 25},
          {"/mesh/shape/2", 2, 21},
          {"/mesh/shape/01", 2, 21},
          {"/mesh/shape/-", 2, 21},
          {"/mesh/shape/+1", 2, 21},
          {"/mesh/shape/1x", 2, 21},
          {"/mesh/shape/99999999999999999999999", 2, 21},
          {"/mesh/shape/1/0", 2, 25},
          {"/mesh/names/0", 2, 11},
          {"/a~1b", 3, 10},
          {"/a~1b/", 3, 15},
          {"/a~1b//x", 3, 15},
          {"/a/b", 1, 1},
          {"mesh", 1, 1},
          {"/nothing/shape/1", 1, 1},
      });
}

TEST_CASE("tildes in keys, columns of characters, comments before the first value") {
  check_rows(
      "// \"a\": 1\n"
      "\n"
      "  {\"\xC3\xA9\": {\"~1\": 7, \"~\": 8}}",
      {{"", 3, 3}, {"/\xC3\xA9/~01", 3, 16}, {"/\xC3\xA9/~0", 3, 24}, {"/\xC3\xA9/~1", 3, 9}});
  CHECK(locate("{}", {}).empty());
}

TEST_CASE("lines and columns of shipped scenarios, as an editor shows them") {
  check_rows(read_file("scenarios/fsdp/linear_chain.json"),
             {{"/model/2", 11, 5},
              {"/model/2/out_features", 11, 72},
              {"/expect/counts/reduce_scatter", 67, 51},
              {"/expect/parameters/0/padded_shape/1", 26, 29},
              {"/expect/counts/broadcast", 67, 15}});
  check_rows(read_file("scenarios/fsdp/units_by_pattern.json"),
             {{"", 1, 1},
              {"/parameters/head", 8, 89},
              {"/parameters/blocks.1.scale/0", 8, 77},
              {"/expect/parameters/0/shards/0/shape/2", 23, 60}});
  check_rows(read_file("scenarios/hsdp/b6_replicated_biases_on_2x2.json"),
             {{"/mesh/mesh_dim_names/1", 7, 55}, {"/model/0", 9, 5}, {"/training/steps", 14, 25}});
}

/// Byte of a position, counted anew from the start of the text.
std::size_t byte_at(const std::string& text, const SourcePosition& place) {
  std::size_t byte = 0;
  for (std::int64_t line = 1; line < place.line; ++line)
    byte = text.find('\n', byte) + 1;
  for (std::int64_t column = 1; column < place.column; ++column) {
    do {
      ++byte;
    } while ((static_cast<unsigned char>(text.at(byte)) & 0xC0U) == 0x80U);
  }
  return byte;
}

/// What stands before a byte, without blanks at its end.
std::string before(const std::string& text, std::size_t byte) {
  return text.substr(0, text.find_last_not_of(" \n", byte - 1) + 1);
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

struct Value {
  std::string pointer;
  const Json* value = nullptr;
  std::string key;  ///< as it stands in the text; empty for elements of arrays and the root
};

void list_values(const Json& value, const std::string& pointer, const std::string& key,
                 std::vector<Value>& values) {
  values.push_back({pointer, &value, key});
  if (value.is_structured()) {
    for (const auto& [name, item] : value.items()) {
      list_values(item, pointer + "/" + pointer_token(name),
                  value.is_object() ? Json(name).dump() : std::string(), values);
    }
  }
}

TEST_CASE("every value of the shipped scenarios stands where it is located") {
  std::size_t num_values = 0;
  for (const std::string folder : {"scenarios/fsdp", "scenarios/hsdp", "scenarios/tp"}) {
    for (const std::string& file : files_in(folder, ".json")) {
      CAPTURE(file);
      const std::string text = read_file(folder + "/" + file);
      const Json root = Json::parse(text, nullptr, true, true);
      std::vector<Value> values;
      list_values(root, "", "", values);
      std::vector<std::string> pointers;
      for (const Value& value : values)
        pointers.push_back(value.pointer);
      const std::vector<SourcePosition> places = locate(text, pointers);
      REQUIRE(places.size() == values.size());
      std::size_t last_byte = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        CAPTURE(values[i].pointer);
        const std::size_t byte = byte_at(text, places[i]);
        const Json& value = *values[i].value;
        const char first = value.is_object() ? '{' : value.is_array() ? '[' : value.dump().front();
        REQUIRE(text.at(byte) == first);
        if (value.is_string()) REQUIRE(text.substr(byte, value.dump().size()) == value.dump());
        if (!values[i].key.empty()) REQUIRE(ends_with(before(text, byte), values[i].key + ":"));
        REQUIRE((i == 0 || byte > last_byte));
        last_byte = byte;
      }
      num_values += values.size();
    }
  }
  CHECK(num_values > 3000);
}

TEST_CASE("a parameter is said by its entry of parameters, or by its module") {
  const auto pointers = [](const Scenario& scenario) {
    std::vector<std::string> all;
    for (const ParameterSpec& parameter : scenario.parameters)
      all.push_back(parameter_pointer(scenario, parameter));
    return all;
  };
  CHECK(pointers(parsed(chain_with(""))) ==
        std::vector<std::string>{"/model/0", "/model/0", "/model/2", "/model/2"});
  const Scenario tree = parsed(
      R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]}, "model": [)"
      R"({"type": "sequential", "modules": [{"type": "relu"}, {"type": "residual", "modules": [)"
      R"({"type": "mlp", "dim": 8, "hidden": 4, "gated": false}, {"type": "rms_norm", "dim": 8}]},)"
      R"({"type": "rms_norm", "dim": 8}]}, {"type": "repeat", "count": 2, "module":)"
      R"({"type": "repeat", "count": 2, "module": {"type": "linear", "in_features": 8,)"
      R"("out_features": 8, "bias": false}}}, {"type": "rms_norm", "dim": 8}],)"
      R"("data": {"sample_shape": [8]}})");
  const std::string repeated = "/model/1/module/module";
  CHECK(pointers(tree) ==
        std::vector<std::string>{"/model/0/modules/1/modules/0", "/model/0/modules/1/modules/0",
                                 "/model/0/modules/1/modules/1", "/model/0/modules/2", repeated,
                                 repeated, repeated, repeated, "/model/2"});
  CHECK(module_pointer(tree.model, 5) == "/model/0/modules/1");  // the sum of the residual
  const Scenario elementwise =
      parsed(R"({"hpsim": 1, "mesh": {"shape": [4], "mesh_dim_names": ["fsdp"]},)"
             R"("parameters": {"weight": [7, 8], "a/b~c": [4]}})");
  CHECK(pointers(elementwise) ==
        std::vector<std::string>{"/parameters/weight", "/parameters/a~1b~0c"});
  REQUIRE(elementwise.source);
  CHECK(locate(*elementwise.source, {"/parameters/a~1b~0c"})[0] == SourcePosition{1, 107});
}

}  // namespace
}  // namespace hpsim
