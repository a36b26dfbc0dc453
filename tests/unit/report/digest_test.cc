#include "report/digest.h"

#include "support/catch.h"

namespace hpsim {
namespace {

TEST_CASE("a digest is FNV-1a over float64 values, -0 as +0") {
  // FNV-1a of no bytes is its offset basis.
  CHECK(digest_of_values({}) == "cbf29ce484222325");
  // Eight zero bytes: offset times prime^8 modulo 2^64.
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (int i = 0; i < 8; ++i)
    hash *= 0x100000001b3U;
  CHECK(digest_of_values({0.0}) == digest_of_values({-0.0}));
  CHECK(std::stoull(digest_of_values({0.0}), nullptr, 16) == hash);
  // 1.0 is 3f f0 00 ...: little-endian, its last two bytes are f0 and 3f.
  std::uint64_t one = 0xcbf29ce484222325U;
  for (const std::uint64_t byte : {0x00U, 0x00U, 0x00U, 0x00U, 0x00U, 0x00U, 0xf0U, 0x3fU})
    one = (one ^ byte) * 0x100000001b3U;
  CHECK(std::stoull(digest_of_values({1.0}), nullptr, 16) == one);
  CHECK(digest_of_values({1.0, 2.0}) != digest_of_values({2.0, 1.0}));
}

}  // namespace
}  // namespace hpsim
