#pragma once

#include <gloo/context.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "engine/rank_engine.h"
#include "exec/gloo/exchange.h"

namespace hpsim {

/// The collectives of one rank over Gloo, between the members of any group of the one mesh of
/// connections. Ranks that enter with different tags exchange nothing: see Exchange.
///
/// Sums run over members in group order, ((x0 + x1) + x2) + ..., for every element, whichever way
/// the bytes travel: every member gets the bits that a loop in one process would give.
///
/// Chosen by measurement (tests/bench/bench_collectives, 4 ranks on two cores, ms, medians of 31 in
/// turn, 1 / 4 / 16 MiB in all):
///   all_gather      direct sends          1.0   3.5  11.4    Gloo's ring        1.2   3.5  11.0
///   reduce_scatter  direct sends and sum  1.5   4.2  14.4    ring               1.2   4.2  15.3
///                   Gloo's all-to-all     1.3   4.8  16.5    halving-doubling   1.2   5.2  18.5
///   all_reduce      two rounds            2.5   6.8  24.9    Gloo's ring        2.4   6.6  25.3
/// All-reduces up to 64 KiB, one round of everything to everyone: 0.3-0.4, Gloo's ring 1.0.
/// Another time, when direct all-gathers took 0.8, 2.8 and 15.0:
///   all_to_all      direct sends          0.9   3.0  14.7    Gloo's             1.0   2.9  16.0
/// As much in slots of 1 : 3 : 5 : 7, on a machine so busy that who is ahead changed between the
/// five runs; for 1 MiB from one in which it was quiet, for 4 and 16 MiB from another:
///   all_to_all      equal slots           0.6   3.2  21.4    Gloo's             0.7   3.1  21.8
///                   uneven slots          0.7   3.1  21.3    Gloo's alltoallv   0.7   3.2  24.2
/// Pieces of 1 MiB do not make it faster: nothing is computed that could overlap.
class GlooCollectives {
 public:
  /// `waiting_for` names the rank whose message is awaited, -1 when none; others may read it.
  GlooCollectives(std::shared_ptr<gloo::Context> context, Rank rank,
                  std::atomic<std::int64_t>& waiting_for);
  ~GlooCollectives();
  GlooCollectives(const GlooCollectives&) = delete;
  GlooCollectives& operator=(const GlooCollectives&) = delete;

  /// Carries out `call` among `members`, in group order; this rank is one of them. It sends nothing
  /// to whom it has nothing for: one that neither sends nor gets returns at once. When it returns,
  /// all buffers of `call` may be used again. Returns whether a sum made on this rank rounded (the
  /// INEXACT flag), which exact mode forbids.
  /// \pre at least two members, distinct; elements > 0, or counts; float32 or float64 where it adds
  ///      up, any dtype elsewhere; same tag on all members; counts on which any two agree
  /// \throws gloo::IoException if a member is lost or late
  [[nodiscard]] bool run(const CollectiveCall& call, const std::vector<Rank>& members,
                         std::uint64_t tag);

  /// Begins an all_gather and returns at once; Gloo's own thread goes on with it. Others, and those
  /// that `run` carries out, may run at the same time. What is sent must not change, nor what
  /// arrives be looked at, before `complete`. \pre as run; call.op is AllGather
  /// \throws gloo::IoException if a member is lost already
  [[nodiscard]] std::unique_ptr<Exchange> begin(const CollectiveCall& call,
                                                const std::vector<Rank>& members,
                                                std::uint64_t tag);
  /// Waits until it is done: all buffers of its call may be used again. \throws as run
  static void complete(Exchange& begun);

 private:
  struct Group;

  [[nodiscard]] Group group_of(const CollectiveCall& call, const std::vector<Rank>& members) const;
  [[nodiscard]] std::unique_ptr<Exchange> begin_all_gather(const CollectiveCall& call,
                                                           const Group& group, std::uint64_t tag);
  void all_to_all(const CollectiveCall& call, const Group& group, std::uint64_t tag);
  template <class T>
  void reduce(const CollectiveCall& call, const Group& group, std::uint64_t tag);
  template <class T>
  void reduce_scatter(const Group& group, const T* input, T* output, std::int64_t elems,
                      std::uint64_t tag);
  template <class T>
  void all_reduce_in_one_round(const Group& group, T* data, std::int64_t elems, std::uint64_t tag);
  template <class T>
  void all_reduce_in_two_rounds(const Group& group, T* data, std::int64_t elems, std::uint64_t tag);

  /// output[i] = ((sources[0][i] + sources[1][i]) + ...) for begin <= i < end, or the largest of
  /// them; a source may be the output.
  template <class T>
  void sum_in_order(const std::vector<const T*>& sources, T* output, std::int64_t begin,
                    std::int64_t end);
  /// At least this many bytes, kept for the next collective.
  [[nodiscard]] std::byte* scratch(std::int64_t size_bytes);

  std::shared_ptr<gloo::Context> context_;
  Rank rank_;
  std::atomic<std::int64_t>& waiting_for_;
  bool sum_rounded_ = false;  ///< since `run` began
  bool takes_max_ = false;    ///< of the call at hand
  std::byte* scratch_ = nullptr;
  std::int64_t scratch_bytes_ = 0;
};

}  // namespace hpsim
