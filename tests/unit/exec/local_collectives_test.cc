#include "exec/local_collectives.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.h"
#include "support/catch.h"
#include "unit/exec/uneven_counts.h"

namespace hpsim {
namespace {

/// Ranks with a buffer each for what they send and receive.
template <class T>
struct Members {
  std::vector<std::vector<T>> inputs, outputs;
  std::vector<std::vector<std::int64_t>> counts_in, counts_out;
  std::vector<CollectiveCall> calls;

  Members(CollectiveOp op, DType dtype, std::vector<std::vector<T>> sent, std::size_t elems_out)
      : inputs(std::move(sent)), outputs(inputs.size(), std::vector<T>(elems_out, T(-99))) {
    const bool in_place = op == CollectiveOp::AllReduce;
    for (std::size_t m = 0; m < inputs.size(); ++m) {
      calls.push_back({.op = op,
                       .dtype = dtype,
                       .input = inputs[m].data(),
                       .output = in_place ? inputs[m].data() : outputs[m].data(),
                       .elems_in = static_cast<std::int64_t>(inputs[m].size()),
                       .elems_out = static_cast<std::int64_t>(elems_out)});
    }
  }

  /// An all-to-all in which members send what `sent` says and expect what `expected` says.
  Members(DType dtype, const CountMatrix& sent, const CountMatrix& expected,
          std::vector<std::vector<T>> values)
      : inputs(std::move(values)), outputs(inputs.size()) {
    for (std::size_t m = 0; m < inputs.size(); ++m) {
      counts_in.push_back(sent.sent_by(m));
      counts_out.push_back(expected.sent_to(m));
    }
    for (std::size_t m = 0; m < inputs.size(); ++m) {
      const auto elems_out =
          std::accumulate(counts_out[m].begin(), counts_out[m].end(), std::int64_t{0});
      outputs[m].assign(static_cast<std::size_t>(elems_out), T(-99));
      calls.push_back({.op = CollectiveOp::AllToAll,
                       .dtype = dtype,
                       .input = inputs[m].data(),
                       .output = outputs[m].data(),
                       .elems_in = static_cast<std::int64_t>(inputs[m].size()),
                       .elems_out = elems_out,
                       .counts_in = counts_in[m],
                       .counts_out = counts_out[m]});
    }
  }

