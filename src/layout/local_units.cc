#include "layout/local_units.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace hpsim {

LocalUnits::LocalUnits(std::initializer_list<std::int64_t> units)
    : LocalUnits(std::vector<std::int64_t>(units)) {}

LocalUnits::LocalUnits(const std::vector<std::int64_t>& units) {
  for (const std::int64_t value : units)
    append(1, value);
}

LocalUnits::LocalUnits(const std::vector<ShardRun>& runs) {
  for (const ShardRun& run : runs)
    append(run.shards.length(), run.length);
}

void LocalUnits::append(std::int64_t count, std::int64_t value) {
  HPSIM_CHECK(count >= 1, "{} ranks with {} units", count, value);
  if (!runs_.empty() && runs_.back().value == value) {
    runs_.back().count += count;
  } else {
    runs_.push_back({count, value});
    starts_.push_back({size_, sum_});
  }
  size_ += count;
  sum_ += count * value;
}

std::int64_t LocalUnits::largest() const {
  std::int64_t largest = 0;
  for (const Run& run : runs_)
    largest = std::max(largest, run.value);
  return largest;
}

Interval LocalUnits::interval(std::int64_t index) const {
  HPSIM_CHECK(index >= 0 && index < size_, "rank {} of {}", index, size_);
  const auto after = std::upper_bound(
      starts_.begin(), starts_.end(), index,
      [](std::int64_t wanted, const Start& start) { return wanted < start.index; });
  const Start& start = *(after - 1);
  const std::int64_t value = runs_[static_cast<std::size_t>(after - 1 - starts_.begin())].value;
  const std::int64_t begin = start.units + (index - start.index) * value;
  return {begin, begin + value};
}

std::string to_string(const LocalUnits& units) {
  constexpr std::int64_t kMaxListed = 64;
  std::string text;
  const auto add = [&text](const std::string& item) {
    if (!text.empty()) text += ", ";
    text += item;
  };
  for (const LocalUnits::Run& run : units.runs()) {
    if (units.size() <= kMaxListed) {
      for (std::int64_t i = 0; i < run.count; ++i)
        add(fmt::format("{}", run.value));
    } else {
      add(run.count == 1 ? fmt::format("{}", run.value)
                         : fmt::format("{} * {}", run.value, run.count));
    }
  }
  return fmt::format("({}{})", text, units.size() == 1 ? "," : "");
}

}  // namespace hpsim
