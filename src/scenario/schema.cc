#include "scenario/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/check.h"
#include "scenario/type_expr.h"

namespace hpsim {
namespace {

using Kind = TypeAlternative::Kind;

Json reference_to(std::string_view object) {
  return {{"$ref", fmt::format("#/definitions/{}", object)}};
}

Json schema_of(const TypeExpr& type);

void add_range(Json& schema, const TypeAlternative& alternative) {
  const auto number = [](double value) {
    return value == static_cast<double>(static_cast<std::int64_t>(value))
               ? Json(static_cast<std::int64_t>(value))
               : Json(value);
  };
  if (alternative.at_least) schema["minimum"] = number(*alternative.at_least);
  if (alternative.greater_than) schema["exclusiveMinimum"] = number(*alternative.greater_than);
  if (alternative.below) schema["exclusiveMaximum"] = number(*alternative.below);
}

Json schema_of(const TypeAlternative& alternative) {
  Json schema = Json::object();
  switch (alternative.kind) {
    case Kind::Any:
      break;
    case Kind::Null:
      schema["type"] = "null";
      break;
    case Kind::Boolean:
      schema["type"] = "boolean";
      break;
    case Kind::Integer:
      schema["type"] = "integer";
      add_range(schema, alternative);
      break;
    case Kind::Unsigned:
      schema["type"] = "integer";
      schema["minimum"] = 0;
      break;
    case Kind::Number:
      schema["type"] = "number";
      add_range(schema, alternative);
      break;
    case Kind::String:
      schema["type"] = "string";
      break;
    case Kind::Literal:
      schema["enum"] = Json::array({alternative.literal});
      break;
    case Kind::Array:
      schema["type"] = "array";
      schema["items"] = schema_of(alternative.element);
      break;
    case Kind::Map:
      schema["type"] = "object";
      schema["additionalProperties"] = schema_of(alternative.element);
      break;
    case Kind::Object:
      schema = reference_to(alternative.object);
      break;
  }
  return schema;
}

/// Literals share one "enum"; several alternatives become "anyOf".
Json schema_of(const TypeExpr& type) {
  Json options = Json::array();
  Json literals = Json::array();
  for (const TypeAlternative& alternative : type) {
    if (alternative.kind == Kind::Literal) {
      literals.push_back(alternative.literal);
    } else {
      options.push_back(schema_of(alternative));
    }
  }
  if (!literals.empty()) options.insert(options.begin(), Json{{"enum", literals}});
  return options.size() == 1 ? options.front() : Json{{"anyOf", options}};
}

Json schema_of(const KeySpec& key) {
  const TypeExpr type = parse_type(key.type);
  Json schema = schema_of(type);
  if (schema.contains("$ref")) schema = Json{{"allOf", Json::array({schema})}};
  std::string meaning(key.meaning);
  if (key.presence == Presence::NotYet) meaning += " (not supported yet)";
  std::string later;
  for (const TypeAlternative& alternative : type) {
    if (alternative.is_supported) continue;
    if (!later.empty()) later += ", ";
    later += describe({alternative});
  }
  if (!later.empty()) meaning += fmt::format(" (not supported yet: {})", later);
  schema["description"] = meaning;
  if (!key.fallback.empty()) schema["default"] = Json::parse(key.fallback);
  return schema;
}

Json schema_of_object(std::string_view object) {
  const std::size_t dot = object.find('.');
  const std::string_view discriminator = discriminator_of(object.substr(0, dot));
  Json properties = Json::object();
  Json required = Json::array();
  for (const KeySpec* key : keys_of(object)) {
    Json schema = schema_of(*key);
    if (key->key == discriminator) {
      schema = {{"enum", Json::array({object.substr(dot + 1)})}, {"description", key->meaning}};
    }
    properties[std::string(key->key)] = std::move(schema);
    if (key->presence == Presence::Required) required.push_back(key->key);
  }
  Json schema = {{"type", "object"}, {"additionalProperties", false}};
  if (!required.empty()) schema["required"] = std::move(required);
  schema["properties"] = std::move(properties);
  return schema;
}

void add_variants(Json& definitions, std::string_view object, std::string_view discriminator) {
  Json options = Json::array();
  for (const TypeAlternative& value : parse_type(key_spec(object, discriminator).type)) {
    const std::string variant =
        fmt::format("{}.{}", object, value.literal.get_ref<const std::string&>());
    options.push_back(reference_to(variant));
    definitions[variant] = schema_of_object(variant);
  }
  definitions[std::string(object)] = {{"oneOf", std::move(options)}};
}

}  // namespace

std::string_view discriminator_of(std::string_view object) {
  for (const VariantSpec& variant : all_variants()) {
    if (variant.object == object) return variant.discriminator;
  }
  return {};
}

std::vector<const KeySpec*> keys_of(std::string_view object) {
  std::vector<const KeySpec*> keys;
  const std::string_view shared = object.substr(0, object.find('.'));
  for (const KeySpec& key : all_keys()) {
    if (key.object == object || key.object == shared) keys.push_back(&key);
  }
  return keys;
}

const KeySpec& key_spec(std::string_view object, std::string_view key) {
  for (const KeySpec* candidate : keys_of(object)) {
    if (candidate->key == key) return *candidate;
  }
  HPSIM_CHECK(false, "{} has no key \"{}\"", object, key);
  return all_keys().front();
}

std::string schema_json() {
  Json schema = schema_of_object("Scenario");
  Json definitions = Json::object();
  std::set<std::string_view> done = {"Scenario"};
  for (const KeySpec& key : all_keys()) {
    const std::string_view object = key.object.substr(0, key.object.find('.'));
    if (!done.insert(object).second) continue;
    const std::string_view discriminator = discriminator_of(object);
    if (discriminator.empty()) {
      definitions[std::string(object)] = schema_of_object(object);
    } else {
      add_variants(definitions, object, discriminator);
    }
  }
  Json document = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                   {"title", "hpsim scenario, version 1"}};
  for (const auto& [key, value] : schema.items())
    document[key] = value;
  document["definitions"] = std::move(definitions);
  return document.dump(2) + "\n";
}

}  // namespace hpsim
