#include "exec/gloo/control_block.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "base/check.h"
#include "exec/shared_memory.h"

namespace hpsim {

namespace {

constexpr std::int64_t kLine = 64;  // bytes; keeps what different processes write apart

constexpr std::int64_t round_up(std::int64_t size) {
  return (size + kLine - 1) / kLine * kLine;
}

// Gloo publishes one address of 136 bytes per peer, and a few short keys.
std::int64_t store_capacity(std::int64_t num_ranks) {
  return round_up(4096 + 256 * num_ranks);
}

std::int64_t counts_bytes(std::int64_t num_ranks) {
  return round_up(2 * num_ranks * static_cast<std::int64_t>(sizeof(AnnouncedCount)));
}

}  // namespace

void RankSlot::remember(const EnteredCollective& entered) {
  entered_[num_entered_++ % kRemembered].write(entered);
}

std::vector<EnteredCollective> RankSlot::entered() const {
  std::vector<EnteredCollective> all;
  for (const SharedValue<EnteredCollective>& each : entered_) {
    const std::optional<EnteredCollective> entered = each.read();
    if (entered && entered->sequence >= 0) all.push_back(*entered);
  }
  return all;
}

void RankSlot::write_text(std::string_view text) {
  const std::size_t kept = std::min(text.size(), text_.size() - 1);
  std::memcpy(text_.data(), text.data(), kept);
  text_[kept] = '\0';
}

std::string RankSlot::text() const {
  return text_.data();
}

void AnnouncedCount::write(std::uint64_t tag, std::int64_t elems) {
  elems_.store(kUnsaid, std::memory_order_seq_cst);
  tag_.store(tag, std::memory_order_seq_cst);
  elems_.store(elems, std::memory_order_seq_cst);
}

std::optional<std::int64_t> AnnouncedCount::read(std::uint64_t tag) const {
  const std::uint64_t before = tag_.load(std::memory_order_seq_cst);
  const std::int64_t elems = elems_.load(std::memory_order_seq_cst);
  const std::uint64_t after = tag_.load(std::memory_order_seq_cst);
  if (before != tag || after != tag || elems == kUnsaid) return std::nullopt;
  return elems;
}

ControlBlock::ControlBlock(std::int64_t num_ranks) : num_ranks_(num_ranks) {
  const std::int64_t slots = 2 * kLine;
  const std::int64_t slot_bytes = round_up(static_cast<std::int64_t>(sizeof(RankSlot)));
  static_assert(sizeof(RankSlot) % alignof(RankSlot) == 0);
  const std::int64_t stores = slots + slot_bytes * num_ranks;
  const std::int64_t data =
      stores + round_up(static_cast<std::int64_t>(sizeof(StoreArea)) * num_ranks);
  const std::int64_t capacity = store_capacity(num_ranks);

  const std::int64_t counts = data + capacity * num_ranks;

  memory_ = map_shared(counts + counts_bytes(num_ranks) * num_ranks);
  std::byte* const base = memory_.get();
  store_version_ = new (base) std::atomic<std::uint32_t>(0);
  met_ = new (base + kLine) std::atomic<std::uint32_t>(0);
  slots_ = reinterpret_cast<RankSlot*>(base + slots);
  stores_ = reinterpret_cast<StoreArea*>(base + stores);
  for (std::int64_t i = 0; i < num_ranks; ++i) {
    new (slots_ + i) RankSlot;
    StoreArea* const area = new (stores_ + i) StoreArea;
    area->data = base + data + i * capacity;
    area->capacity = capacity;
  }
  counts_ = base + counts;
  for (std::int64_t i = 0; i < num_ranks; ++i)
    std::uninitialized_default_construct_n(counts_said_by(Rank{i}), 2 * num_ranks);
}

RankSlot& ControlBlock::slot(Rank rank) const {
  HPSIM_CHECK(0 <= rank.value && rank.value < num_ranks_, "rank {} of {}", rank.value, num_ranks_);
  return slots_[rank.value];
}

StoreArea& ControlBlock::store(Rank rank) const {
  HPSIM_CHECK(0 <= rank.value && rank.value < num_ranks_, "rank {} of {}", rank.value, num_ranks_);
  return stores_[rank.value];
}

AnnouncedCount* ControlBlock::counts_said_by(Rank rank) const {
  HPSIM_CHECK(0 <= rank.value && rank.value < num_ranks_, "rank {} of {}", rank.value, num_ranks_);
  return reinterpret_cast<AnnouncedCount*>(counts_ + counts_bytes(num_ranks_) * rank.value);
}

AnnouncedCount& ControlBlock::sent_count(Rank from, Rank to) const {
  return counts_said_by(from)[to.value];
}

AnnouncedCount& ControlBlock::expected_count(Rank from, Rank to) const {
  return counts_said_by(to)[num_ranks_ + from.value];
}

}  // namespace hpsim
