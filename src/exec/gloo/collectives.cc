#include "exec/gloo/collectives.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/interval.h"
#include "engine/exactness.h"
#include "exec/gloo/exchange.h"
#include "exec/slots.h"

namespace hpsim {

namespace {

// Elements summed at a time: the running sum stays in the first-level cache.
constexpr std::int64_t kSumBlock = 2048;
// Pieces of what is summed, so that summing one overlaps with receiving the next.
constexpr std::int64_t kSumPieceBytes = 1 << 20;
constexpr std::int64_t kOnePiece = std::int64_t{1} << 62;
// All-reduces up to this size send everything to everyone: one round instead of two.
constexpr std::int64_t kOneRoundBytes = 64 << 10;

template <class T>
std::int64_t bytes_of(std::int64_t elems) {
  return elems * static_cast<std::int64_t>(sizeof(T));
}

/// What goes to each member, or comes from it, in one buffer of an all_to_all.
template <class Byte>
class BufferSlots {
 public:
  template <class Void>
  BufferSlots(Void* buffer, std::span<const std::int64_t> counts, std::int64_t elems, DType dtype,
              std::int64_t num_members)
      : buffer_(static_cast<Byte*>(buffer)),
        slots_(slots_of(counts, elems, num_members)),
        elem_bytes_(size_bytes(dtype)) {}

  [[nodiscard]] Byte* data(std::int64_t member) const {
    return buffer_ + at(member).begin * elem_bytes_;
  }
  /// In bytes.
  [[nodiscard]] std::int64_t size(std::int64_t member) const {
    return at(member).length() * elem_bytes_;
  }

 private:
  [[nodiscard]] Interval at(std::int64_t member) const {
    return slots_[static_cast<std::size_t>(member)];
  }

  Byte* buffer_;
  std::vector<Interval> slots_;
  std::int64_t elem_bytes_;
};

}  // namespace

/// The members, and which of them this rank is.
struct GlooCollectives::Group {
  const std::vector<Rank>& members;
  std::int64_t me = 0;

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(members.size()); }
  [[nodiscard]] Rank rank(std::int64_t member) const {
    return members[static_cast<std::size_t>(member)];
  }
  /// Visits every other member, each rank beginning behind itself: not all send to the same.
  template <class Visit>
  void for_each_peer(Visit visit) const {
    for (std::int64_t k = 1; k < size(); ++k)
      visit((me + k) % size());
  }
};

GlooCollectives::GlooCollectives(std::shared_ptr<gloo::Context> context, Rank rank,
                                 std::atomic<std::int64_t>& waiting_for)
    : context_(std::move(context)), rank_(rank), waiting_for_(waiting_for) {}

GlooCollectives::~GlooCollectives() {
  if (scratch_ != nullptr) munmap(scratch_, static_cast<std::size_t>(scratch_bytes_));
}

