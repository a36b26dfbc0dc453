#include "exec/gloo/exchange.h"

#include <algorithm>

#include "base/check.h"

namespace hpsim {

namespace {

// Pieces need slots that nothing else in the run has. The finaliser of splitmix64 is one-to-one, so
// slots of messages of one size collide only where tag + number * constant does.
std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

std::uint64_t slot_of(std::uint64_t tag, std::int64_t message_bytes, std::uint64_t number) {
  constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;
  return mixed(mixed(tag + number * kGolden) + static_cast<std::uint64_t>(message_bytes) * kGolden);
}

int gloo_rank(Rank rank) {
  return static_cast<int>(rank.value);
}

}  // namespace

Exchange::Exchange(gloo::Context& context, std::atomic<std::int64_t>& waiting_for,
                   std::uint64_t tag, std::int64_t piece_bytes)
    : context_(context), waiting_for_(waiting_for), tag_(tag), piece_bytes_(piece_bytes) {}

Exchange::Message Exchange::make_message(Rank peer, void* data, std::int64_t size_bytes) const {
  return {peer, context_.createUnboundBuffer(data, static_cast<std::size_t>(size_bytes)),
          (size_bytes + piece_bytes_ - 1) / piece_bytes_};
}

template <class Visit>
void Exchange::for_each_piece(std::int64_t size_bytes, Visit visit) const {
  std::uint64_t number = 0;
  for (std::int64_t begin = 0; begin < size_bytes; begin += piece_bytes_) {
    visit(slot_of(tag_, size_bytes, number++), static_cast<std::size_t>(begin),
          static_cast<std::size_t>(std::min(piece_bytes_, size_bytes - begin)));
  }
}

void Exchange::receive(Rank peer, void* data, std::int64_t size_bytes) {
  if (size_bytes == 0) return;
  incoming_.push_back(make_message(peer, data, size_bytes));
  auto& buffer = *incoming_.back().buffer;
  waiting_for_.store(peer.value, std::memory_order_relaxed);  // throws if the peer is lost already
  for_each_piece(size_bytes, [&](std::uint64_t slot, std::size_t offset, std::size_t length) {
    buffer.recv(gloo_rank(peer), slot, offset, length);
  });
  waiting_for_.store(-1, std::memory_order_relaxed);
}

void Exchange::send(Rank peer, const void* data, std::int64_t size_bytes) {
  if (size_bytes == 0) return;
  // Gloo takes what it sends as mutable, and does not change it.
  outgoing_.push_back(make_message(peer, const_cast<void*>(data), size_bytes));
  auto& buffer = *outgoing_.back().buffer;
  waiting_for_.store(peer.value, std::memory_order_relaxed);
  for_each_piece(size_bytes, [&](std::uint64_t slot, std::size_t offset, std::size_t length) {
    buffer.send(gloo_rank(peer), slot, offset, length);
  });
  waiting_for_.store(-1, std::memory_order_relaxed);
}

void Exchange::wait_piece(Rank peer) {
  const auto message = std::find_if(incoming_.begin(), incoming_.end(),
                                    [&](const Message& m) { return m.peer == peer; });
  HPSIM_CHECK(message != incoming_.end() && message->pieces_left > 0,
              "nothing more is expected from rank {}", peer.value);
  waiting_for_.store(peer.value, std::memory_order_relaxed);
  message->buffer->waitRecv();
  --message->pieces_left;
  waiting_for_.store(-1, std::memory_order_relaxed);
}

void Exchange::finish_receives() {
  for (Message& message : incoming_) {
    while (message.pieces_left > 0)
      wait_piece(message.peer);
  }
}

void Exchange::finish_sends() {
  for (Message& message : outgoing_) {
    waiting_for_.store(message.peer.value, std::memory_order_relaxed);
    for (; message.pieces_left > 0; --message.pieces_left)
      message.buffer->waitSend();
  }
  waiting_for_.store(-1, std::memory_order_relaxed);
}

}  // namespace hpsim
