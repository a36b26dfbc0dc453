#include "model/model_spec.h"
#include "model/parameters.h"
#include "model/units.h"
#include "support/catch.h"

namespace hpsim {
namespace {

ModuleSpec linear(const std::string& name, std::int64_t in, std::int64_t out, bool bias = true) {
  return {.name = name,
          .type = ModuleType::Linear,
          .in_features = in,
          .out_features = out,
          .bias = bias};
}

ModelSpec chain() {
  return {.modules = {linear("l0", 6, 10),
                      {.name = "a0", .type = ModuleType::Gelu},
                      linear("l1", 10, 3, false)},
          .elementwise = {}};
}

TEST_CASE("parameters come in module order, weight before bias") {
  const auto parameters = list_parameters(chain());
  REQUIRE(parameters.size() == 3);
  CHECK(parameters[0].name == "l0.weight");
  CHECK(parameters[0].shape == Shape{10, 6});
  CHECK(parameters[1].name == "l0.bias");
  CHECK(parameters[1].shape == Shape{10});
  CHECK(parameters[2].name == "l1.weight");
  CHECK(parameters[2].module == 2);
}

TEST_CASE("features follow the linears") {
  const ModelSpec model = chain();
  CHECK(features_before_module(model, 0) == 6);
  CHECK(features_before_module(model, 1) == 10);
  CHECK(features_before_module(model, 2) == 10);
  CHECK(features_before_module(model, 3) == 3);
  CHECK(features_along(model) == std::vector<std::int64_t>{6, 10, 10, 3});
  CHECK(output_features(model) == 3);
  const ModelSpec relu_first{
      .modules = {{.name = "r", .type = ModuleType::Relu}, linear("l", 6, 10)}, .elementwise = {}};
  CHECK(features_before_module(relu_first, 0) == 6);
  CHECK(features_before_module(relu_first, 1) == 6);
  CHECK(features_before_module(relu_first, 2) == 10);
  CHECK(features_along(relu_first) == std::vector<std::int64_t>{6, 6, 10});
}

std::vector<std::string> names(const std::vector<UnitSpec>& units) {
  std::vector<std::string> result;
  for (const UnitSpec& unit : units)
    result.push_back(unit.name);
  return result;
}

using Names = std::vector<std::string>;
using Indices = std::vector<int>;

TEST_CASE("units: every match is one, the rest is the root unit and comes first") {
  const ModelSpec model = chain();
  const auto parameters = list_parameters(model);
  const auto by_module = assign_units(model, parameters, {}, false);
  CHECK(names(by_module) == Names{"l0", "l1"});
  CHECK(by_module[0].parameters == Indices{0, 1});
  const auto one = assign_units(model, parameters, {"l1"}, true);
  CHECK(names(one) == Names{"(root)", "l1"});
  CHECK(one[0].parameters == Indices{0, 1});
  CHECK(one[0].is_root);
  CHECK(names(assign_units(model, parameters, {"a0"}, true)) == Names{"(root)"});
  CHECK(names(assign_units(model, parameters, {}, true)) == Names{"(root)"});
  CHECK(names(assign_units(model, parameters, {"l*", "l0"}, true)) == Names{"l0", "l1"});
}

TEST_CASE("units of elementwise parameters match parameter names; without patterns one root unit") {
  const ModelSpec model{.modules = {}, .elementwise = {{"a", {2}}, {"b", {3}}, {"c", {4}}}};
  const auto parameters = list_parameters(model);
  CHECK(names(assign_units(model, parameters, {}, false)) == Names{"(root)"});
  const auto units = assign_units(model, parameters, {"b"}, true);
  CHECK(names(units) == Names{"(root)", "b"});
  CHECK(units[0].parameters == Indices{0, 2});
}

}  // namespace
}  // namespace hpsim
