#include "report/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "report/table.h"

namespace hpsim {
namespace {

/// By the lines that meet: 1 up, 2 down, 4 left, 8 right.
constexpr std::array<const char*, 16> kJunctions = {" ", "│", "│", "│", "─", "┘", "┐", "┤",
                                                    "─", "└", "┌", "├", "─", "┴", "┬", "┼"};

std::string repeated(const char* text, std::size_t count) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i)
    all += text;
  return all;
}

/// The plane cut into strips at every edge of a tile.
class Strips {
 public:
  explicit Strips(const Picture& picture) : picture_(picture) {
    for (const Tile& tile : picture.tiles) {
      rows_.insert(rows_.end(), {tile.rows.begin, tile.rows.end});
      columns_.insert(columns_.end(), {tile.columns.begin, tile.columns.end});
    }
    for (std::vector<std::int64_t>* edges : {&rows_, &columns_}) {
      std::sort(edges->begin(), edges->end());
      edges->erase(std::unique(edges->begin(), edges->end()), edges->end());
    }
    tile_at_.assign(num_rows() * num_columns(), nullptr);
    for (const Tile& tile : picture.tiles) {
      for (std::size_t i = at(rows_, tile.rows.begin); i < at(rows_, tile.rows.end); ++i) {
        for (std::size_t j = at(columns_, tile.columns.begin); j < at(columns_, tile.columns.end);
             ++j) {
          const Tile*& cell = tile_at_[i * num_columns() + j];
          HPSIM_CHECK(cell == nullptr, "tiles overlap at {}, {}", rows_[i], columns_[j]);
          cell = &tile;
        }
      }
    }
    for (const Tile* tile : tile_at_)
      HPSIM_CHECK(tile != nullptr, "tiles leave a gap");
    set_widths();
  }

  [[nodiscard]] std::string text(std::size_t indent) const {
    std::size_t label_width = 0;
    if (picture_.numbers_rows) label_width = fmt::format("{}", rows_.back()).size() + 1;
    const std::string left(indent + label_width, ' ');
    std::string text;
    if (!picture_.heads.empty()) text += left + heads() + "\n";
    if (picture_.numbers_columns) text += left + column_numbers() + "\n";
    for (std::size_t i = 0; i <= num_rows(); ++i) {
      std::string label = left;
      if (picture_.numbers_rows) {
        label = fmt::format("{:>{}} ", rows_[i], indent + label_width - 1);
      }
      text += label + border(i) + "\n";
      if (i < num_rows()) text += left + content(i) + "\n";
    }
    return text;
  }

 private:
  [[nodiscard]] std::size_t num_rows() const { return rows_.size() - 1; }
  [[nodiscard]] std::size_t num_columns() const { return columns_.size() - 1; }
  [[nodiscard]] static std::size_t at(const std::vector<std::int64_t>& edges, std::int64_t edge) {
    return static_cast<std::size_t>(std::lower_bound(edges.begin(), edges.end(), edge) -
                                    edges.begin());
  }
  [[nodiscard]] const Tile& tile(std::size_t row, std::size_t column) const {
    return *tile_at_[row * num_columns() + column];
  }

  /// Wide enough for labels, numbers and heads.
  void set_widths() {
    widths_.assign(num_columns(), 1);
    for (std::size_t j = 0; j < num_columns(); ++j) {
      if (picture_.numbers_columns) widths_[j] = fmt::format("{}", columns_[j]).size();
      const auto head = picture_.heads.find(columns_[j]);
      if (head != picture_.heads.end()) {
        widths_[j] = std::max(widths_[j], columns_of(head->second) + 2);
      }
    }
    for (const Tile& tile : picture_.tiles) {
      const std::size_t begin = at(columns_, tile.columns.begin);
      const std::size_t end = at(columns_, tile.columns.end);
      std::size_t available = end - begin - 1;
      for (std::size_t j = begin; j < end; ++j)
        available += widths_[j];
      const std::size_t wanted = columns_of(tile.label) + 2;
      if (available < wanted) widths_[end - 1] += wanted - available;
    }
  }

  [[nodiscard]] bool has_line_above(std::size_t row, std::size_t column) const {
    return row == 0 || row == num_rows() || tile(row - 1, column).owner != tile(row, column).owner;
  }
  [[nodiscard]] bool has_line_left(std::size_t row, std::size_t column) const {
    return column == 0 || column == num_columns() ||
           tile(row, column - 1).owner != tile(row, column).owner;
  }

  [[nodiscard]] std::string border(std::size_t row) const {
    std::string text;
    for (std::size_t column = 0; column <= num_columns(); ++column) {
      const bool up = row > 0 && has_line_left(row - 1, column);
      const bool down = row < num_rows() && has_line_left(row, column);
      const bool left = column > 0 && has_line_above(row, column - 1);
      const bool right = column < num_columns() && has_line_above(row, column);
      text += kJunctions[static_cast<std::size_t>(up) + 2 * static_cast<std::size_t>(down) +
                         4 * static_cast<std::size_t>(left) + 8 * static_cast<std::size_t>(right)];
      if (column < num_columns()) text += repeated(right ? "─" : " ", widths_[column]);
    }
    return text;
  }

  [[nodiscard]] std::string content(std::size_t row) const {
    std::string text;
    for (std::size_t column = 0; column < num_columns();) {
      const Tile& here = tile(row, column);
      text += has_line_left(row, column) ? "│" : " ";
      std::size_t end = column + 1;
      std::size_t width = widths_[column];
      while (end < num_columns() && &tile(row, end) == &here)
        width += widths_[end++] + 1;
      std::string label;  // in the first strip of the tile
      if (here.rows.begin == rows_[row]) label = " " + here.label;
      text += label + std::string(width - columns_of(label), ' ');
      column = end;
    }
    text += "│";
    const auto note = picture_.notes.find(rows_[row]);
    return note == picture_.notes.end() ? text : text + "  " + note->second;
  }

  [[nodiscard]] std::string heads() const {
    std::string text;
    for (std::size_t j = 0; j < num_columns(); ++j) {
      const auto head = picture_.heads.find(columns_[j]);
      const std::string word = head == picture_.heads.end() ? "" : " " + head->second;
      text += " " + word + std::string(widths_[j] - columns_of(word), ' ');
    }
    return text.substr(0, text.find_last_not_of(' ') + 1);
  }

  /// Each at its line.
  [[nodiscard]] std::string column_numbers() const {
    std::string text;
    for (std::size_t j = 0; j < num_columns(); ++j)
      text += fmt::format("{:<{}}", columns_[j], widths_[j] + 1);
    return text + fmt::format("{}", columns_.back());
  }

  const Picture& picture_;
  std::vector<std::int64_t> rows_;
  std::vector<std::int64_t> columns_;
  std::vector<const Tile*> tile_at_;
  std::vector<std::size_t> widths_;
};

}  // namespace

std::optional<std::string> drawn(const Picture& picture, std::size_t indent, std::size_t width) {
  std::string text = Strips(picture).text(indent);
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    if (columns_of(std::string_view(text).substr(begin, end - begin)) > width) return std::nullopt;
    begin = end + 1;
  }
  return text;
}

}  // namespace hpsim
