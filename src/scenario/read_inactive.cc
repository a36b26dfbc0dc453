#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "scenario/inactive.h"
#include "scenario/pattern_matcher.h"
#include "scenario/sections.h"

namespace hpsim {
namespace {

constexpr std::int64_t kMostNumbers = std::int64_t{1} << 24;
constexpr std::size_t kMostParts = 4096;

class InactiveReader {
 public:
  InactiveReader(const ObjectReader& scenario, const Scenario& result)
      : problems_(scenario.problems()),
        result_(result),
        training_(scenario.object("training", "Training")),
        entries_(scenario.object("data", "Data").elements("inactive")),
        parts_(model_parts(result.model)),
        matcher_(names_of(parts_), result.model.is_elementwise() ? "parameter" : "module",
                 problems_) {}

  std::vector<InactivePart> read() {
    for (const JsonCursor& at : entries_) {
      if (!at.is_object()) continue;
      if (!read_entry(ObjectReader(at, "Inactive", problems_))) break;
    }
    return std::move(inactive_);
  }

 private:
  /// Whether to go on.
  bool read_entry(const ObjectReader& entry) {
    InactiveSpec spec;
    const bool has_ranks = read_ranks(entry, spec.data_ranks);
    const bool has_steps =
        read_numbers(entry, "steps", "optimizer step", result_.training.steps, spec.steps);
    const bool has_passes = read_numbers(entry, "micro_batches", "micro-batch",
                                         result_.training.micro_batches, spec.micro_batches);
    const auto parts = read_parts(entry);
    if (!has_ranks || !has_steps || !has_passes) return true;
    for (const auto& [part, at] : parts) {
      if (!count(entry, spec, part)) return false;
      spec.first = parts_[part].first;
      spec.end = parts_[part].end;
      const JsonCursor ranks = entry.has("ranks") ? entry.where("ranks") : entry.at();
      inactive_.push_back({spec, parts_[part].name, at, ranks});
    }
    return true;
  }

  /// Parts that the entry names, each with the first pattern that does.
  std::map<std::size_t, JsonCursor> read_parts(const ObjectReader& entry) {
    const bool is_elementwise = result_.model.is_elementwise();
    const char* const key = is_elementwise ? "params" : "modules";
    const char* const other = is_elementwise ? "modules" : "params";
    std::map<std::size_t, JsonCursor> parts;
    if (entry.has(other)) {
      problems_.add(entry.where(other),
                    is_elementwise
                        ? "the scenario has \"parameters\", and no modules to leave out"
                        : "a parameter of a model is left out with the module that it is of",
                    fmt::format("write \"{}\"{}", key, entry.has(key) ? " alone" : ""));
      return parts;
    }
    const auto patterns = entry.strings(key);
    if (!entry.has(key) || (patterns && patterns->empty())) {
      problems_.add(entry.where(key),
                    entry.has(key) ? fmt::format("\"{}\" is empty", key)
                                   : fmt::format("\"{}\" is missing", key),
                    fmt::format("list at least one {}", is_elementwise ? "parameter" : "module"));
      return parts;
    }
    const std::vector<JsonCursor> elements = entry.elements(key);
    for (std::size_t i = 0; patterns && i < patterns->size(); ++i) {
      for (const int part : matcher_.matches_of((*patterns)[i], elements[i]))
        parts.emplace(static_cast<std::size_t>(part), elements[i]);
    }
    return parts;
  }

  /// Ascending numbers in 0..size - 1, all of them if the key is absent. Whether they are good.
  bool read_numbers(const ObjectReader& entry, const char* key, const char* what, std::int64_t size,
                    std::vector<std::int64_t>& numbers) {
    if (training_.is_bad(key)) return false;
    if (!entry.has(key)) {
      if (size > kMostNumbers) {
        problems_.add(entry.at(),
                      fmt::format("\"{}\" is missing, and all are {}; the limit is {}", key, size,
                                  kMostNumbers),
                      fmt::format("list some \"{}\"", key));
        return false;
      }
      numbers.resize(static_cast<std::size_t>(size));
      std::iota(numbers.begin(), numbers.end(), std::int64_t{0});
      return true;
    }
    const auto listed = entry.integers(key);
    if (!listed) return false;
    const std::vector<JsonCursor> elements = entry.elements(key);
    if (listed->empty()) {
      problems_.add(entry.where(key), fmt::format("no {} is listed", what),
                    fmt::format("list at least one, or leave \"{}\" out: it is then all", key));
      return false;
    }
    bool is_good = true;
    std::set<std::int64_t> seen;
    for (std::size_t i = 0; i < listed->size(); ++i) {
      const std::int64_t number = (*listed)[i];
      if (number < size && seen.insert(number).second) continue;
      is_good = false;
      if (number < size) {
        problems_.add(elements[i], fmt::format("{} {} is listed twice", what, number),
                      "list each once");
      } else {
        problems_.add(elements[i], fmt::format("{} {} is outside 0..{}", what, number, size - 1),
                      fmt::format("they are counted from 0, and there are {}", size));
      }
    }
    numbers.assign(seen.begin(), seen.end());
    return is_good;
  }

