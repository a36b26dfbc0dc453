#include "mesh/per_coordinate.h"

#include "support/catch.h"

namespace hpsim {
namespace {

TEST_CASE("a number per coordinate depends on no more mesh dims than it must") {
  const Mesh mesh({2, 3, 2}, {"a", "b", "c"});
  const auto by_b = PerCoordinate::tabulate(
      mesh, {0, 1}, [](const Coordinate& coordinate) { return 10 + coordinate[1]; });
  CHECK(by_b.dims() == MeshDims{1});
  CHECK(by_b.values() == std::vector<std::int64_t>{10, 11, 12});
  CHECK(by_b.at(mesh, {1, 2, 1}) == 12);
  CHECK(by_b.largest() == 12);
  CHECK(to_string(mesh, by_b) == "(b: 10, 11, 12)");
  const auto uniform =
      PerCoordinate::tabulate(mesh, {0, 1, 2}, [](const Coordinate&) { return 7; });
  CHECK(uniform.is_uniform());
  CHECK(uniform == PerCoordinate(7));
  CHECK(to_string(mesh, uniform) == "7");
  // The same along a on b = 0, but not on b = 1: it depends on both.
  const auto both = PerCoordinate::tabulate(
      mesh, {0, 1}, [](const Coordinate& coordinate) { return coordinate[0] * coordinate[1]; });
  CHECK(both.dims() == MeshDims{0, 1});
  CHECK(both.at(mesh, {1, 2, 0}) == 2);
}

TEST_CASE("numbers per coordinate add up over the union of their dims") {
  const Mesh mesh({2, 3}, {"a", "b"});
  const auto by_a = PerCoordinate::tabulate(mesh, {0}, [](const Coordinate& c) { return c[0]; });
  const auto by_b =
      PerCoordinate::tabulate(mesh, {1}, [](const Coordinate& c) { return 10 * c[1]; });
  const PerCoordinate sum = by_a.plus(mesh, by_b);
  CHECK(sum.dims() == MeshDims{0, 1});
  CHECK(sum.values() == std::vector<std::int64_t>{0, 10, 20, 1, 11, 21});
  CHECK(sum.times(2).at(mesh, {1, 2}) == 42);
  CHECK(PerCoordinate(3).plus(mesh, PerCoordinate(4)) == PerCoordinate(7));
  const auto minus_a =
      PerCoordinate::tabulate(mesh, {0}, [](const Coordinate& c) { return 5 - c[0]; });
  CHECK(by_a.plus(mesh, minus_a) == PerCoordinate(5));
}

TEST_CASE("coordinates along dims count row-major, and turn into indices and back") {
  const Mesh mesh({2, 3, 4}, {"a", "b", "c"});
  Coordinate coordinate = {0, 0, 0};
  std::int64_t count = 0;
  do {
    CHECK(mesh.index_along({0, 2}, coordinate) == count);
    CHECK(mesh.coordinate_along({0, 2}, count) == coordinate);
    ++count;
  } while (advance(mesh, {0, 2}, coordinate));
  CHECK(count == 8);
  CHECK(coordinate == Coordinate{0, 0, 0});
  CHECK(union_of({0, 2}, {1, 2}) == MeshDims{0, 1, 2});
}

TEST_CASE("of many numbers the smallest and the largest are told") {
  const auto told = [](std::int64_t size) {
    const Mesh mesh({size}, {"fsdp"});
    return to_string(mesh, PerCoordinate::tabulate(mesh, {0}, [&](const Coordinate& at) {
                       return at[0] + 1 == size ? 1 : 2;
                     }));
  };
  CHECK(told(3) == "(fsdp: 2, 2, 1)");
  CHECK(told(64).size() == std::string("(fsdp: )").size() + 64 + 63 * 2);
  CHECK(told(65) == "(fsdp: 1 to 2)");
}

}  // namespace
}  // namespace hpsim
