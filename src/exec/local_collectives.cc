#include "exec/local_collectives.h"

#include <cstring>
#include <numeric>

#include "base/check.h"
#include "exec/ordered_sum.h"

namespace hpsim {
namespace {

using Calls = std::vector<const CollectiveCall*>;

/// Row number `row`, of `elems` elements, of what a member sends.
const std::byte* input_row(const CollectiveCall& call, std::int64_t row, std::int64_t elems) {
  return static_cast<const std::byte*>(call.input) + row * elems * size_bytes(call.dtype);
}

/// Every member gets, in group order, one row of `elems` elements of each member's input: that with
/// number `row_for(place of the receiver)`.
template <class RowFor>
void deal_rows(const Calls& calls, std::int64_t elems, RowFor row_for) {
  const auto row_bytes = static_cast<std::size_t>(elems * size_bytes(calls[0]->dtype));
  for (std::size_t to = 0; to < calls.size(); ++to) {
    auto* output = static_cast<std::byte*>(calls[to]->output);
    for (const CollectiveCall* from : calls) {
      std::memcpy(output, input_row(*from, row_for(to), elems), row_bytes);
      output += row_bytes;
    }
  }
}

/// sum = the rows number `row` of all inputs, in group order. Returns whether it rounded.
bool sum_rows(const Calls& calls, std::int64_t row, std::int64_t elems, void* sum) {
  const DType dtype = calls[0]->dtype;
  std::memcpy(sum, input_row(*calls[0], row, elems),
              static_cast<std::size_t>(elems * size_bytes(dtype)));
  bool is_inexact = false;
  for (std::size_t i = 1; i < calls.size(); ++i)
    is_inexact = add_to(sum, input_row(*calls[i], row, elems), elems, dtype) || is_inexact;
  return is_inexact;
}

std::vector<std::size_t> reduce_scatter(const Calls& calls) {
  std::vector<std::size_t> rounded;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    if (sum_rows(calls, row, calls[i]->elems_out, calls[i]->output)) rounded.push_back(i);
  }
  return rounded;
}

std::vector<std::size_t> all_reduce(const Calls& calls) {
  const std::int64_t elems = calls[0]->elems_in;
  std::vector<std::byte> sum(static_cast<std::size_t>(elems * size_bytes(calls[0]->dtype)));
  const bool is_inexact = sum_rows(calls, 0, elems, sum.data());
  for (const CollectiveCall* call : calls)
    std::memcpy(call->output, sum.data(), sum.size());
  std::vector<std::size_t> rounded(is_inexact ? calls.size() : 0);
  std::iota(rounded.begin(), rounded.end(), std::size_t{0});
  return rounded;
}

void all_to_all(const Calls& calls) {
  const auto size = static_cast<std::int64_t>(calls.size());
  const std::int64_t elems = calls[0]->elems_in;
  HPSIM_CHECK(elems == calls[0]->elems_out && elems % size == 0,
              "an all_to_all of {} to {} elements among {}", elems, calls[0]->elems_out, size);
  deal_rows(calls, elems / size, [](std::size_t to) { return static_cast<std::int64_t>(to); });
}

}  // namespace

std::vector<std::size_t> exchange_in_process(const Calls& calls) {
  switch (calls.at(0)->op) {
    case CollectiveOp::AllGather:
      deal_rows(calls, calls[0]->elems_in, [](std::size_t) { return std::int64_t{0}; });
      return {};
    case CollectiveOp::ReduceScatter:
      return reduce_scatter(calls);
    case CollectiveOp::AllReduce:
      return all_reduce(calls);
    case CollectiveOp::AllToAll:
      all_to_all(calls);
      return {};
  }
  HPSIM_CHECK(false, "unknown collective {}", static_cast<int>(calls[0]->op));
  return {};
}

}  // namespace hpsim
