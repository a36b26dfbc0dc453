#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scenario/json_text.h"
#include "scenario/problems.h"

namespace hpsim {

/// Reads the values of one object of a file that check_types has seen. Absent keys have the
/// default of the key table. A value is missing (nullopt) if something is wrong with it, or if the
/// key is absent and has no default: whoever needs it then skips what depends on it.
class ObjectReader {
 public:
  /// \pre `at` is an object. `object` is its type in the key table.
  ObjectReader(JsonCursor at, std::string object, Problems& problems);

  /// The object itself.
  [[nodiscard]] const JsonCursor& at() const { return at_; }
  [[nodiscard]] bool has(std::string_view key) const;
  /// Whether the key is given and something is wrong with its value.
  [[nodiscard]] bool is_bad(std::string_view key) const;
  /// The value of the key for a message; if absent, the object, or what should contain it.
  [[nodiscard]] JsonCursor where(std::string_view key) const;
  [[nodiscard]] Problems& problems() const { return *problems_; }

  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const;
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const;
  [[nodiscard]] std::optional<std::uint64_t> unsigned_integer(std::string_view key) const;
  [[nodiscard]] std::optional<double> number(std::string_view key) const;
  [[nodiscard]] std::optional<std::string> string(std::string_view key) const;
  [[nodiscard]] std::optional<std::vector<std::int64_t>> integers(std::string_view key) const;
  [[nodiscard]] std::optional<std::vector<double>> numbers(std::string_view key) const;
  [[nodiscard]] std::optional<std::vector<std::string>> strings(std::string_view key) const;

  /// Whether the value is null, given so or by default.
  [[nodiscard]] bool is_null(std::string_view key) const;

  /// "sgd" for an object of type "Optimizer.sgd"; empty if its discriminator is missing or bad.
  [[nodiscard]] std::string_view variant() const;

  /// The object at `key`, of type `object`; an empty one if the key is absent or no object.
  [[nodiscard]] ObjectReader object(std::string_view key, std::string object) const;
  /// Members of the map or elements of the array at `key`; none if it is absent or neither.
  [[nodiscard]] std::vector<std::pair<std::string, JsonCursor>> members(std::string_view key) const;
  [[nodiscard]] std::vector<JsonCursor> elements(std::string_view key) const;

 private:
  /// The good value of a key: given, or the default; nothing otherwise.
  [[nodiscard]] std::optional<Json> value(std::string_view key) const;
  [[nodiscard]] const Json* find(std::string_view key) const;

  JsonCursor at_;
  JsonCursor blame_;  ///< at_, or the object that lacks it
  std::string object_;
  Problems* problems_;
};

}  // namespace hpsim
