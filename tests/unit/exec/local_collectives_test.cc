#include "exec/local_collectives.h"

#include <algorithm>
#include <vector>

#include "support/catch.h"

namespace hpsim {
namespace {

/// Ranks with a buffer each for what they send and receive.
template <class T>
struct Members {
  std::vector<std::vector<T>> inputs, outputs;
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

}  // namespace
}  // namespace hpsim
