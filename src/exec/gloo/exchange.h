#pragma once

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/ids.h"

namespace hpsim {

/// The messages of one collective between this rank and its peers, cut into pieces of at most
/// `piece_bytes` that travel in slots made from `tag` and the size of the message. Receive before
/// you send: data then flows without being announced first.
///
///   tags 7 and 7, 12 bytes sent, 12 expected    meet
///   tags 7 and 8                                never meet; both wait until the timeout
///   tags 7 and 7, 12 bytes sent, 8 expected     never meet: Gloo would cut off what is too much
///   0 bytes                                     no message: Gloo dies of it
class Exchange {
 public:
  /// `waiting_for` names the rank that is needed to go on, -1 when none; others may read it.
  Exchange(gloo::Context& context, std::atomic<std::int64_t>& waiting_for, std::uint64_t tag,
           std::int64_t piece_bytes);

  /// Expects `size_bytes` from `peer`. At most once per peer.
  void receive(Rank peer, void* data, std::int64_t size_bytes);
  /// Sends to `peer`; `data` may change only after finish_sends. At most once per peer.
  void send(Rank peer, const void* data, std::int64_t size_bytes);

  /// Waits for the next piece of `peer`; they arrive in order. \throws gloo::IoException
  void wait_piece(Rank peer);
  /// Waits for all pieces of all peers. \throws gloo::IoException
  void finish_receives();
  /// \throws gloo::IoException
  void finish_sends();

 private:
  struct Message {
    Rank peer;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    std::int64_t pieces_left = 0;
  };

  [[nodiscard]] Message make_message(Rank peer, void* data, std::int64_t size_bytes) const;
  template <class Visit>
  void for_each_piece(std::int64_t size_bytes, Visit visit) const;

  gloo::Context& context_;
  std::atomic<std::int64_t>& waiting_for_;
  std::uint64_t tag_;
  std::int64_t piece_bytes_;
  std::vector<Message> incoming_;
  std::vector<Message> outgoing_;
};

}  // namespace hpsim
