#include "report/table.h"

#include <algorithm>

namespace hpsim {
namespace {

constexpr std::size_t kGap = 2;

std::string_view escape_of(Ink ink) {
  switch (ink) {
    case Ink::Plain:
      return "";
    case Ink::Dim:
      return "\x1b[2m";
    case Ink::Bold:
      return "\x1b[1m";
    case Ink::Red:
      return "\x1b[1;31m";
    case Ink::Green:
      return "\x1b[32m";
    case Ink::Yellow:
      return "\x1b[33m";
  }
  return "";
}

bool starts_code_point(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
}

void strip_trailing_blanks(std::string& text) {
  while (!text.empty() && text.back() == ' ')
    text.pop_back();
}

/// The first byte of code point number `index`, or the end.
std::size_t byte_of(std::string_view text, std::size_t index) {
  std::size_t seen = 0;
  for (std::size_t byte = 0; byte < text.size(); ++byte) {
    if (starts_code_point(text[byte]) && seen++ == index) return byte;
  }
  return text.size();
}

}  // namespace

std::string painted(std::string_view text, Ink ink, bool color) {
  if (!color || ink == Ink::Plain || text.empty()) return std::string(text);
  return std::string(escape_of(ink)).append(text).append("\x1b[0m");
}

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), starts_code_point));
}

std::string elided(std::string_view text, std::size_t columns) {
  if (columns_of(text) <= columns) return std::string(text);
  if (columns == 0) return {};
  std::size_t kept = 0;
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    if (starts_code_point(text[bytes]) && ++kept == columns) break;
    ++bytes;
  }
  return std::string(text.substr(0, bytes)).append("…");
}

std::string elided_inside(std::string_view text, std::size_t columns) {
  const std::size_t length = columns_of(text);
  if (length <= columns) return std::string(text);
  if (columns == 0) return {};
  const std::size_t front = (columns - 1) / 3;
  const std::size_t back = columns - 1 - front;
  return std::string(text.substr(0, byte_of(text, front)))
      .append("…")
      .append(text.substr(byte_of(text, length - back)));
}

void Table::add_line(std::string text) {
  rows_.push_back({Cell{std::move(text), Ink::Dim}});
}

std::vector<std::size_t> Table::widths(std::size_t available) const {
  std::vector<std::size_t> widths;
  for (const Column& column : columns_)
    widths.push_back(columns_of(column.heading));
  for (const std::vector<Cell>& row : rows_) {
    if (row.size() == 1 && columns_.size() > 1) continue;
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], columns_of(row[i].text));
  }
  std::size_t total = kGap * (columns_.size() - 1);
  for (const std::size_t width : widths)
    total += width;
  while (total > available) {
    std::size_t* widest = nullptr;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      const std::size_t least = std::max<std::size_t>(columns_of(columns_[i].heading), 8);
      if (!columns_[i].flexible || widths[i] <= least) continue;
      if (widest == nullptr || widths[i] > *widest) widest = &widths[i];
    }
    if (widest == nullptr) break;
    --*widest;
    --total;
  }
  return widths;
}

std::string Table::text(std::size_t indent, std::size_t width, bool color) const {
  const std::vector<std::size_t> columns = widths(width > indent ? width - indent : 0);
  std::string text;
  const auto add_row = [&](const std::vector<Cell>& row) {
    std::string line(indent, ' ');
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool alone = row.size() == 1 && columns_.size() > 1;
      const std::string cell = alone ? row[i].text : elided_inside(row[i].text, columns[i]);
      const std::string blanks(alone ? 0 : columns[i] - columns_of(cell), ' ');
      if (columns_[i].right && !alone) line += blanks;
      line += painted(cell, row[i].ink, color);
      if (!columns_[i].right) line += blanks;
      line.append(kGap, ' ');
    }
    strip_trailing_blanks(line);
    text += line + '\n';
  };
  std::vector<Cell> headings;
  bool has_headings = false;
  for (const Column& column : columns_) {
    headings.push_back({column.heading, Ink::Dim});
    has_headings = has_headings || !column.heading.empty();
  }
  if (has_headings) add_row(headings);
  for (const std::vector<Cell>& row : rows_)
    add_row(row);
  return text;
}

}  // namespace hpsim
