#include "scenario/type_expr.h"

#include "support/catch.h"

namespace hpsim {
namespace {

bool is_of(const char* json, const char* type) {
  const Json value = Json::parse(json);
  for (const TypeAlternative& alternative : parse_type(type)) {
    if (matches(value, alternative)) return true;
  }
  return false;
}

TEST_CASE("types are described as in the table of the header") {
  const std::pair<const char*, const char*> rows[] = {
      {"int>=1", "an integer of at least 1"},
      {"number>0", "a number greater than 0"},
      {"number>=0<1", "a number of at least 0 and below 1"},
      {"uint", "an integer in 0..2^64-1"},
      {"'avg' | 'sum'", "\"avg\" or \"sum\""},
      {"1", "1"},
      {"[int]", "an array"},
      {"{string}", "an object"},
      {"Mesh", "an object"},
      {"any", "anything"},
      {"bool | ~int", "true or false"},
      {"bool | null", "true, false or null"},
      {"[int>=0 | [int>=0]]", "an array"},
      {"~int | ~string", "an integer or a string"},
  };
  for (const auto& [notation, description] : rows) {
    INFO(notation);
    CHECK(describe(parse_type(notation)) == description);
  }
}

TEST_CASE("values match types at their edges") {
  CHECK(is_of("1", "int>=1"));
  CHECK(is_of("2.0", "int>=1"));
  CHECK_FALSE(is_of("0", "int>=1"));
  CHECK_FALSE(is_of("1.5", "int>=1"));
  CHECK_FALSE(is_of("true", "int>=1"));
  CHECK(is_of("9223372036854775807", "int"));
  CHECK_FALSE(is_of("9223372036854775808", "int"));
  CHECK(is_of("-9223372036854775808", "int"));
  CHECK_FALSE(is_of("1e300", "int"));
  CHECK(is_of("18446744073709551615", "uint"));
  CHECK_FALSE(is_of("-1", "uint"));
  CHECK_FALSE(is_of("18446744073709551616", "uint"));
  CHECK(is_of("1e-300", "number>0"));
  CHECK_FALSE(is_of("0", "number>0"));
  CHECK(is_of("0.999", "number>=0<1"));
  CHECK_FALSE(is_of("1", "number>=0<1"));
  CHECK(is_of("\"sum\"", "'avg' | 'sum'"));
  CHECK_FALSE(is_of("\"Sum\"", "'avg' | 'sum'"));
  CHECK(is_of("null", "bool | null"));
  CHECK_FALSE(is_of("0", "bool | null"));
}

}  // namespace
}  // namespace hpsim
