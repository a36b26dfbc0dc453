#include "exec/gloo/shared_store.h"

#include <fmt/format.h>
#include <gloo/common/error.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace hpsim {

namespace {

// An entry: sizes, then key and value end to end.
struct EntryHeader {
  std::uint64_t key_bytes;
  std::uint64_t value_bytes;
};

}  // namespace

SharedStore::SharedStore(const ControlBlock& control, Rank rank, Deadline deadline)
    : control_(control), rank_(rank), deadline_(deadline) {}

void SharedStore::set(const std::string& key, const std::vector<char>& data) {
  StoreArea& area = control_.store(rank_);
  const std::uint64_t used = area.used.load(std::memory_order_relaxed);
  const EntryHeader header{key.size(), data.size()};
  const std::uint64_t end = used + sizeof(header) + key.size() + data.size();
  HPSIM_CHECK(end <= static_cast<std::uint64_t>(area.capacity),
              "rank {} publishes {} bytes, {} are reserved", rank_.value, end, area.capacity);
  std::byte* out = area.data + used;
  std::memcpy(out, &header, sizeof(header));
  std::memcpy(out + sizeof(header), key.data(), key.size());
  std::memcpy(out + sizeof(header) + key.size(), data.data(), data.size());
  area.used.store(end, std::memory_order_release);
  control_.store_version().fetch_add(1, std::memory_order_acq_rel);
  wake_all(control_.store_version());
}

std::optional<std::vector<char>> SharedStore::find(const std::string& key) const {
  for (std::int64_t i = 0; i < control_.num_ranks(); ++i) {
    const StoreArea& area = control_.store(Rank{i});
    const std::uint64_t used = area.used.load(std::memory_order_acquire);
    std::uint64_t at = 0;
    while (at < used) {
      EntryHeader header;
      std::memcpy(&header, area.data + at, sizeof(header));
      const char* const text = reinterpret_cast<const char*>(area.data + at + sizeof(header));
      const char* const value = text + header.key_bytes;
      if (key.size() == header.key_bytes && std::equal(key.begin(), key.end(), text)) {
        return std::vector<char>(value, value + header.value_bytes);
      }
      at += sizeof(header) + header.key_bytes + header.value_bytes;
    }
  }
  return std::nullopt;
}

void SharedStore::wait_until(const std::vector<std::string>& keys, Deadline deadline) const {
  for (const std::string& key : keys) {
    for (;;) {
      const std::uint32_t version = control_.store_version().load(std::memory_order_acquire);
      if (find(key)) break;
      if (!wait_while_equal(control_.store_version(), version, deadline)) {
        throw gloo::IoException(fmt::format("nobody published '{}' in time", key));
      }
    }
  }
}

std::vector<char> SharedStore::get(const std::string& key) {
  wait_until({key}, deadline_);
  return *find(key);
}

void SharedStore::wait(const std::vector<std::string>& keys) {
  wait_until(keys, deadline_);
}

void SharedStore::wait(const std::vector<std::string>& keys,
                       const std::chrono::milliseconds& timeout) {
  wait_until(keys, std::min(deadline_, std::chrono::steady_clock::now() + timeout));
}

}  // namespace hpsim
