#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/interval.h"

namespace hpsim {

/// A rectangle of the plane; no line is drawn between tiles of one owner.
struct Tile {
  Interval rows;
  Interval columns;
  std::size_t owner = 0;
  std::string label;
};

/// Tiles that together fill [0, R) x [0, C) once, none of them empty.
struct Picture {
  std::vector<Tile> tiles;
  bool numbers_rows = true;                   ///< where rows begin, on the left
  bool numbers_columns = true;                ///< where columns begin, above
  std::map<std::int64_t, std::string> notes;  ///< beside the rows that begin there
  std::map<std::int64_t, std::string> heads;  ///< above the columns that begin there
};

/// The tiles with lines between them, in lines of at most `width` columns; nothing if they do not
/// fit. Distances are not to scale.
///
///   rows [0, 2) a, [2, 3) b, notes         columns [0, 4), [4, 6)
///
///   0 ┌───┐                                 0   4   6
///     │ a │  2 rows                        ┌───┬───┐
///   2 ├───┤                                │ a │ b │
///     │ b │  1 row                         └───┴───┘
///   3 └───┘
[[nodiscard]] std::optional<std::string> drawn(const Picture& picture, std::size_t indent,
                                               std::size_t width);

}  // namespace hpsim
