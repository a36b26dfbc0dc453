#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scenario/json_text.h"

namespace hpsim {

struct TypeAlternative;

/// What a value may be: any of the alternatives.
///
///   notation       means                                  described as
///   int>=1         integer, also written 2.0              an integer of at least 1
///   number>0       number                                 a number greater than 0
///   number>=0<1                                           a number of at least 0 and below 1
///   uint           0 ... 2^64 - 1                         an integer in 0..2^64-1
///   'avg' | 'sum'  these strings                          "avg" or "sum"
///   fault          the names of all_faults()              one of the known names
///   1              this number                            1
///   [int]          array, every element an integer        an array
///   {string}       object, any keys, string values        an object
///   Mesh           object with the keys of Mesh           an object
///   any            anything                               anything
///   bool | ~int    ~: in the format, not supported yet    true or false
using TypeExpr = std::vector<TypeAlternative>;

struct TypeAlternative {
  enum class Kind {
    Any,
    Null,
    Boolean,
    Integer,
    Unsigned,
    Number,
    String,
    Literal,
    Array,
    Map,
    Object,
  };
  Kind kind = Kind::Any;
  bool is_supported = true;
  std::optional<double> at_least;
  std::optional<double> greater_than;
  std::optional<double> below;
  Json literal;
  std::string object;  ///< name of the object type
  TypeExpr element;    ///< of Array and Map
};

/// \pre `notation` is well formed: it comes from the key table
[[nodiscard]] TypeExpr parse_type(std::string_view notation);

/// As in the table above. Alternatives that are not supported are left out, unless all are.
[[nodiscard]] std::string describe(const TypeExpr& type);

/// Whether the value is of this alternative, looking at nothing inside arrays and objects.
[[nodiscard]] bool matches(const Json& value, const TypeAlternative& alternative);

/// The value as an integer: also 2.0; nothing if it is no integer or beyond 64 bits.
[[nodiscard]] std::optional<std::int64_t> as_int64(const Json& value);

}  // namespace hpsim
