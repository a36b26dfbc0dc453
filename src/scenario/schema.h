#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hpsim {

/// Whether a key must, may or must not (yet) be given.
enum class Presence {
  Required,
  Optional,
  NotYet,  ///< in the format; this version takes only the default
};

/// One key of the scenario format. The table of all of them is what the reader checks files
/// against, what messages quote and what the JSON Schema says.
struct KeySpec {
  std::string_view object;  ///< the object type it belongs to: "Mesh", "Module.linear"
  std::string_view key;
  std::string_view type;  ///< notation of type_expr.h
  std::string_view
      fallback;  ///< the default as JSON; empty if there is none, or if it depends on other keys
  Presence presence = Presence::Optional;
  std::string_view meaning;
};

/// Every key, by object, in the order of the format's documentation.
[[nodiscard]] std::span<const KeySpec> all_keys();

/// An object type whose other keys depend on one of its own: "Module" on "type".
struct VariantSpec {
  std::string_view object;
  std::string_view discriminator;
};

[[nodiscard]] std::span<const VariantSpec> all_variants();

/// The discriminating key of an object type; empty for most.
[[nodiscard]] std::string_view discriminator_of(std::string_view object);

/// The keys of an object type in table order. "Module.linear" has those of "Module" too.
[[nodiscard]] std::vector<const KeySpec*> keys_of(std::string_view object);

/// The row of a key. \pre the object type has it
[[nodiscard]] const KeySpec& key_spec(std::string_view object, std::string_view key);

/// The JSON Schema (draft-07) of the whole format, for editors; ends with a newline. Keys that are
/// not supported yet are in it, and say so.
[[nodiscard]] std::string schema_json();

}  // namespace hpsim
