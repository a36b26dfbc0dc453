#include "engine/embedding.h"

#include "kernel_checks.h"
#include "support/catch.h"

namespace hpsim {
namespace {

/// Rows [first, first + rows) of a vocabulary on one rank.
struct VocabularyPart {
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

struct EmbeddingData {
  EmbeddingData(std::int64_t positions, std::int64_t vocabulary_size, std::int64_t features)
      : vocabulary(vocabulary_size),
        dim(features),
        w(drawn("w", vocabulary_size * features)),
        dy(drawn("dy", positions * features)) {
    for (std::int64_t i = 0; i < positions; ++i) {
      tokens.push_back(value_at(fill_key("tokens", 3), i,
                                {.kind = FillSpec::Kind::Token, .vocabulary = vocabulary}));
    }
  }
  [[nodiscard]] Reals rows(const VocabularyPart& part) const {
    return {w.begin() + part.first * dim, w.begin() + (part.first + part.rows) * dim};
  }
  [[nodiscard]] std::vector<VocabularyPart> parts(std::int64_t count) const {
    std::vector<VocabularyPart> all;
    for (std::int64_t i = 0; i < count; ++i) {
      const Interval rows = shard_interval(vocabulary, {i, count}, Chunking::Ceil);
      all.push_back({rows.begin, rows.length()});
    }
    return all;
  }

  std::int64_t vocabulary;
  std::int64_t dim;
  Reals w, dy, tokens;
};

template <class T>
struct EmbeddingResults {
  std::vector<T> y, dw;
  bool intact = true;

  bool operator==(const EmbeddingResults& other) const {
    return same_bits(y, other.y) && same_bits(dw, other.dw);
  }
};

template <class T>
EmbeddingResults<T> run(const EmbeddingData& data, const VocabularyPart& part, const Split& split,
                        std::int64_t offset) {
  const auto positions = static_cast<std::int64_t>(data.tokens.size());
  Placed<T> tokens(data.tokens, offset), dy(data.dy, offset * 3 % kOffsets);
  Placed<T> y(positions * data.dim, offset * 5 % kOffsets);
  Blocked<T> w(data.rows(part), data.dim, split, offset * 7 % kOffsets);
  Blocked<T> dw(part.rows, data.dim, split, offset * 11 % kOffsets);
  embedding_forward(tokens.data(), positions, w.blocks(), part.first, y.data());
  embedding_backward(tokens.data(), dy.data(), positions, dw.blocks(), part.first);
  return {y.values(), dw.values(), y.is_intact_around() && dw.is_padding_intact()};
}

std::vector<EmbeddingData> all_embeddings() {
  std::vector<EmbeddingData> all;
  for (const std::int64_t positions : {0, 1, 7, 40}) {
    for (const std::int64_t vocabulary : {1, 5, 9}) {
      for (const std::int64_t dim : {1, 3, 19})
        all.emplace_back(positions, vocabulary, dim);
    }
  }
  return all;
}

TEST_CASE("embedding: rows by token, gradients added in order, however the weight is cut") {
  for (const EmbeddingData& data : all_embeddings()) {
    const auto dim = static_cast<std::size_t>(data.dim);
    Reals y;
    std::vector<float> dw(data.w.size(), 0);
    for (std::size_t n = 0; n < data.tokens.size(); ++n) {
      for (std::size_t i = 0; i < dim; ++i) {
        const std::size_t at = static_cast<std::size_t>(data.tokens[n]) * dim + i;
        y.push_back(data.w[at]);
        dw[at] += static_cast<float>(data.dy[n * dim + i]);
      }
    }
    for (const Split& split : all_splits()) {
      const auto got = run<float>(data, {0, data.vocabulary}, split, 0);
      CAPTURE(data.tokens.size(), data.vocabulary, dim, static_cast<int>(split.kind), split.shards);
      CHECK(largest_difference(got.y, y) == 0);
      CHECK(same_bits(got.dw, dw));
      CHECK(got.intact);
    }
  }
}

TEST_CASE("embedding: parts of the vocabulary sum up to the whole") {
  for (const EmbeddingData& data : all_embeddings()) {
    const auto whole = run<double>(data, {0, data.vocabulary}, {}, 0);
    for (const std::int64_t count : {1, 2, 3, 4}) {
      std::vector<double> sum(whole.y.size(), 0), dw;
      for (const VocabularyPart& part : data.parts(count)) {
        const auto got = run<double>(data, part, {Split::Kind::Ceil, 2}, 0);
        CHECK(got.intact);
        std::transform(sum.begin(), sum.end(), got.y.begin(), sum.begin(), std::plus<>());
        dw.insert(dw.end(), got.dw.begin(), got.dw.end());
      }
      CAPTURE(data.tokens.size(), data.vocabulary, data.dim, count);
      CHECK(same_bits(sum, whole.y));
      CHECK(same_bits(dw, whole.dw));
    }
  }
}

TEST_CASE("embedding: tokens next to a part of the vocabulary are outside") {
  // Rows 2 and 3 of five.
  double tokens[] = {1, 2, 3, 4, 2}, w[] = {20, 30}, y[5], dy[] = {1, 2, 4, 8, 16}, dw[2];
  embedding_forward(tokens, 5, {.data = w, .rows = 2, .row_elems = 1}, 2, y);
  CHECK(std::vector<double>(y, y + 5) == std::vector<double>{0, 20, 30, 0, 20});
  embedding_backward(tokens, dy, 5, {.data = dw, .rows = 2, .row_elems = 1}, 2);
  CHECK(dw[0] == 2 + 16);
  CHECK(dw[1] == 4);
}

TEST_CASE("embedding: the same bits wherever buffers lie") {
  const EmbeddingData data(40, 5, 19);
  const auto expected = run<float>(data, {1, 3}, {Split::Kind::Ceil, 2}, 0);
  for (std::int64_t offset = 1; offset < kOffsets; ++offset)
    CHECK(run<float>(data, {1, 3}, {Split::Kind::Ceil, 2}, offset) == expected);
}

}  // namespace
}  // namespace hpsim
