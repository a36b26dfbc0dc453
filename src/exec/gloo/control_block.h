#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "exec/gloo/shared_value.h"

namespace hpsim {

/// Where a rank is, in the order in which it gets there. In Connecting, Communicating and Meeting
/// it waits for others.
enum class RankState : std::int64_t {
  Starting,       ///< forked, nothing done yet
  Connecting,     ///< to all other ranks
  Computing,      ///< in a step of the plan, without need of others
  Preparing,      ///< the collective of a step, without need of others
  Communicating,  ///< in the collective of a step
  Meeting,        ///< all steps done; waits until all ranks are
  Failed,         ///< about to exit; its text says why
};

/// Why a rank failed: through a fault of its own, because it lost another, or because it found that
/// another sends it more or less than it expects.
enum class FailureKind : std::int64_t { None, Own, Transport, Counts };

/// What a rank says about itself; one consistent moment.
struct RankStatus {
  RankState state = RankState::Starting;
  FailureKind failure = FailureKind::None;
  RankState failed_in = RankState::Starting;  ///< state before Failed
  std::int64_t plan_step = -1;                ///< the step it is in; -1 before the first
  std::uint64_t group = 0;                    ///< that it communicates in last or now
  std::int64_t group_size = 0;                ///< members of that group
  std::int64_t sequence = -1;                 ///< of that collective within the group
  std::uint64_t tag = 0;                      ///< of that collective
  std::int64_t elems_in = 0;                  ///< of that collective
  std::int64_t elems_out = 0;                 ///< of that collective
  std::int64_t since_ns = 0;                  ///< when it entered this state
  // Where it left the plan (PlanDifference).
  std::int64_t difference = -1;          ///< a FindingCode; -1: it did not
  std::int64_t difference_planned = -1;  ///< plan step
  std::int64_t difference_entered = -1;  ///< plan step
};

/// A collective that a rank has entered, or only begun.
struct EnteredCollective {
  std::uint64_t group = 0;
  std::int64_t group_size = 0;
  std::int64_t sequence = -1;  ///< within the group; -1: none
  std::uint64_t tag = 0;
  std::int64_t plan_step = -1;
  std::int64_t elems_in = 0;
  std::int64_t elems_out = 0;
};

/// One rank's words to its parent: one process writes, others read, nobody waits, and a writer
/// killed half-way harms no reader.
class RankSlot {
 public:
  void write(const RankStatus& status) { status_.write(status); }
  /// The last status written in full; the last words heard of a writer that died while writing.
  [[nodiscard]] RankStatus read() const { return status_.last_words(); }

  /// Written when a collective is entered. A rank may be in several: it begins one, and enters
  /// others before it waits for that.
  void remember(const EnteredCollective& entered);
  /// The last ones, up to kRemembered, in no order.
  [[nodiscard]] std::vector<EnteredCollective> entered() const;

  /// Text of the failure; written before the status that says Failed.
  void write_text(std::string_view text);
  [[nodiscard]] std::string text() const;

  std::atomic<std::int64_t> waiting_for{-1};  ///< rank whose data it waits for now; -1 if none
  std::atomic<std::int64_t> progress{0};      ///< optimizer step it is in
  std::atomic<std::int64_t> connected_ns{0};  ///< when it was connected to all; 0 before
  std::atomic<std::int64_t> steps_end_ns{0};

 private:
  static constexpr std::size_t kRemembered = 16;
  SharedValue<RankStatus> status_;
  std::array<SharedValue<EnteredCollective>, kRemembered> entered_;
  std::size_t num_entered_ = 0;  ///< the writer's own
  std::array<char, 1024> text_{};
};

/// How many elements one rank says that it sends to another, or expects of it; one process writes,
/// others read, nobody waits.
class AnnouncedCount {
 public:
  void write(std::uint64_t tag, std::int64_t elems);
  /// The count, if the last word is about the collective with this tag.
  [[nodiscard]] std::optional<std::int64_t> read(std::uint64_t tag) const;

 private:
  static constexpr std::int64_t kUnsaid = -1;
  std::atomic<std::uint64_t> tag_{0};
  std::atomic<std::int64_t> elems_{kUnsaid};
};

/// Bytes that one rank publishes to the others, each written once: see SharedStore.
struct StoreArea {
  std::atomic<std::uint64_t> used{0};  ///< bytes of `data` that are complete
  std::byte* data = nullptr;
  std::int64_t capacity = 0;
};

/// The memory that ranks and their parent share while a run lasts. Make it before forking.
class ControlBlock {
 public:
  /// \throws Error (Environment)
  explicit ControlBlock(std::int64_t num_ranks);

  [[nodiscard]] std::int64_t num_ranks() const { return num_ranks_; }
  [[nodiscard]] RankSlot& slot(Rank rank) const;
  [[nodiscard]] StoreArea& store(Rank rank) const;

  /// What `from` sends to `to`, as `from` says.
  [[nodiscard]] AnnouncedCount& sent_count(Rank from, Rank to) const;
  /// What `from` sends to `to`, as `to` says.
  [[nodiscard]] AnnouncedCount& expected_count(Rank from, Rank to) const;

  /// Counts what ranks have published; a futex.
  [[nodiscard]] std::atomic<std::uint32_t>& store_version() const { return *store_version_; }
  /// Counts the ranks that met at the end; a futex.
  [[nodiscard]] std::atomic<std::uint32_t>& met() const { return *met_; }
  [[nodiscard]] bool all_met() const {
    return met_->load(std::memory_order_acquire) == static_cast<std::uint32_t>(num_ranks_);
  }

 private:
  [[nodiscard]] AnnouncedCount* counts_said_by(Rank rank) const;

  std::int64_t num_ranks_;
  std::shared_ptr<std::byte> memory_;
  std::atomic<std::uint32_t>* store_version_ = nullptr;
  std::atomic<std::uint32_t>* met_ = nullptr;
  RankSlot* slots_ = nullptr;
  StoreArea* stores_ = nullptr;
  std::byte* counts_ = nullptr;  ///< of each rank: sent to all ranks, then expected of all
};

}  // namespace hpsim
