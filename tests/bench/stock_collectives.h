#pragma once

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/context.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace hpsim::bench {

// What Gloo itself offers for the collectives of a plan, float32, over the whole context.

inline void stock_all_gather(const std::shared_ptr<gloo::Context>& context, float* input,
                             float* output, std::size_t elems, std::uint32_t tag) {
  gloo::AllgatherOptions options(context);
  options.setInput(input, elems);
  options.setOutput(output, elems * static_cast<std::size_t>(context->size));
  options.setTag(tag);
  gloo::allgather(options);
}

inline void stock_all_reduce(const std::shared_ptr<gloo::Context>& context, float* data,
                             std::size_t elems, bool ring, std::uint32_t tag) {
  gloo::AllreduceOptions options(context);
  options.setOutput(data, elems);
  options.setReduceFunction(
      [](void* a, const void* b, const void* c, std::size_t n) { gloo::sum<float>(a, b, c, n); });
  options.setAlgorithm(ring ? gloo::AllreduceOptions::Algorithm::RING
                            : gloo::AllreduceOptions::Algorithm::BCUBE);
  options.setTag(tag);
  gloo::allreduce(options);
}

/// Halving-doubling, Gloo's only reduce-scatter: in place, the result at the front. One object per
/// buffer, since making it exchanges the addresses of buffers.
class StockReduceScatter {
 public:
  StockReduceScatter(const std::shared_ptr<gloo::Context>& context, float* data,
                     std::int64_t elems_per_rank)
      : algorithm_(context, {data}, static_cast<int>(elems_per_rank) * context->size,
                   std::vector<int>(static_cast<std::size_t>(context->size),
                                    static_cast<int>(elems_per_rank))) {}
  void run() { algorithm_.run(); }

 private:
  gloo::ReduceScatterHalvingDoubling<float> algorithm_;
};

/// `elems` to and from every rank.
inline void stock_all_to_all(const std::shared_ptr<gloo::Context>& context, float* input,
                             float* output, std::int64_t elems, std::uint32_t tag) {
  gloo::AlltoallOptions options(context);
  options.setInput(input, static_cast<std::size_t>(elems * context->size));
  options.setOutput(output, static_cast<std::size_t>(elems * context->size));
  options.setTag(tag);
  gloo::alltoall(options);
}

/// counts[j] elements to rank j, and as many from it.
inline void stock_uneven_all_to_all(const std::shared_ptr<gloo::Context>& context, float* input,
                                    float* output, const std::vector<std::int64_t>& counts,
                                    std::uint32_t tag) {
  gloo::AlltoallvOptions options(context);
  options.setInput(input, counts);
  options.setOutput(output, counts);
  options.setTag(tag);
  gloo::alltoallv(options);
}

/// All-to-all, then a sum of what came, in rank order.
inline void all_to_all_and_sum(const std::shared_ptr<gloo::Context>& context, float* input,
                               std::vector<float>& received, float* output, std::int64_t elems,
                               std::uint32_t tag) {
  stock_all_to_all(context, input, received.data(), elems, tag);
  std::copy_n(received.data(), elems, output);
  for (int rank = 1; rank < context->size; ++rank) {
    const float* const from = received.data() + rank * elems;
    for (std::int64_t i = 0; i < elems; ++i)
      output[i] += from[i];
  }
}

/// The ring: each part travels once around and grows by one term per rank. Not in rank order.
inline void ring_reduce_scatter(const std::shared_ptr<gloo::Context>& context, const float* input,
                                std::vector<float>& scratch, float* output, std::int64_t elems,
                                std::uint64_t slot) {
  const int n = context->size;
  const int next = (context->rank + 1) % n;
  const int previous = (context->rank + n - 1) % n;
  const auto size = static_cast<std::size_t>(elems) * sizeof(float);
  float* sending = scratch.data();
  float* receiving = scratch.data() + elems;
  std::copy_n(input + ((context->rank + n - 1) % n) * elems, elems, sending);
  for (int k = 1; k < n; ++k) {
    const auto out = context->createUnboundBuffer(sending, size);
    const auto in = context->createUnboundBuffer(receiving, size);
    in->recv(previous, slot + static_cast<std::uint64_t>(k));
    out->send(next, slot + static_cast<std::uint64_t>(k));
    in->waitRecv();
    out->waitSend();
    const float* const own = input + ((context->rank + 2 * n - 1 - k) % n) * elems;
    for (std::int64_t i = 0; i < elems; ++i)
      receiving[i] += own[i];
    std::swap(sending, receiving);
  }
  std::copy_n(sending, elems, output);
}

}  // namespace hpsim::bench
