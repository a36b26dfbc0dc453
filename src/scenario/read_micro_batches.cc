#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "scenario/sections.h"
#include "scenario/type_expr.h"

namespace hpsim {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

/// `requires_gradient_sync` or `requires_all_reduce`; none where every micro-batch does.
std::vector<bool> read_syncs(const ObjectReader& training, const char* key,
                             std::int64_t num_micro_batches) {
  const auto size = static_cast<std::size_t>(num_micro_batches);
  std::vector<bool> syncs;
  if (training.string(key) == "last") {
    syncs.resize(size);
    syncs.back() = true;
  }
  if (training.has(key) && !training.is_bad(key)) {
    const std::vector<JsonCursor> elements = training.elements(key);
    for (const JsonCursor& element : elements)
      syncs.push_back(element.value->get<bool>());
    if (training.where(key).value->is_array() && syncs.size() != size) {
      training.problems().add(
          training.where(key),
          fmt::format("{} {}, but {} micro-batch{}", syncs.size(),
                      syncs.size() == 1 ? "entry" : "entries", size, size == 1 ? "" : "es"),
          fmt::format("list {}, or write \"every\" or \"last\"", size));
      return {};
    }
    if (!elements.empty() && !syncs.back()) {
      training.problems().add(
          elements.back(),
          fmt::format("{} is false for the last micro-batch, {}: its gradients would never be "
                      "reduced before the optimizer",
                      key, size - 1),
          "write true there");
      return {};
    }
  }
  const bool all = std::all_of(syncs.begin(), syncs.end(), [](bool sync) { return sync; });
  return all ? std::vector<bool>{} : syncs;
}

/// `6 or 12`, the numbers around one that does not divide.
std::string multiples_near(std::int64_t number, std::int64_t divisor) {
  const std::int64_t below = number / divisor * divisor;
  if (below > kMost - divisor) return fmt::format("{}", below);
  if (below == 0) return fmt::format("{}", divisor);
  return fmt::format("{} or {}", below, below + divisor);
}

/// `data.tokens` as [data rank][micro-batch].
class TokensReader {
 public:
  TokensReader(const ObjectReader& scenario, Scenario& result)
      : data_(scenario.object("data", "Data")),
        problems_(scenario.problems()),
        result_(result),
        num_positions_(positions_of(result)) {}

  void read() {
    const std::vector<JsonCursor> elements = data_.elements("tokens");
    if (!check_number(elements.size())) return;
    std::vector<std::vector<std::int64_t>> tokens;
    for (const JsonCursor& element : elements)
      tokens.push_back(read_rank(element, tokens.size()));
    const bool is_empty = std::all_of(tokens.begin(), tokens.end(), [](const auto& of_rank) {
      return std::all_of(of_rank.begin(), of_rank.end(), [](std::int64_t n) { return n == 0; });
    });
    if (is_empty && normalization() == LossNormalization::GlobalTokens) {
      problems_.add(data_.where("tokens"),
                    "no data rank has a valid position, but \"global_tokens\" divides by their "
                    "number",
                    "let one rank have at least one");
    }
    result_.data.tokens = std::move(tokens);
  }

 private:
  /// Of a micro-batch; as many as fit if they are too many, which is told later.
  static std::int64_t positions_of(const Scenario& scenario) {
    const std::int64_t of_sample = num_positions(scenario.model);
    const std::int64_t num_samples = scenario.micro_batch_size();
    return num_samples > kMost / of_sample ? kMost : num_samples * of_sample;
  }

  [[nodiscard]] LossNormalization normalization() const {
    return result_.training.loss_normalization;
  }

  bool check_number(std::size_t num_given) {
    constexpr std::int64_t kMostNumbers = std::int64_t{1} << 24;
    const std::int64_t num_ranks = result_.num_data_ranks();
    const std::int64_t num_micro_batches = result_.training.micro_batches;
    if (static_cast<std::int64_t>(num_given) != num_ranks) {
      problems_.add(data_.where("tokens"),
                    fmt::format("{} entr{}, but {} data rank{}", num_given,
                                num_given == 1 ? "y" : "ies", num_ranks, num_ranks == 1 ? "" : "s"),
                    "list one per data rank, in their order, row-major over data_dims");
      return false;
    }
    if (num_ranks <= kMostNumbers / num_micro_batches) return true;
    problems_.add(data_.where("tokens"),
                  fmt::format("{} data ranks times {} micro-batches; the limit of their product "
                              "is {}",
                              num_ranks, num_micro_batches, kMostNumbers),
                  "leave \"tokens\" out: all positions are then valid");
    return false;
  }