std::byte* GlooCollectives::scratch(std::int64_t size_bytes) {
  if (size_bytes <= scratch_bytes_) return scratch_;
  constexpr std::int64_t kHugePage = 2 << 20;
  const std::int64_t rounded = (size_bytes + kHugePage - 1) / kHugePage * kHugePage;
  if (scratch_ != nullptr) munmap(scratch_, static_cast<std::size_t>(scratch_bytes_));
  scratch_ = nullptr;
  scratch_bytes_ = 0;
  void* const memory = mmap(nullptr, static_cast<std::size_t>(rounded), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  madvise(memory, static_cast<std::size_t>(rounded), MADV_HUGEPAGE);  // a wish; may be refused
  scratch_ = static_cast<std::byte*>(memory);
  scratch_bytes_ = rounded;
  return scratch_;
}

GlooCollectives::Group GlooCollectives::group_of(const CollectiveCall& call,
                                                 const std::vector<Rank>& members) const {
  const auto found = std::find(members.begin(), members.end(), rank_);
  HPSIM_CHECK(found != members.end() && members.size() > 1, "rank {} is not in a group of {}",
              rank_.value, members.size());
  HPSIM_CHECK(!call.counts_in.empty() || (call.elems_in > 0 && call.elems_out > 0),
              "a collective of {} to {} elements", call.elems_in, call.elems_out);
  return {members, found - members.begin()};
}

std::unique_ptr<Exchange> GlooCollectives::begin(const CollectiveCall& call,
                                                 const std::vector<Rank>& members,
                                                 std::uint64_t tag) {
  HPSIM_CHECK(call.op == CollectiveOp::AllGather, "no {} is only begun", name_of(call.op));
  return begin_all_gather(call, group_of(call, members), tag);
}

void GlooCollectives::complete(Exchange& begun) {
  begun.finish_receives();
  begun.finish_sends();
}

bool GlooCollectives::run(const CollectiveCall& call, const std::vector<Rank>& members,
                          std::uint64_t tag) {
  const Group group = group_of(call, members);
  sum_rounded_ = false;
  takes_max_ = call.takes_max;
  if (call.op == CollectiveOp::AllGather) {
    complete(*begin_all_gather(call, group, tag));
  } else if (call.op == CollectiveOp::AllToAll) {
    all_to_all(call, group, tag);
  } else if (call.dtype == DType::Float32) {
    reduce<float>(call, group, tag);
  } else {
    HPSIM_CHECK(call.dtype == DType::Float64, "no sums in {}", name_of(call.dtype));
    reduce<double>(call, group, tag);
  }
  return sum_rounded_;
}

template <class T>
void GlooCollectives::sum_in_order(const std::vector<const T*>& sources, T* output,
                                   std::int64_t begin, std::int64_t end) {
  if (takes_max_) {
    for (; begin < end; ++begin) {
      T largest = sources[0][begin];
      for (const T* const source : sources)
        largest = std::max(largest, source[begin]);
      output[begin] = largest;
    }
    return;
  }
  const InexactWatch watch;
  std::array<T, kSumBlock> sum;
  for (; begin < end; begin += kSumBlock) {
    const std::int64_t count = std::min(kSumBlock, end - begin);
    std::copy_n(sources[0] + begin, count, sum.data());
    for (std::size_t s = 1; s + 1 < sources.size(); ++s) {
      const T* const source = sources[s] + begin;
      for (std::int64_t i = 0; i < count; ++i)
        sum[static_cast<std::size_t>(i)] += source[i];
    }
    const T* const last = sources.back() + begin;
    T* const out = output + begin;
    for (std::int64_t i = 0; i < count; ++i)
      out[i] = sum[static_cast<std::size_t>(i)] + last[i];
  }
  sum_rounded_ = sum_rounded_ || watch.was_inexact();
}

std::unique_ptr<Exchange> GlooCollectives::begin_all_gather(const CollectiveCall& call,
                                                            const Group& group, std::uint64_t tag) {
  auto exchange = std::make_unique<Exchange>(*context_, waiting_for_, tag, kOnePiece);
  const std::int64_t size = call.elems_in * size_bytes(call.dtype);
  auto* const output = static_cast<std::byte*>(call.output);
  group.for_each_peer(
      [&](std::int64_t peer) { exchange->receive(group.rank(peer), output + peer * size, size); });
  group.for_each_peer(
      [&](std::int64_t peer) { exchange->send(group.rank(peer), call.input, size); });
  std::byte* const own = output + group.me * size;
  if (own != call.input) std::memcpy(own, call.input, static_cast<std::size_t>(size));
  return exchange;
}

void GlooCollectives::all_to_all(const CollectiveCall& call, const Group& group,
                                 std::uint64_t tag) {
  const BufferSlots<const std::byte> sent(call.input, call.counts_in, call.elems_in, call.dtype,
                                          group.size());
  const BufferSlots<std::byte> expected(call.output, call.counts_out, call.elems_out, call.dtype,
                                        group.size());
  const std::int64_t own_size = sent.size(group.me);
  HPSIM_CHECK(own_size == expected.size(group.me),
              "rank {} sends {} bytes to itself, but expects {}", rank_.value, own_size,
              expected.size(group.me));
  Exchange exchange(*context_, waiting_for_, tag, kOnePiece);
  group.for_each_peer([&](std::int64_t peer) {
    exchange.receive(group.rank(peer), expected.data(peer), expected.size(peer));
  });
  group.for_each_peer([&](std::int64_t peer) {
    exchange.send(group.rank(peer), sent.data(peer), sent.size(peer));
  });
  if (own_size > 0) {
    std::memcpy(expected.data(group.me), sent.data(group.me), static_cast<std::size_t>(own_size));
  }
  exchange.finish_receives();
  exchange.finish_sends();
}

template <class T>
void GlooCollectives::reduce(const CollectiveCall& call, const Group& group, std::uint64_t tag) {
  T* const output = static_cast<T*>(call.output);
  if (call.op == CollectiveOp::ReduceScatter) {
    return reduce_scatter(group, static_cast<const T*>(call.input), output, call.elems_out, tag);
  }
  HPSIM_CHECK(call.op == CollectiveOp::AllReduce, "unknown collective {}",
              static_cast<int>(call.op));
  HPSIM_CHECK(call.input == call.output, "all_reduce works in place");
  return bytes_of<T>(call.elems_in) <= kOneRoundBytes
             ? all_reduce_in_one_round(group, output, call.elems_in, tag)
             : all_reduce_in_two_rounds(group, output, call.elems_in, tag);
}

template <class T>
void GlooCollectives::reduce_scatter(const Group& group, const T* input, T* output,
                                     std::int64_t elems, std::uint64_t tag) {
  Exchange exchange(*context_, waiting_for_, tag, kSumPieceBytes);
  const std::int64_t size = bytes_of<T>(elems);
  T* const received = reinterpret_cast<T*>(scratch(size * group.size()));
  std::vector<const T*> sources(group.members.size());
  for (std::int64_t m = 0; m < group.size(); ++m) {
    sources[static_cast<std::size_t>(m)] = m == group.me ? input + m * elems : received + m * elems;
  }
  group.for_each_peer([&](std::int64_t peer) {
    exchange.receive(group.rank(peer), received + peer * elems, size);
  });
  group.for_each_peer(
      [&](std::int64_t peer) { exchange.send(group.rank(peer), input + peer * elems, size); });
  constexpr std::int64_t kPiece = kSumPieceBytes / static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t begin = 0; begin < elems; begin += kPiece) {
    group.for_each_peer([&](std::int64_t peer) { exchange.wait_piece(group.rank(peer)); });
    sum_in_order<T>(sources, output, begin, std::min(begin + kPiece, elems));
  }
  exchange.finish_sends();
}

