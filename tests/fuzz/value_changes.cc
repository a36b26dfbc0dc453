#include "fuzz/value_changes.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

namespace hpsim {
namespace {

using Kind = TypeAlternative::Kind;

/// Words of the format, and of names in it.
constexpr std::string_view kWords[] = {"",
                                       "fsdp",
                                       "dp",
                                       "rep",
                                       "tp",
                                       "ep",
                                       "shard",
                                       "dp.shard",
                                       "*",
                                       "**",
                                       "*.weight",
                                       "**.bias",
                                       "l0",
                                       "l*",
                                       "weight",
                                       "tok.weight",
                                       "blocks.*",
                                       "**.attn",
                                       "Replicate",
                                       "Shard(0)",
                                       "Shard(1)",
                                       "Shard(-1)",
                                       "Shard(0, uneven)",
                                       "Partial(sum)",
                                       "StridedShard(0, 2)",
                                       "_StridedShard(0, 2)",
                                       "RaggedShard((0,), (2, 2, 2, 1))",
                                       "RaggedStridedShard((0,), (3, 2), 2)",
                                       "Shard(99999999999999999999)",
                                       "Shard(",
                                       "every",
                                       "group",
                                       "none",
                                       "global_tokens",
                                       "local_mean",
                                       "bfloat16",
                                       "float16",
                                       "float64",
                                       "l0.weight",
                                       "l1",
                                       "last",
                                       "exact",
                                       "uniform",
                                       "linear",
                                       "sgd",
                                       "inf",
                                       "/~",
                                       "\x1b[2J",
                                       "\n",
                                       "\xE6\x9D\x83\xE9\x87\x8D",
                                       "\xD9\x88\xD8\xB2\xD9\x86",
                                       "\xF0\x9F\x98\x80",
                                       "e\xCC\x81"};

constexpr std::int64_t kIntegers[] = {0,
                                      1,
                                      2,
                                      3,
                                      4,
                                      5,
                                      7,
                                      8,
                                      9,
                                      64,
                                      65,
                                      -1,
                                      1000000000,
                                      std::int64_t{1} << 31,
                                      std::int64_t{1} << 53,
                                      std::int64_t{1} << 62,
                                      INT64_MAX,
                                      INT64_MIN};

constexpr double kDoubles[] = {0.0, -0.0, 0.5, 1.0, 2.5, -1.5, 1e-308, 5e-324, 1e16, 1e19, 1e308};

const KeySpec* spec_of(std::string_view key) {
  const auto keys = all_keys();
  const auto found =
      std::find_if(keys.begin(), keys.end(), [&](const KeySpec& spec) { return spec.key == key; });
  return found == keys.end() ? nullptr : &*found;
}

/// What elements of the array or values of the map may be; empty if the type is neither.
TypeExpr element_type(const TypeExpr& type) {
  for (const TypeAlternative& option : type) {
    if (option.kind == Kind::Array || option.kind == Kind::Map) return option.element;
  }
  return {};
}

}  // namespace

void ValueChanges::change(Json& root) {
  const Place place = pick_place(root);
  switch (dice_.below(8)) {
    case 0:
    case 1:
    case 2:
      *place.value = place.type.empty() ? edge() : made_for(place.type, 4);
      break;
    case 3:
      *place.value = edge();
      break;
    case 4:
      *place.value = Json(*pick_place(root).value);
      break;
    default:
      change_inside(*place.value);
  }
}

void ValueChanges::graft(Json& root, Json& other) {
  *pick_place(root).value = *pick_place(other).value;
}

ValueChanges::Place ValueChanges::pick_place(Json& root) {
  Place place{&root, {}};
  while (place.value->is_structured() && !place.value->empty() && !dice_.one_in(5))
    place = child_of(place);
  return place;
}

ValueChanges::Place ValueChanges::child_of(const Place& parent) {
  if (parent.value->is_array()) {
    return {&(*parent.value)[dice_.below(parent.value->size())], element_type(parent.type)};
  }
  auto& members = parent.value->get_ref<Json::object_t&>();
  auto& [key, member] =
      *std::next(members.begin(), static_cast<std::ptrdiff_t>(dice_.below(members.size())));
  const KeySpec* const spec = spec_of(key);
  return {&member, spec != nullptr ? parse_type(spec->type) : element_type(parent.type)};
}

Json ValueChanges::edge() {
  switch (dice_.below(5)) {
    case 0:
      return nullptr;
    case 1:
      return dice_.one_in(2);
    case 2:
      return dice_.pick(kDoubles);
    case 3:
      return std::string(dice_.pick(kWords));
    default:
      return dice_.pick(kIntegers);
  }
}

Json ValueChanges::made_for(const TypeExpr& type, int depth) {
  const TypeAlternative& option = dice_.pick(type);
  if (depth == 0) return edge();
  switch (option.kind) {
    case Kind::Null:
      return nullptr;
    case Kind::Boolean:
      return dice_.one_in(2);
    case Kind::Integer:
    case Kind::Unsigned:
    case Kind::Number:
      return made_number(option);
    case Kind::String:
      return std::string(dice_.pick(kWords));
    case Kind::Literal:
      return option.literal;
    case Kind::Array: {
      Json array = Json::array();
      for (std::size_t i = dice_.below(5); i > 0; --i)
        array.push_back(made_for(option.element, depth - 1));
      return array;
    }
    case Kind::Map: {
      Json map = Json::object();
      for (std::size_t i = dice_.below(4); i > 0; --i)
        map[std::string(dice_.pick(kWords))] = made_for(option.element, depth - 1);
      return map;
    }
    case Kind::Object:
      return made_object(option.object, depth);
    case Kind::Any:
      break;
  }
  return edge();
}

Json ValueChanges::made_number(const TypeAlternative& option) {
  Json number;
  for (int tries = 0; tries < 4; ++tries) {
    if (option.kind == Kind::Number) {
      number = dice_.pick(kDoubles);
    } else {
      number = dice_.one_in(4) ? dice_.pick(kIntegers) : static_cast<std::int64_t>(dice_.below(9));
    }
    if (matches(number, option)) break;
  }
  return number;
}

Json ValueChanges::made_object(const std::string& name, int depth) {
  Json object = Json::object();
  std::string variant = name;
  if (const std::string_view discriminator = discriminator_of(name); !discriminator.empty()) {
    const Json kind = made_for(parse_type(key_spec(name, discriminator).type), 1);
    object[std::string(discriminator)] = kind;
    if (kind.is_string()) variant += "." + kind.get<std::string>();
  }
  for (const KeySpec* key : keys_of(variant)) {
    if (object.contains(std::string(key->key))) continue;
    if (key->presence == Presence::Required || dice_.one_in(3)) {
      object[std::string(key->key)] = made_for(parse_type(key->type), depth - 1);
    }
  }
  return object;
}

const KeySpec& ValueChanges::sibling(std::string_view key) {
  const KeySpec* const known = spec_of(key);
  if (known == nullptr || dice_.one_in(8)) return dice_.pick(all_keys());
  return *dice_.pick(keys_of(known->object));
}

std::string ValueChanges::new_key(std::string_view key) {
  return std::string(dice_.one_in(2) ? sibling(key).key : dice_.pick(kWords));
}

void ValueChanges::change_inside(Json& value) {
  if (value.is_array()) {
    change_array(value);
  } else if (value.is_object()) {
    change_object(value.get_ref<Json::object_t&>());
  } else if (value.is_number_integer()) {
    change_number(value);
  } else {
    value = edge();
  }
}

void ValueChanges::change_number(Json& number) {
  const auto bits = static_cast<std::uint64_t>(number.get<std::int64_t>());
  switch (dice_.below(5)) {
    case 0:
      number = static_cast<std::int64_t>(bits + 1);
      break;
    case 1:
      number = static_cast<std::int64_t>(bits - 1);
      break;
    case 2:
      number = static_cast<std::int64_t>(bits * 2);
      break;
    case 3:
      number = static_cast<double>(bits);
      break;
    default:
      number = static_cast<std::int64_t>(1 + dice_.below(8));
  }
}

void ValueChanges::change_array(Json& array) {
  if (array.empty()) {
    array.push_back(edge());
    return;
  }
  const std::size_t at = dice_.below(array.size());
  switch (dice_.below(5)) {
    case 0:
      array.erase(at);
      break;
    case 1:
      array.push_back(edge());
      break;
    case 2:
      std::swap(array[at], array[dice_.below(array.size())]);
      break;
    default: {
      const Json copy = array[at];
      for (std::size_t i = dice_.below(4); i > 0; --i)
        array.push_back(copy);
    }
  }
}

void ValueChanges::change_object(Json::object_t& object) {
  if (object.empty()) {
    const KeySpec& spec = dice_.pick(all_keys());
    object[std::string(spec.key)] = made_for(parse_type(spec.type), 3);
    return;
  }
  const auto [key, value] = dice_.pick(object);
  switch (dice_.below(5)) {
    case 0:
      object.erase(key);
      break;
    case 1:
      object[new_key(key)] = value;
      break;
    case 2:
      object.erase(key);
      object[new_key(key)] = value;
      break;
    default: {
      const KeySpec& spec = sibling(key);
      object[std::string(spec.key)] = made_for(parse_type(spec.type), 3);
    }
  }
}

}  // namespace hpsim