  std::vector<std::int64_t> read_rank(const JsonCursor& at, std::size_t rank) {
    const auto size = static_cast<std::size_t>(result_.training.micro_batches);
    if (!at.value->is_array()) {
      const std::int64_t valid = as_int64(*at.value).value_or(0);
      check_valid(at, valid, rank);
      return std::vector<std::int64_t>(size, valid);
    }
    std::vector<std::int64_t> of_rank;
    for (std::size_t m = 0; m < at.value->size(); ++m) {
      of_rank.push_back(as_int64((*at.value)[m]).value_or(0));
      check_valid(at.element(m, (*at.value)[m]), of_rank.back(), rank);
    }
    if (of_rank.size() != size) {
      problems_.add(
          at,
          fmt::format("{} number{} for data rank {}, but {} micro-batch{}", of_rank.size(),
                      of_rank.size() == 1 ? "" : "s", rank, size, size == 1 ? "" : "es"),
          fmt::format("list {}, or write one number for all", size));
    }
    return of_rank;
  }

  void check_valid(const JsonCursor& at, std::int64_t valid, std::size_t rank) {
    if (valid > num_positions_) {
      problems_.add(
          at,
          fmt::format("{} valid positions on data rank {}, but a micro-batch has {}: {} sample{} "
                      "of {}",
                      valid, rank, num_positions_, result_.micro_batch_size(),
                      result_.micro_batch_size() == 1 ? "" : "s", num_positions(result_.model)),
          fmt::format("write at most {}", num_positions_));
    } else if (valid == 0 && normalization() == LossNormalization::LocalMean) {
      problems_.add(
          at,
          fmt::format("data rank {} has no valid position, but \"local_mean\" divides by their "
                      "number: the mean of no terms",
                      rank),
          "write at least 1, or \"loss_normalization\": \"global_tokens\" or \"sum\"");
    }
  }

  ObjectReader data_;
  Problems& problems_;
  Scenario& result_;
  std::int64_t num_positions_;
};

}  // namespace

void read_micro_batches(const ObjectReader& training, TrainingSpec& spec) {
  constexpr std::int64_t kMostPasses = 10'000'000;
  const auto given = training.integer("micro_batches");
  if (!given) return;
  if (*given > kMostPasses) {
    training.problems().add(training.where("micro_batches"),
                            fmt::format("{} micro-batches; the limit is {}", *given, kMostPasses),
                            "write fewer: the plan lists every one");
    return;
  }
  spec.micro_batches = *given;
  spec.gradient_syncs = read_syncs(training, "requires_gradient_sync", *given);
  spec.all_reduces = read_syncs(training, "requires_all_reduce", *given);
}

std::int64_t read_global_batch(const ObjectReader& scenario, std::int64_t num_data_ranks,
                               std::int64_t num_micro_batches) {
  const ObjectReader reader = scenario.object("training", "Training");
  const std::int64_t given = reader.integer("global_batch").value_or(0);
  if (given == 0 && num_data_ranks > kMost / 2 / num_micro_batches) {
    if (num_micro_batches > 1) {
      scenario.problems().add(reader.where("micro_batches"),
                              fmt::format("{} data ranks times {} micro-batches do not fit 63 bits",
                                          num_data_ranks, num_micro_batches),
                              "write fewer micro-batches, or make the mesh smaller");
    }
    return num_data_ranks;
  }
  const std::int64_t num_parts =
      num_data_ranks > kMost / num_micro_batches ? kMost : num_data_ranks * num_micro_batches;
  if (given == 0) return 2 * num_parts;
  for (const char* key : {"global_batch", "micro_batches"}) {
    if (reader.is_bad(key)) return given;
  }
  if (given % num_parts == 0) return given;
  const std::string times =
      num_micro_batches == 1 ? "" : fmt::format(" times {} micro-batches", num_micro_batches);
  scenario.problems().add(
      reader.where("global_batch"),
      fmt::format("{} samples do not divide evenly over {} data ranks{}: {} remain", given,
                  num_data_ranks, times, given % num_parts),
      "write " + multiples_near(given, num_parts));
  return given;
}

void read_tokens_of_ranks(const ObjectReader& scenario, Scenario& result) {
  const ObjectReader data = scenario.object("data", "Data");
  if (!data.has("tokens") || data.is_bad("tokens")) return;
  if (result.model.is_elementwise()) {
    scenario.problems().add(data.where("tokens"),
                            "\"tokens\" counts positions of the samples of a model, but the "
                            "scenario has \"parameters\"",
                            "leave \"tokens\" out, or write a \"model\"");
    return;
  }
  const ObjectReader training = scenario.object("training", "Training");
  for (const char* key : {"global_batch", "micro_batches"}) {
    if (training.is_bad(key)) return;
  }
  if (data.is_bad("data_dims") || data.is_bad("sample_shape")) return;
  TokensReader(scenario, result).read();
}

}  // namespace hpsim
