#pragma once

#include <gloo/context.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "engine/rank_engine.h"

namespace hpsim {

/// The collectives of one rank over Gloo, between the members of any group of the one mesh of
/// connections. Ranks that enter with different tags exchange nothing: see Exchange.
///
/// Sums run over members in group order, ((x0 + x1) + x2) + ..., for every element, whichever way
/// the bytes travel: every member gets the bits that a loop in one process would give.
///
/// Chosen by measurement (tests/bench/bench_collectives, 4 ranks, two cores with other work on
/// them, ms, medians of 31 in turn, 1 / 4 / 16 MiB in all):
///   all_gather      direct sends          1.1   3.0  18.9    Gloo's ring        5.1   3.8  22.8
///   reduce_scatter  direct sends and sum  1.7   4.3  21.8    ring              10.2   4.4  26.2
///                   Gloo's all-to-all     1.6   5.2  32.3    halving-doubling   5.3   5.0  33.7
///   all_reduce      two rounds            2.3   7.2  52.7    Gloo's ring        8.5   6.9  46.7
/// Up to 64 KiB one round of everything to everyone takes 0.4-0.7, Gloo's ring 6-8.
class GlooCollectives {
 public:
  /// `waiting_for` names the rank whose message is awaited, -1 when none; others may read it.
  GlooCollectives(std::shared_ptr<gloo::Context> context, Rank rank,
                  std::atomic<std::int64_t>& waiting_for);
  ~GlooCollectives();
  GlooCollectives(const GlooCollectives&) = delete;
  GlooCollectives& operator=(const GlooCollectives&) = delete;

  /// Carries out `call` among `members`, in group order; this rank is one of them. When it returns,
  /// all buffers of `call` may be used again. Returns whether a sum made on this rank rounded (the
  /// INEXACT flag), which exact mode forbids.
  /// \pre at least two members, distinct; elements > 0; float32 or float64; same tag on all members
  /// \throws gloo::IoException if a member is lost or late
  [[nodiscard]] bool run(const CollectiveCall& call, const std::vector<Rank>& members,
                         std::uint64_t tag);

 private:
  struct Group;

  template <class T>
  void run_typed(const CollectiveCall& call, const Group& group, std::uint64_t tag);
  template <class T>
  void all_gather(const Group& group, const T* input, T* output, std::int64_t elems,
                  std::uint64_t tag);
  template <class T>
  void reduce_scatter(const Group& group, const T* input, T* output, std::int64_t elems,
                      std::uint64_t tag);
  template <class T>
  void all_reduce_in_one_round(const Group& group, T* data, std::int64_t elems, std::uint64_t tag);
  template <class T>
  void all_reduce_in_two_rounds(const Group& group, T* data, std::int64_t elems, std::uint64_t tag);

  /// output[i] = ((sources[0][i] + sources[1][i]) + ...) for begin <= i < end; a source may be the
  /// output.
  template <class T>
  void sum_in_order(const std::vector<const T*>& sources, T* output, std::int64_t begin,
                    std::int64_t end);
  /// At least this many bytes, kept for the next collective.
  [[nodiscard]] std::byte* scratch(std::int64_t size_bytes);

  std::shared_ptr<gloo::Context> context_;
  Rank rank_;
  std::atomic<std::int64_t>& waiting_for_;
  bool sum_rounded_ = false;  ///< since `run` began
  std::byte* scratch_ = nullptr;
  std::int64_t scratch_bytes_ = 0;
};

}  // namespace hpsim
