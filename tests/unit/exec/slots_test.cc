#include "exec/slots.h"

#include "base/check.h"
#include "support/catch.h"

namespace hpsim {
namespace {

using Counts = std::vector<std::int64_t>;
using Slots = std::vector<Interval>;

TEST_CASE("slots lie in group order, as long as their counts or alike") {
  CHECK(slots_of(Counts{2, 0, 3}, 5, 3) == Slots{{0, 2}, {2, 2}, {2, 5}});
  CHECK(slots_of(Counts{0, 0}, 0, 2) == Slots{{0, 0}, {0, 0}});
  CHECK(slots_of(Counts{}, 6, 3) == Slots{{0, 2}, {2, 4}, {4, 6}});
}

TEST_CASE("counts that do not fit a buffer or a group are no slots") {
  CHECK_THROWS_AS(slots_of(Counts{2, 0, 3}, 6, 3), InternalError);
  CHECK_THROWS_AS(slots_of(Counts{2, 3}, 5, 3), InternalError);
  CHECK_THROWS_AS(slots_of(Counts{2, -1, 4}, 5, 3), InternalError);
  CHECK_THROWS_AS(slots_of(Counts{}, 5, 3), InternalError);
}

}  // namespace
}  // namespace hpsim
