#include "trace/rank_mean.h"

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.h"

namespace hpsim {
namespace {

RankMean mean_of_numbers(const std::vector<double>& numbers) {
  std::vector<TensorView> views;
  for (const double& number : numbers)
    views.push_back({DType::Float64, reinterpret_cast<const std::byte*>(&number), 1});
  return mean_of(views);
}

TEST_CASE("means of ranks, and how far the ranks are from them") {
  CHECK(mean_of_numbers({1, 3}).mean == std::vector<double>{2});
  CHECK(mean_of_numbers({1, 3}).scatter == std::vector<double>{1});
  // What two large numbers leave between them is not lost.
  CHECK(mean_of_numbers({1e30, 1, -1e30}).mean == std::vector<double>{1.0 / 3});
  CHECK(mean_of_numbers({1, 1e30, -1e30}).mean == std::vector<double>{1.0 / 3});
  CHECK(mean_of_numbers({1e30, 1, -1e30}).scatter[0] == Approx(2e60 / 3));
  CHECK(mean_of_numbers({5}).mean == std::vector<double>{5});
  CHECK(mean_of_numbers({5}).scatter.empty());
  CHECK(std::isnan(mean_of_numbers({1, std::nan(""), 2}).mean[0]));
  CHECK_FALSE(std::isfinite(mean_of_numbers({1, std::numeric_limits<double>::infinity()}).mean[0]));
}

TEST_CASE("means are taken element by element, of any dtype") {
  const std::vector<float> a = {1, 2, 3};
  const std::vector<float> b = {3, 2, -3};
  const auto view = [](const std::vector<float>& values) {
    return TensorView{DType::Float32, reinterpret_cast<const std::byte*>(values.data()), 3};
  };
  const RankMean mean = mean_of({view(a), view(b)});
  CHECK(mean.mean == std::vector<double>{2, 2, 0});
  CHECK(mean.scatter == std::vector<double>{1, 0, 9});
  CHECK(as_view(mean.mean).at(1) == 2);
  CHECK(mean_of({TensorView{}}).mean.empty());
}

}  // namespace
}  // namespace hpsim