template <class T>
void GlooCollectives::all_reduce_in_one_round(const Group& group, T* data, std::int64_t elems,
                                              std::uint64_t tag) {
  Exchange exchange(*context_, waiting_for_, tag, kOnePiece);
  const std::int64_t size = bytes_of<T>(elems);
  T* const received = reinterpret_cast<T*>(scratch(size * group.size()));
  std::vector<const T*> sources(group.members.size());
  for (std::int64_t m = 0; m < group.size(); ++m) {
    sources[static_cast<std::size_t>(m)] = m == group.me ? data : received + m * elems;
  }
  group.for_each_peer([&](std::int64_t peer) {
    exchange.receive(group.rank(peer), received + peer * elems, size);
  });
  group.for_each_peer([&](std::int64_t peer) { exchange.send(group.rank(peer), data, size); });
  exchange.finish_receives();
  exchange.finish_sends();
  sum_in_order<T>(sources, data, 0, elems);
}

template <class T>
void GlooCollectives::all_reduce_in_two_rounds(const Group& group, T* data, std::int64_t elems,
                                               std::uint64_t tag) {
  // Round one: everybody sums one part of all copies. Round two: the sums go to everybody.
  const auto part = [&](std::int64_t member) {
    return shard_interval(elems, {member, group.size()});
  };
  const Interval own = part(group.me);
  const std::int64_t own_size = bytes_of<T>(own.length());
  T* const received = reinterpret_cast<T*>(scratch(own_size * group.size()));
  std::vector<const T*> sources(group.members.size());
  for (std::int64_t m = 0; m < group.size(); ++m) {
    sources[static_cast<std::size_t>(m)] =
        m == group.me ? data + own.begin : received + m * own.length();
  }

  Exchange parts(*context_, waiting_for_, tag, kSumPieceBytes);
  group.for_each_peer([&](std::int64_t peer) {
    parts.receive(group.rank(peer), received + peer * own.length(), own_size);
  });
  group.for_each_peer([&](std::int64_t peer) {
    parts.send(group.rank(peer), data + part(peer).begin, bytes_of<T>(part(peer).length()));
  });
  constexpr std::int64_t kPiece = kSumPieceBytes / static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t begin = 0; begin < own.length(); begin += kPiece) {
    group.for_each_peer([&](std::int64_t peer) { parts.wait_piece(group.rank(peer)); });
    sum_in_order<T>(sources, data + own.begin, begin, std::min(begin + kPiece, own.length()));
  }

  // A peer sends its sums after it has received this rank's part, so what is overwritten here has
  // left already.
  Exchange sums(*context_, waiting_for_, ~tag, kOnePiece);
  group.for_each_peer([&](std::int64_t peer) {
    sums.receive(group.rank(peer), data + part(peer).begin, bytes_of<T>(part(peer).length()));
  });
  group.for_each_peer(
      [&](std::int64_t peer) { sums.send(group.rank(peer), data + own.begin, own_size); });
  sums.finish_receives();
  parts.finish_sends();
  sums.finish_sends();
}

}  // namespace hpsim
