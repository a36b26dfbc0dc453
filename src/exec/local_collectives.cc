#include "exec/local_collectives.h"

#include <cstring>
#include <numeric>

#include "base/check.h"
#include "exec/ordered_sum.h"
#include "exec/slots.h"

namespace hpsim {
namespace {

using Calls = std::vector<const CollectiveCall*>;

/// Row number `row`, of `elems` elements, of what a member sends.
const std::byte* input_row(const CollectiveCall& call, std::int64_t row, std::int64_t elems) {
  return static_cast<const std::byte*>(call.input) + row * elems * size_bytes(call.dtype);
}

void all_gather(const Calls& calls) {
  const auto row_bytes = static_cast<std::size_t>(calls[0]->elems_in * size_bytes(calls[0]->dtype));
  for (const CollectiveCall* to : calls) {
    auto* output = static_cast<std::byte*>(to->output);
    for (const CollectiveCall* from : calls) {
      std::memcpy(output, from->input, row_bytes);
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
  for (std::size_t i = 1; calls[0]->takes_max && i < calls.size(); ++i)
    take_larger(sum, input_row(*calls[i], row, elems), elems, dtype);
  if (calls[0]->takes_max) return false;
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

/// Slot number i of what member j gets is slot number j of what member i sends.
void all_to_all(const Calls& calls) {
  const auto size = static_cast<std::int64_t>(calls.size());
  const std::int64_t elem_bytes = size_bytes(calls[0]->dtype);
  std::vector<std::vector<Interval>> expected;
  for (const CollectiveCall* to : calls)
    expected.push_back(slots_of(to->counts_out, to->elems_out, size));
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::vector<Interval> sent = slots_of(calls[i]->counts_in, calls[i]->elems_in, size);
    for (std::size_t j = 0; j < calls.size(); ++j) {
      const Interval slot = expected[j][i];
      HPSIM_CHECK(sent[j].length() == slot.length(),
                  "member {} sends {} elements to member {}, which expects {}", i, sent[j].length(),
                  j, slot.length());
      if (slot.empty()) continue;
      std::memcpy(static_cast<std::byte*>(calls[j]->output) + slot.begin * elem_bytes,
                  static_cast<const std::byte*>(calls[i]->input) + sent[j].begin * elem_bytes,
                  static_cast<std::size_t>(slot.length() * elem_bytes));
    }
  }
}

}  // namespace

std::vector<std::size_t> exchange_in_process(const Calls& calls) {
  switch (calls.at(0)->op) {
    case CollectiveOp::AllGather:
      all_gather(calls);
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
