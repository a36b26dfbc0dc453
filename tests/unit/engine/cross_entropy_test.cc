#include "engine/cross_entropy.h"

#include "base/interval.h"
#include "kernel_checks.h"
#include "support/catch.h"

namespace hpsim {
namespace {

constexpr double kLossScale = 0.375;

struct LossData {
  LossData(std::int64_t num_rows, std::int64_t num_classes, double size)
      : rows(num_rows), classes(num_classes), z(drawn("z", num_rows * num_classes, size)) {
    for (std::int64_t i = 0; i < rows; ++i) {
      targets.push_back(value_at(fill_key("targets", 3), i,
                                 {.kind = FillSpec::Kind::Token, .vocabulary = classes}));
    }
  }
  [[nodiscard]] long double loss() const {
    long double sum = 0;
    for (std::size_t row = 0; row < targets.size(); ++row) {
      const long double* of_row = z.data() + row * static_cast<std::size_t>(classes);
      const long double max = *std::max_element(of_row, of_row + classes);
      long double exponentials = 0;
      for (std::int64_t c = 0; c < classes; ++c)
        exponentials += std::exp(of_row[c] - max);
      sum += std::log(exponentials) + max - of_row[static_cast<std::int64_t>(targets[row])];
    }
    return sum;
  }
  /// Columns of z.
  [[nodiscard]] Reals logits(const LocalClasses& part) const {
    Reals columns;
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto begin = z.begin() + row * classes + part.first;
      columns.insert(columns.end(), begin, begin + part.count);
    }
    return columns;
  }

  std::int64_t rows;
  std::int64_t classes;
  Reals z, targets;
};

template <class T>
struct LossResults {
  T loss = 0;
  std::vector<T> dz;  ///< [rows, classes]
  bool intact = true;

  bool operator==(const LossResults& other) const {
    return same_bits<T>({loss}, {other.loss}) && same_bits(dz, other.dz);
  }
};

/// What `parts` ranks compute, the all-gather done by hand. Every rank must combine the same.
template <class T>
LossResults<T> run(const LossData& data, std::int64_t parts, std::int64_t offset, bool in_place) {
  const std::int64_t of_part = kCrossEntropyStatistics * data.rows;
  Placed<T> targets(data.targets, offset);
  std::vector<LocalClasses> classes;
  std::vector<Placed<T>> logits;
  Placed<T> gathered(parts * of_part, offset * 3 % kOffsets);
  for (std::int64_t part = 0; part < parts; ++part) {
    const Interval held = shard_interval(data.classes, {part, parts}, Chunking::Ceil);
    classes.push_back({held.begin, held.length()});
    logits.emplace_back(data.logits(classes.back()), (offset * 5 + part) % kOffsets);
    cross_entropy_statistics(logits.back().data(), data.rows, classes.back(), targets.data(),
                             gathered.data() + part * of_part);
  }
  Placed<T> other(of_part, offset * 7 % kOffsets);
  T* const combined = in_place ? gathered.data() : other.data();
  cross_entropy_combine(gathered.data(), parts, data.rows, combined);
  LossResults<T> results{.loss = cross_entropy_sum(combined, data.rows),
                         .dz = std::vector<T>(data.z.size())};
  for (std::size_t part = 0; part < classes.size(); ++part) {
    const LocalClasses& local = classes[part];
    Placed<T> fresh(data.rows * local.count, offset * 11 % kOffsets);
    Placed<T>& dz = in_place ? logits[part] : fresh;
    cross_entropy_gradient(logits[part].data(), data.rows, local, targets.data(), combined,
                           static_cast<T>(kLossScale), dz.data());
    for (std::int64_t row = 0; row < data.rows; ++row) {
      std::copy_n(dz.data() + row * local.count, local.count,
                  results.dz.begin() + row * data.classes + local.first);
    }
    results.intact = results.intact && dz.is_intact_around();
  }
  results.intact = results.intact && gathered.is_intact_around() && other.is_intact_around();
  return results;
}

std::vector<LossData> all_losses() {
  std::vector<LossData> all;
  for (const std::int64_t rows : {0, 1, 5}) {
    for (const std::int64_t classes : {1, 2, 5, 33})
      all.emplace_back(rows, classes, 1.0);
  }
  return all;
}

TEMPLATE_TEST_CASE("cross entropy: values and gradients of its formula, on 1 to 4 ranks", "", float,
                   double) {
  for (LossData data : all_losses()) {
    const long double loss = data.loss();
    Reals dz = gradient([&] { return data.loss(); }, data.z);
    for (long double& element : dz)
      element *= kLossScale;
    // Sums of at most classes + rows terms, none over log(classes) + 2; fifth derivatives under 8.
    const auto terms = static_cast<long double>(data.classes + data.rows + 8);
    const long double tolerance =
        16 * terms * std::numeric_limits<TestType>::epsilon() + 8 * std::pow(kStep, 4);
    for (const std::int64_t parts : {1, 2, 3, 4}) {
      for (const bool in_place : {false, true}) {
        const auto got = run<TestType>(data, parts, 0, in_place);
        CAPTURE(data.rows, data.classes, parts, in_place);
        CHECK(std::abs(got.loss - loss) <= tolerance);
        CHECK(largest_difference(got.dz, dz) <= tolerance);
        CHECK(got.intact);
      }
    }
  }
}

TEST_CASE("cross entropy: large logits neither overflow nor vanish") {
  // Up to 2^13: exp of it, or of its negative, is no float and no double.
  const LossData data(5, 33, 0x1p13);
  const long double loss = data.loss();
  CHECK(loss > 1000);
  for (const std::int64_t parts : {1, 3}) {
    const auto got = run<float>(data, parts, 0, false);
    CHECK(std::abs(got.loss - loss) <= 16 * std::numeric_limits<float>::epsilon() * 5 * 0x1p14L);
    CHECK(std::all_of(got.dz.begin(), got.dz.end(), [](float v) { return std::isfinite(v); }));
    CHECK(*std::min_element(got.dz.begin(), got.dz.end()) == Approx(-kLossScale));
  }
}

TEST_CASE("cross entropy by hand: two equal logits, then statistics of a rank with no classes") {
  const double z[] = {3, 3}, target[] = {1};
  double statistics[6], dz[2];
  cross_entropy_statistics(z, 1, {0, 2}, target, statistics);
  CHECK(std::vector<double>(statistics, statistics + 3) == std::vector<double>{3, 2, 3});
  cross_entropy_statistics<double>(nullptr, 1, {2, 0}, target, statistics + 3);
  CHECK(statistics[3] == -std::numeric_limits<double>::infinity());
  CHECK(statistics[4] == 0);
  CHECK(statistics[5] == 0);
  cross_entropy_combine(statistics, 2, 1, statistics);
  CHECK(cross_entropy_sum(statistics, 1) == std::log(2.0));
  cross_entropy_gradient(z, 1, {0, 2}, target, statistics, 4.0, dz);
  CHECK(dz[0] == 2);
  CHECK(dz[1] == -2);
}

TEST_CASE("cross entropy: the same bits wherever buffers lie") {
  for (const std::int64_t parts : {1, 3}) {
    const LossData data(5, 101, 4.0);
    const auto floats = run<float>(data, parts, 0, false);
    const auto doubles = run<double>(data, parts, 0, false);
    for (std::int64_t offset = 1; offset < kOffsets; ++offset) {
      CHECK(run<float>(data, parts, offset, false) == floats);
      CHECK(run<double>(data, parts, offset, true) == doubles);
    }
  }
}

}  // namespace
}  // namespace hpsim