  bool read_ranks(const ObjectReader& entry, std::vector<std::int64_t>& data_ranks) {
    if (!entry.has("ranks")) {
      return read_numbers(entry, "ranks", "rank", result_.num_data_ranks(), data_ranks);
    }
    const Mesh& mesh = result_.mesh;
    std::vector<std::int64_t> ranks;
    if (!read_numbers(entry, "ranks", "rank", mesh.num_ranks(), ranks)) return false;
    std::map<std::int64_t, std::vector<std::int64_t>> by_data_rank;
    for (const std::int64_t rank : ranks) {
      const Coordinate coordinate = mesh.coordinate_of(Rank{rank});
      by_data_rank[mesh.index_along(result_.data.data_dims, coordinate)].push_back(rank);
    }
    const std::int64_t num_alike = mesh.num_ranks() / result_.num_data_ranks();
    for (const auto& [data_rank, listed] : by_data_rank) {
      if (static_cast<std::int64_t>(listed.size()) < num_alike) {
        tell_incomplete(entry, data_rank, listed, num_alike);
        return false;
      }
      data_ranks.push_back(data_rank);
    }
    return true;
  }

  void tell_incomplete(const ObjectReader& entry, std::int64_t data_rank,
                       const std::vector<std::int64_t>& listed, std::int64_t num_alike) {
    std::vector<std::int64_t> missing;
    for (const std::int64_t rank : ranks_of_data_rank(result_, data_rank, listed.size() + 9)) {
      if (!std::binary_search(listed.begin(), listed.end(), rank)) missing.push_back(rank);
    }
    std::sort(missing.begin(), missing.end());
    const auto num_listed = static_cast<std::int64_t>(listed.size());
    problems_.add(
        entry.where("ranks"),
        fmt::format("rank{} {} {} listed, but not {}, which see{} the same samples, those of data "
                    "rank {}",
                    num_listed == 1 ? "" : "s", first_of(listed, num_listed),
                    num_listed == 1 ? "is" : "are", first_of(missing, num_alike - num_listed),
                    num_alike - num_listed == 1 ? "s" : "", data_rank),
        "list all of them: they compute one sample together, or copies of it");
  }

  /// Lists are kept for every part, and passes are looked at one by one.
  bool count(const ObjectReader& entry, const InactiveSpec& spec, std::size_t part) {
    const auto size = [](const auto& list) { return static_cast<double>(list.size()); };
    num_passes_ += size(spec.data_ranks) * size(spec.steps) * size(spec.micro_batches) *
                   static_cast<double>(parts_[part].end - parts_[part].first);
    if (num_passes_ <= static_cast<double>(kMostNumbers) && inactive_.size() < kMostParts) {
      return true;
    }
    problems_.add(entry.at(),
                  inactive_.size() < kMostParts
                      ? fmt::format("up to this entry {:.0f} passes of modules are left out; the "
                                    "limit is {}",
                                    num_passes_, kMostNumbers)
                      : fmt::format("entries up to this one name more than {} parts", kMostParts),
                  "leave out less");
    return false;
  }

  Problems& problems_;
  const Scenario& result_;
  ObjectReader training_;
  std::vector<JsonCursor> entries_;
  std::vector<ModelPart> parts_;
  PatternMatcher matcher_;
  std::vector<InactivePart> inactive_;
  double num_passes_ = 0;
};

}  // namespace

std::vector<InactivePart> read_inactive(const ObjectReader& scenario, const Scenario& result) {
  const ObjectReader data = scenario.object("data", "Data");
  if (!data.has("inactive") || data.is_bad("data_dims")) return {};
  return InactiveReader(scenario, result).read();
}

std::string first_of(const std::vector<std::int64_t>& numbers, std::int64_t count) {
  constexpr std::size_t kMostShown = 8;
  const std::vector<std::int64_t> shown(
      numbers.begin(),
      numbers.begin() + static_cast<std::ptrdiff_t>(std::min(kMostShown, numbers.size())));
  const std::int64_t num_more = count - static_cast<std::int64_t>(shown.size());
  return fmt::format("{}{}", fmt::join(shown, ", "),
                     num_more > 0 ? fmt::format(" and {} more", num_more) : "");
}

std::vector<std::int64_t> ranks_of_data_rank(const Scenario& scenario, std::int64_t data_rank,
                                             std::size_t most) {
  const Mesh& mesh = scenario.mesh;
  MeshDims others;
  for (int dim = 0; dim < mesh.num_dims(); ++dim) {
    if (!contains(scenario.data.data_dims, dim)) others.push_back(dim);
  }
  Coordinate coordinate = mesh.coordinate_along(scenario.data.data_dims, data_rank);
  std::vector<std::int64_t> ranks;
  do {
    ranks.push_back(mesh.rank_at(coordinate).value);
  } while (ranks.size() < most && advance(mesh, others, coordinate));
  return ranks;
}

}  // namespace hpsim
