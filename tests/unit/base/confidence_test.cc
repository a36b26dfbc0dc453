#include "base/confidence.h"

#include "base/check.h"
#include "support/catch.h"

namespace hpsim {
namespace {

TEST_CASE("the multiplier grows slowly with the numbers compared") {
  // By hand: sqrt(2 (ln 2 + ln N + 9 ln 10)), with ln 2 = 0.69315 and ln 10 = 2.30259.
  CHECK(confidence_multiplier(1) == Approx(6.5447).margin(5e-5));
  CHECK(confidence_multiplier(4480) == Approx(7.7232).margin(5e-5));
  CHECK(confidence_multiplier(1000000) == Approx(8.3943).margin(5e-5));
  CHECK_THROWS_AS(confidence_multiplier(0), InternalError);
}

}  // namespace
}  // namespace hpsim
