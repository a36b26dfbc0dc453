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
  CHECK(features_along(model) == std::vector<std::int64_t>{6, 10, 10, 3});
  CHECK(output_features(model) == 3);
  const ModelSpec relu_first{
      .modules = {{.name = "r", .type = ModuleType::Relu}, linear("l", 6, 10)}, .elementwise = {}};
  CHECK(features_along(relu_first) == std::vector<std::int64_t>{6, 6, 10});
}

TEST_CASE("features follow what a module reads, whoever stands before it") {
  // x + wo(core(wq(n(x)), wk(n(x)), wv(n(x)))), grouped queries: 8 features of q, 4 of k and v
  ModelSpec model;
  const auto add = [&](ModuleSpec module, std::vector<int> inputs) {
    module.inputs = std::move(inputs);
    model.modules.push_back(std::move(module));
  };
  add({.name = "n", .type = ModuleType::RmsNorm, .in_features = 8}, {});
  add(linear("wq", 8, 8), {1});
  add(linear("wk", 8, 4), {1});
  add(linear("wv", 8, 4), {1});
  add({.name = "core", .type = ModuleType::AttentionCore, .heads = 4, .kv_heads = 2, .head_dim = 2},
      {2, 3, 4});
  add(linear("wo", 8, 8), {5});
  add({.name = "sum", .type = ModuleType::Add}, {6, 0});
  CHECK(features_along(model) == std::vector<std::int64_t>{8, 8, 8, 4, 4, 8, 8, 8});
  CHECK(inputs_of(model, 0) == std::vector<int>{0});
  CHECK(inputs_of(model, 6) == std::vector<int>{6, 0});
  CHECK(list_parameters(model).size() == 1 + 4 * 2);
}

TEST_CASE("a module that is tied to another has no weight of its own") {
  ModelSpec model;
  model.positions = {5};
  model.modules.push_back(
      {.name = "tok", .type = ModuleType::Embedding, .in_features = 11, .out_features = 8});
  model.modules.push_back({.name = "ln", .type = ModuleType::LayerNorm, .in_features = 8});
  ModuleSpec out = linear("out", 8, 11);
  out.tied_to = 0;
  model.modules.push_back(out);
  const auto parameters = list_parameters(model);
  REQUIRE(parameters.size() == 4);
  CHECK(parameters[0].name == "tok.weight");
  CHECK(parameters[0].shape == Shape{11, 8});
  CHECK(parameters[1].name == "ln.weight");
  CHECK(parameters[2].name == "ln.bias");
  CHECK(parameters[3].name == "out.bias");
  CHECK(features_along(model) == std::vector<std::int64_t>{1, 8, 8, 11});
  CHECK(num_positions(model) == 5);
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

/// n, attn of wq and core and wo, m of w1 and w2, in a group b.0 of a group b; then out.
ModelSpec block() {
  using Kind = ModuleGroup::Kind;
  ModelSpec model;
  model.modules = {{.name = "b.0.n", .type = ModuleType::RmsNorm, .in_features = 4},
                   linear("b.0.attn.wq", 4, 4, false),
                   {.name = "b.0.attn.core", .type = ModuleType::AttentionCore},
                   linear("b.0.attn.wo", 4, 4, false),
                   linear("b.0.m.w1", 4, 6, false),
                   linear("b.0.m.w2", 6, 4, false),
                   linear("out", 4, 3, false)};
  model.groups = {{"b", 0, 6, Kind::Repeat},
                  {"b.0", 0, 6, Kind::Sequential},
                  {"b.0.attn", 1, 4, Kind::Attention},
                  {"b.0.m", 4, 6, Kind::Mlp}};
  return model;
}

TEST_CASE("parts of a model come in order, outer before inner") {
  const auto parts = model_parts(block());
  CHECK(names_of(parts) == Names{"b", "b.0", "b.0.n", "b.0.attn", "b.0.attn.wq", "b.0.attn.core",
                                 "b.0.attn.wo", "b.0.m", "b.0.m.w1", "b.0.m.w2", "out"});
  CHECK(parts[3].first == 1);
  CHECK(parts[3].end == 4);
  CHECK(parts[3].group == 2);
  CHECK(parts[4].first == 1);
  CHECK(parts[4].end == 2);
  CHECK(parts[4].group == -1);
}

TEST_CASE("a parameter belongs to the innermost part that is a unit") {
  const ModelSpec model = block();
  const auto parameters = list_parameters(model);  // n, wq, wo, w1, w2, out
  REQUIRE(parameters.size() == 6);
  const auto units = [&](const std::vector<std::string>& patterns) {
    return assign_units(model, parameters, patterns, true);
  };
  const auto nested = units({"**.attn", "b.*", "b.0.attn.wo"});
  CHECK(names(nested) == Names{"(root)", "b.0", "b.0.attn", "b.0.attn.wo"});
  CHECK(nested[0].parameters == Indices{5});
  CHECK(nested[1].parameters == Indices{0, 3, 4});
  CHECK(nested[2].parameters == Indices{1});
  CHECK(nested[3].parameters == Indices{2});
  CHECK(names(units({"**"})) ==
        Names{"b.0.n", "b.0.attn.wq", "b.0.attn.wo", "b.0.m.w1", "b.0.m.w2", "out"});
  CHECK(names(units({"b.0.attn.core"})) == Names{"(root)"});
}

TEST_CASE("a unit spans its part, and modules know the units that they are in") {
  const ModelSpec model = block();
  const auto units =
      assign_units(model, list_parameters(model), {"b.0", "**.attn", "b.0.attn.core"}, true, {4});
  REQUIRE(names(units) == Names{"(root)", "b.0", "b.0.attn", "(ignored)"});
  const auto range = [&](std::size_t unit) { return Indices{units[unit].first, units[unit].end}; };
  CHECK(range(0) == Indices{0, 7});
  CHECK(range(1) == Indices{0, 6});
  CHECK(range(2) == Indices{1, 4});
  CHECK(range(3) == Indices{0, 0});
  CHECK(units_around(model, units) ==
        std::vector<Indices>{{1}, {1, 2}, {1, 2}, {1, 2}, {1}, {1}, {}});
}

TEST_CASE("outer units stand before inner ones whichever has the first parameter") {
  ModelSpec model;
  model.modules = {linear("b.in.w", 4, 4, false), linear("b.w", 4, 4, false)};
  model.groups = {{"b", 0, 2, ModuleGroup::Kind::Sequential},
                  {"b.in", 0, 1, ModuleGroup::Kind::Sequential}};
  const auto units = assign_units(model, list_parameters(model), {"b", "b.in"}, true);
  REQUIRE(names(units) == Names{"b.in", "b"});
  CHECK(units_around(model, units) == std::vector<Indices>{{1, 0}, {1}});
}

TEST_CASE("without patterns every top-level module is a unit") {
  const ModelSpec model = block();
  const auto units = assign_units(model, list_parameters(model), {}, false);
  CHECK(names(units) == Names{"b", "out"});
  CHECK(units[0].parameters == Indices{0, 1, 2, 3, 4});
  CHECK(unit_owners(model, model_parts(model), {}, false) == Indices{0, 0, 0, 0, 0, 0, 10});
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
