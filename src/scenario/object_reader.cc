#include "scenario/object_reader.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "scenario/schema.h"
#include "scenario/type_expr.h"

namespace hpsim {
namespace {

const Json& empty_object() {
  static const Json kEmpty = Json::object();
  return kEmpty;
}

}  // namespace

ObjectReader::ObjectReader(JsonCursor at, std::string object, Problems& problems)
    : at_(std::move(at)), blame_(at_), object_(std::move(object)), problems_(&problems) {
  HPSIM_CHECK(at_.is_object(), "{} is no object", at_.pointer);
  const std::string_view discriminator = discriminator_of(object_);
  if (discriminator.empty() || is_bad(discriminator)) return;
  if (const Json* kind = find(discriminator)) {
    object_ = fmt::format("{}.{}", object_, kind->get_ref<const std::string&>());
  }
}

const Json* ObjectReader::find(std::string_view key) const {
  const auto found = at_.value->find(std::string(key));
  return found == at_.value->end() ? nullptr : &*found;
}

bool ObjectReader::has(std::string_view key) const {
  return find(key) != nullptr;
}

bool ObjectReader::is_bad(std::string_view key) const {
  const Json* const found = find(key);
  return found != nullptr && problems_->is_bad(*found);
}

JsonCursor ObjectReader::where(std::string_view key) const {
  const Json* const found = find(key);
  return found == nullptr ? blame_ : at_.member(key, *found);
}

std::string_view ObjectReader::variant() const {
  const std::size_t dot = object_.find('.');
  return dot == std::string::npos ? std::string_view() : std::string_view(object_).substr(dot + 1);
}

std::optional<Json> ObjectReader::value(std::string_view key) const {
  const KeySpec& spec = key_spec(object_, key);
  const Json* const found = find(key);
  if (found != nullptr) {
    if (problems_->is_bad(*found)) return std::nullopt;
    return *found;
  }
  if (spec.fallback.empty()) return std::nullopt;
  return Json::parse(spec.fallback);
}

std::optional<bool> ObjectReader::boolean(std::string_view key) const {
  const auto found = value(key);
  if (!found || !found->is_boolean()) return std::nullopt;
  return found->get<bool>();
}

std::optional<std::int64_t> ObjectReader::integer(std::string_view key) const {
  const auto found = value(key);
  if (!found) return std::nullopt;
  return as_int64(*found);
}

std::optional<std::uint64_t> ObjectReader::unsigned_integer(std::string_view key) const {
  const auto found = value(key);
  if (!found || !found->is_number_unsigned()) return std::nullopt;
  return found->get<std::uint64_t>();
}

std::optional<double> ObjectReader::number(std::string_view key) const {
  const auto found = value(key);
  if (!found || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::optional<std::string> ObjectReader::string(std::string_view key) const {
  const auto found = value(key);
  if (!found || !found->is_string()) return std::nullopt;
  return found->get<std::string>();
}

std::optional<std::vector<std::int64_t>> ObjectReader::integers(std::string_view key) const {
  const auto found = value(key);
  if (!found || !found->is_array()) return std::nullopt;
  std::vector<std::int64_t> integers;
  for (const Json& element : *found)
    integers.push_back(as_int64(element).value());
  return integers;
}

std::optional<std::vector<double>> ObjectReader::numbers(std::string_view key) const {
  const auto found = value(key);
  if (!found || !found->is_array()) return std::nullopt;
  return found->get<std::vector<double>>();
}

std::optional<std::vector<std::string>> ObjectReader::strings(std::string_view key) const {
  const auto found = value(key);
  if (!found || !found->is_array()) return std::nullopt;
  return found->get<std::vector<std::string>>();
}

bool ObjectReader::is_null(std::string_view key) const {
  const auto found = value(key);
  return found && found->is_null();
}

ObjectReader ObjectReader::object(std::string_view key, std::string object) const {
  const Json* const found = find(key);
  if (found == nullptr || !found->is_object()) {
    ObjectReader reader({&empty_object(), at_.pointer}, std::move(object), *problems_);
    reader.blame_ = where(key);
    return reader;
  }
  return {at_.member(key, *found), std::move(object), *problems_};
}

std::vector<std::pair<std::string, JsonCursor>> ObjectReader::members(std::string_view key) const {
  const Json* const found = find(key);
  if (found == nullptr || !found->is_object()) return {};
  return at_.member(key, *found).members();
}

std::vector<JsonCursor> ObjectReader::elements(std::string_view key) const {
  std::vector<JsonCursor> elements;
  const Json* const found = find(key);
  if (found == nullptr || !found->is_array()) return elements;
  const JsonCursor at = at_.member(key, *found);
  for (std::size_t i = 0; i < found->size(); ++i)
    elements.push_back(at.element(i, (*found)[i]));
  return elements;
}

}  // namespace hpsim