  std::vector<std::size_t> exchange() {
    std::vector<const CollectiveCall*> all;
    for (const CollectiveCall& call : calls)
      all.push_back(&call);
    return exchange_in_process(all);
  }
};

using Rows = std::vector<std::vector<float>>;
using Places = std::vector<std::size_t>;

TEST_CASE("each collective on two members of two slots, by hand") {
  const Rows sent{{1, 2}, {30, 40}};
  Members<float> gathered(CollectiveOp::AllGather, DType::Float32, sent, 4);
  CHECK(gathered.exchange().empty());
  CHECK(gathered.outputs == Rows{{1, 2, 30, 40}, {1, 2, 30, 40}});
  Members<float> scattered(CollectiveOp::ReduceScatter, DType::Float32, sent, 1);
  CHECK(scattered.exchange().empty());
  CHECK(scattered.outputs == Rows{{31}, {42}});
  Members<float> reduced(CollectiveOp::AllReduce, DType::Float32, sent, 2);
  CHECK(reduced.exchange().empty());
  CHECK(reduced.inputs == Rows{{31, 42}, {31, 42}});
  Members<float> dealt(CollectiveOp::AllToAll, DType::Float32, sent, 2);
  CHECK(dealt.exchange().empty());
  CHECK(dealt.outputs == Rows{{1, 30}, {2, 40}});
  CHECK(dealt.inputs == sent);
}

TEST_CASE("members whose sums round are told, and only they") {
  // 1 + 2^-24 is no float32.
  const Rows sent{{1, 1, 1}, {0x1p-23F, 0x1p-24F, 2}, {0, 0, 0}};
  CHECK(Members<float>(CollectiveOp::ReduceScatter, DType::Float32, sent, 1).exchange() ==
        Places{1});
  CHECK(Members<float>(CollectiveOp::AllReduce, DType::Float32, sent, 3).exchange() ==
        Places{0, 1, 2});
  CHECK(Members<float>(CollectiveOp::AllToAll, DType::Float32, sent, 3).exchange().empty());
}

TEST_CASE("an all-reduce that takes the largest, by hand, rounds nothing") {
  Members<double> members(CollectiveOp::AllReduce, DType::Float64,
                          {{1, -7, 0x1p-60}, {3, -2, 0}, {2, -5, 1}}, 3);
  for (CollectiveCall& call : members.calls)
    call.takes_max = true;
  CHECK(members.exchange().empty());
  for (const std::vector<double>& got : members.inputs)
    CHECK(got == std::vector<double>{3, -2, 1});
  // The sum of the last elements rounds.
  Members<double> summed(CollectiveOp::AllReduce, DType::Float64,
                         {{1, -7, 0x1p-60}, {3, -2, 0}, {2, -5, 1}}, 3);
  CHECK(summed.exchange() == Places{0, 1, 2});
  CHECK(summed.inputs[0] == std::vector<double>{6, -14, 1});
  Members<float> narrow(CollectiveOp::AllReduce, DType::Float32, {{-1}, {-0.5F}}, 1);
  for (CollectiveCall& call : narrow.calls)
    call.takes_max = true;
  CHECK(narrow.exchange().empty());
  CHECK(narrow.inputs == Rows{{-0.5F}, {-0.5F}});
}

/// Every element tells whose it is, whom it is for, and which of the slot it is.
template <class T>
void check_all_to_all(std::size_t size, DType dtype, std::size_t slot, std::int64_t& compared) {
  const auto element = [slot, size](std::size_t from, std::size_t to, std::size_t i) {
    return static_cast<T>((from * size + to) * slot + i);
  };
  std::vector<std::vector<T>> sent(size);
  for (std::size_t from = 0; from < size; ++from) {
    for (std::size_t to = 0; to < size; ++to) {
      for (std::size_t i = 0; i < slot; ++i)
        sent[from].push_back(element(from, to, i));
    }
  }
  Members<T> members(CollectiveOp::AllToAll, dtype, sent, size * slot);
  CHECK(members.exchange().empty());
  CHECK(members.inputs == sent);
  std::int64_t wrong = 0;
  for (std::size_t to = 0; to < size; ++to) {
    for (std::size_t from = 0; from < size; ++from) {
      for (std::size_t i = 0; i < slot; ++i)
        wrong += members.outputs[to][from * slot + i] != element(from, to, i);
    }
  }
  compared += static_cast<std::int64_t>(size * size * slot);
  CHECK(wrong == 0);
}

TEST_CASE("an all-to-all hands slot j to member j and keeps them in group order, up to 8 members") {
  std::int64_t compared = 0;
  for (std::size_t size = 1; size <= 8; ++size) {
    // Up to 8 · 8 · 16,389 elements: every number of them is a float32.
    for (const std::size_t slot : {1, 7, 16'389}) {
      CAPTURE(size, slot);
      check_all_to_all<float>(size, DType::Float32, slot, compared);
      check_all_to_all<double>(size, DType::Float64, slot, compared);
    }
  }
  check_all_to_all<double>(3, DType::Float64, 524'288, compared);  // 4 MiB
  // 1 + 4 + ... + 64 = 204 slots of each size and dtype, then 9.
  CHECK(compared == 204 * 2 * (1 + 7 + 16'389) + 9 * 524'288);
}

TEST_CASE("an uneven all-to-all of three members, by hand") {
  // The last member sends nothing, the first gets nothing.
  const CountMatrix counts{"", {{0, 2, 1}, {0, 1, 3}, {0, 0, 0}}};
  const Rows sent{{1, 2, 3}, {40, 50, 60, 70}, {}};
  Members<float> members(DType::Float32, counts, counts, sent);
  CHECK(members.exchange().empty());
  CHECK(members.outputs == Rows{{}, {1, 2, 40}, {3, 50, 60, 70}});
  CHECK(members.inputs == sent);
}

/// Values that tell sender, receiver and place: under 2^24, and so float32.
template <class T>
std::vector<T> labels(std::size_t from, std::size_t to, std::int64_t count) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<T>((from * 8 + to) << 16) + static_cast<T>(i));
  return values;
}

template <class T>
void append(std::vector<T>& all, const std::vector<T>& part) {
  all.insert(all.end(), part.begin(), part.end());
}

template <class T>
std::int64_t check_uneven(DType dtype, const CountMatrix& matrix) {
  const std::size_t size = matrix.counts.size();
  std::vector<std::vector<T>> sent(size), want(size);
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t j = 0; j < size; ++j) {
      append(sent[i], labels<T>(i, j, matrix.counts[i][j]));
      append(want[i], labels<T>(j, i, matrix.counts[j][i]));
    }
  }
  Members<T> members(dtype, matrix, matrix, sent);
  CHECK(members.exchange().empty());
  CHECK((members.outputs == want));
  CHECK((members.inputs == sent));
  return matrix.total();
}

TEST_CASE("an uneven all-to-all hands each member its own elements, up to 8 members") {
  std::int64_t compared = 0;
  for (std::size_t size = 1; size <= 8; ++size) {
    for (const CountMatrix& matrix : uneven_counts(size)) {
      CAPTURE(size, matrix.name);
      compared += check_uneven<float>(DType::Float32, matrix);
      compared += check_uneven<double>(DType::Float64, matrix);
      compared += check_uneven<std::int64_t>(DType::Int64, matrix);
    }
  }
  CHECK(compared > 1'000'000);
}

TEST_CASE("counts of positions travel as int64, every bit of them") {
  constexpr std::int64_t kOdd = (std::int64_t{1} << 53) + 1;  // no float64
  const std::vector<std::vector<std::int64_t>> sent{{kOdd, 1, -2, 3}, {4, 5, 6, -kOdd}};
  Members<std::int64_t> members(CollectiveOp::AllToAll, DType::Int64, sent, 4);
  CHECK(members.exchange().empty());
  CHECK(members.outputs ==
        std::vector<std::vector<std::int64_t>>{{kOdd, 1, 4, 5}, {-2, 3, 6, -kOdd}});
}

TEST_CASE("members that disagree how much one sends to the other are named, with both counts") {
  const CountMatrix sent{"", {{0, 3}, {1, 0}}};
  const auto fails_with = [&](const CountMatrix& expected, const std::string& text) {
    Members<float> members(DType::Float32, sent, expected, {{1, 2, 3}, {4}});
    CHECK_THROWS_WITH(members.exchange(), Catch::Matchers::Contains(text));
  };
  fails_with({"", {{0, 2}, {1, 0}}}, "member 0 sends 3 elements to member 1, which expects 2");
  fails_with({"", {{0, 0}, {1, 0}}}, "member 0 sends 3 elements to member 1, which expects 0");
  fails_with({"", {{0, 3}, {2, 0}}}, "member 1 sends 1 elements to member 0, which expects 2");
  fails_with({"", {{0, 1}, {3, 0}}}, "member 0 sends 3 elements to member 1, which expects 1");
}

TEST_CASE("a swap of counts on both sides, which nothing else could see, is seen in the data") {
  const CountMatrix swapped{"", {{0, 1, 2}, {0, 0, 0}, {0, 0, 0}}};
  Members<float> members(DType::Float32, swapped, swapped, {{1, 1, 2}, {}, {}});
  CHECK(members.exchange().empty());
  CHECK(members.outputs != Rows{{}, {1, 1}, {2}});
}

}  // namespace
}  // namespace hpsim
