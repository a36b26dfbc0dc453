#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hpsim {

enum class Ink { Plain, Dim, Bold, Red, Green, Yellow };

/// The text in that ink, with escape sequences if `color`, else the text itself.
[[nodiscard]] std::string painted(std::string_view text, Ink ink, bool color);

/// Columns on a terminal: code points of UTF-8 text.
[[nodiscard]] std::size_t columns_of(std::string_view text);

/// The text in at most `columns` columns: "RaggedShard((0,), (2, 2…" if it must be cut.
///
///   "weight", 6 -> "weight"    "weight", 4 -> "wei…"    "weight", 0 -> ""
[[nodiscard]] std::string elided(std::string_view text, std::size_t columns);

/// The same for names, which differ in their ends: a third in front, the rest behind.
///
///   "blocks.0.attn.wq", 10 -> "blo…ttn.wq"
[[nodiscard]] std::string elided_inside(std::string_view text, std::size_t columns);

struct Cell {
  std::string text;
  Ink ink = Ink::Plain;
};

struct Column {
  std::string heading;
  bool right = false;     ///< aligned right: numbers
  bool flexible = false;  ///< gives way where a line would be too long, the widest one first, down
                          ///< to its heading and 8 columns
};

/// Text in aligned columns, two blanks apart, no trailing blanks; the headings are dim.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// Missing cells are empty.
  void add_row(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
  /// A line of its own between rows, not aligned.
  void add_line(std::string text);

  /// Lines that start with `indent` blanks, each with a newline; `width` columns at most, as far
  /// as flexible columns can give way.
  [[nodiscard]] std::string text(std::size_t indent, std::size_t width, bool color) const;

 private:
  [[nodiscard]] std::vector<std::size_t> widths(std::size_t available) const;

  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace hpsim
