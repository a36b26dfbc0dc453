#include "report/picture.h"

#include "support/catch.h"

namespace hpsim {
namespace {

TEST_CASE("rows, with notes") {
  Picture picture;
  picture.numbers_columns = false;
  picture.tiles = {{{0, 2}, {0, 1}, 0, "a"}, {{2, 3}, {0, 1}, 1, "b"}};
  picture.notes = {{0, "2 rows"}, {2, "1 row"}};
  CHECK(drawn(picture, 0, 100) == std::string("0 ┌───┐\n"
                                              "  │ a │  2 rows\n"
                                              "2 ├───┤\n"
                                              "  │ b │  1 row\n"
                                              "3 └───┘\n"));
}

TEST_CASE("columns, with heads") {
  Picture picture;
  picture.numbers_rows = false;
  picture.tiles = {{{0, 1}, {0, 4}, 0, "a"}, {{0, 1}, {4, 6}, 1, "b"}};
  CHECK(drawn(picture, 1, 100) == std::string(" 0   4   6\n"
                                              " ┌───┬───┐\n"
                                              " │ a │ b │\n"
                                              " └───┴───┘\n"));
  picture.heads = {{0, "tp 0"}, {4, "tp 1"}};
  CHECK(drawn(picture, 0, 100) == std::string("  tp 0   tp 1\n"
                                              "0      4      6\n"
                                              "┌──────┬──────┐\n"
                                              "│ a    │ b    │\n"
                                              "└──────┴──────┘\n"));
  CHECK(drawn(picture, 0, 15));
  CHECK_FALSE(drawn(picture, 0, 14));
}

TEST_CASE("tiles of one owner have no line between them, labels stand in every tile") {
  // (2, 64) in runs of 42, 42, 44 elements.
  Picture picture;
  picture.tiles = {{{0, 1}, {0, 42}, 0, "a"},
                   {{0, 1}, {42, 64}, 1, "b"},
                   {{1, 2}, {0, 20}, 1, "b"},
                   {{1, 2}, {20, 64}, 2, "c"}};
  CHECK(drawn(picture, 0, 100) == std::string("  0   20 42  64\n"
                                              "0 ┌──────┬───┐\n"
                                              "  │ a    │ b │\n"
                                              "1 ├───┬──┴───┤\n"
                                              "  │ b │ c    │\n"
                                              "2 └───┴──────┘\n"));
  // The same, but the second part fills row 1 too.
  picture.tiles = {
      {{0, 1}, {0, 42}, 0, "a"}, {{0, 1}, {42, 64}, 1, "b"}, {{1, 2}, {0, 64}, 1, "b"}};
  CHECK(drawn(picture, 0, 100) == std::string("  0   42  64\n"
                                              "0 ┌───┬───┐\n"
                                              "  │ a │ b │\n"
                                              "1 ├───┘   │\n"
                                              "  │ b     │\n"
                                              "2 └───────┘\n"));
}

TEST_CASE("overlaps and gaps are bugs") {
  Picture picture;
  picture.tiles = {{{0, 2}, {0, 1}, 0, "a"}, {{1, 3}, {0, 1}, 1, "b"}};
  CHECK_THROWS(drawn(picture, 0, 100));
  picture.tiles = {{{0, 1}, {0, 2}, 0, "a"}, {{1, 2}, {1, 2}, 1, "b"}};
  CHECK_THROWS(drawn(picture, 0, 100));
}

}  // namespace
}  // namespace hpsim
