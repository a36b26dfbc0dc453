#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fuzz/dice.h"
#include "scenario/json_text.h"
#include "scenario/schema.h"
#include "scenario/type_expr.h"

namespace hpsim {

/// Changes to the values of a document: it stays JSON, so that the damage gets as far as the checks
/// on meaning. New values are those of the document, edges of what numbers can be, words of the
/// format, and whatever the key table says a key may be; new keys come from the key table.
///
///   {"training": {"steps": 1}}  ->  {"training": {"steps": 1, "micro_batches": 3}}
///                                   {"training": {"steps": -9223372036854775808}}
class ValueChanges {
 public:
  explicit ValueChanges(Dice& dice) : dice_(dice) {}

  /// Changes one value.
  void change(Json& root);
  /// Puts a value of the other document into this one.
  void graft(Json& root, Json& other);

 private:
  /// A value, and what it may be if the key table says it.
  struct Place {
    Json* value = nullptr;
    TypeExpr type;
  };
  /// A walk from the root that may end anywhere: large sections are not met more often.
  Place pick_place(Json& root);
  Place child_of(const Place& parent);

  Json edge();
  /// A value of the type, or nearly.
  Json made_for(const TypeExpr& type, int depth);
  Json made_number(const TypeAlternative& option);
  Json made_object(const std::string& name, int depth);
  /// Another key of an object type that has `key` too, or any.
  const KeySpec& sibling(std::string_view key);
  std::string new_key(std::string_view key);

  void change_inside(Json& value);
  void change_number(Json& number);
  void change_array(Json& array);
  void change_object(Json::object_t& object);

  Dice& dice_;
};

}  // namespace hpsim
