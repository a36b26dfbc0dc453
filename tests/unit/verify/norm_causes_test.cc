// Which gradients a wrong norm is the norm of. Of the run made up by hand on rep 2 x fsdp 2, "a"
// (4, 2) is cut over fsdp and "c" (3) is copied on all ranks; a has 2 (i + 1) / 8, c 2 (i + 1) / 8
// + 2, and
//   a, rows 0 1:  (1 + 4 + 9 + 16) / 16 = 30 / 16     c:  2.25² + 2.5² + 2.75² = 18.875
//   a, rows 2 3:  (25 + 36 + 49 + 64) / 16 = 174 / 16

#include "verify/norm_causes.h"

#include <cmath>

#include "explained_run.h"
#include "planted_run.h"
#include "support/catch.h"

namespace hpsim::test {
namespace {

using Texts = std::vector<std::string>;

constexpr double kFirst = 30.0 / 16;
constexpr double kSecond = 174.0 / 16;
constexpr double kCopied = 18.875;

CaseSpec norm_case() {
  CaseSpec spec;
  spec.mesh_shape = {2, 2};
  spec.mesh_names = {"rep", "fsdp"};
  spec.parameters = {{"a", {4, 2}}, {"c", {3}}};
  spec.replicate_params = {1};
  return spec;
}

/// What explains that the ranks' powers add up to this square.
Texts of_square(double square) {
  PlantedRun planted(norm_case());
  REQUIRE(planted.judge().passed());
  for (std::int64_t rank = 0; rank < 4; ++rank)
    planted.run.step_record(Rank{rank}, 0).norm_power = rank == 0 ? square : 0;
  return explanations(planted.judge(), CheckId::GradNormParity);
}

TEST_CASE("planted: copies count, along some mesh dims or all") {
  CHECK(of_square(kFirst + kSecond + 2 * kCopied).at(0) ==
        "counts copies along fsdp: gradients that all its ranks hold count 2 times");
  CHECK(of_square(2 * (kFirst + kSecond) + 4 * kCopied).at(0) ==
        "counts copies along rep, fsdp: gradients that all its ranks hold count 4 times");
  // All twice: named as the root of R too.
  const Texts twice = of_square(2 * (kFirst + kSecond + kCopied));
  CHECK(twice.at(0) == "counts copies along rep: gradients that all its ranks hold count 2 times");
  CHECK(twice.at(1).rfind("sqrt(", 0) == 0);
  // Three times of c is nothing that a mesh dim explains.
  CHECK(of_square(kFirst + kSecond + 3 * kCopied).empty());
}

TEST_CASE("planted: a norm of some ranks only") {
  // What rank 0 holds: the first shard and c; so does all of fsdp=0.
  const Texts texts = of_square(kFirst + kCopied);
  CHECK(texts == Texts{"is the norm of what rank 0 holds alone",
                       "is the norm of what fsdp=0 holds alone: not summed over fsdp"});
  CHECK(of_square(kFirst + kCopied / 2).empty());
}

TEST_CASE("planted: sums and means of norms") {
  const double sum = 2 * std::sqrt(kFirst + kCopied) + 2 * std::sqrt(kSecond + kCopied);
  CHECK(of_square(sum * sum) == Texts{"is the sum of the norms of ranks"});
  CHECK(of_square(sum * sum / 16) == Texts{"is the mean of the norms of ranks"});
  CHECK(of_square(sum * sum / 9).empty());
}

TEST_CASE("planted: another norm, and a parameter that is left out") {
  const double square = kFirst + kSecond + kCopied;
  CHECK(of_square(square * square) == Texts{"is the sum of powers of 2, without its root"});
  // 2 (1 + ... + 8) / 8 + 2.25 + 2.5 + 2.75 = 16.5
  CHECK(of_square(16.5 * 16.5) == Texts{"is the 1-norm"});
  CHECK(of_square(2.75 * 2.75) == Texts{"is the largest gradient, the norm of \"inf\""});
  CHECK(of_square(kCopied) == Texts{"is without \"a\""});
  CHECK(of_square(kFirst + kSecond) == Texts{"is without \"c\""});
}

TEST_CASE("a norm of gradients that are off is told as such") {
  PlantedRun planted(norm_case());
  // Both copies of element 0 of the first shard: from 0.25 to 4.25.
  for (const std::int64_t rank : {0, 2}) {
    planted.gradient(rank)[0] += 4;
    planted.run.step_record(Rank{rank}, 0).norm_power += (4.25 * 4.25 - 0.25 * 0.25) / 2;
  }
  CHECK(explanations(planted.judge(), CheckId::GradNormParity) ==
        Texts{"is the norm of the gradients as recorded"});
}

}  // namespace
}  // namespace hpsim::test
