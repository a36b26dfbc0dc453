#pragma once

#include <gloo/rendezvous/store.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exec/gloo/control_block.h"
#include "exec/shared_memory.h"

namespace hpsim {

/// Where ranks of one machine find each other: Gloo's rendezvous store in memory shared by fork.
/// No file, no port, no lock: each rank appends to an area of its own, and readers look into all.
/// Keys are written once.
class SharedStore : public gloo::rendezvous::Store {
 public:
  /// As `rank`; waits end at `deadline`.
  SharedStore(const ControlBlock& control, Rank rank, Deadline deadline);

  void set(const std::string& key, const std::vector<char>& data) override;
  /// Waits until the key is there. \throws gloo::IoException at the deadline, as do the waits
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  [[nodiscard]] std::optional<std::vector<char>> find(const std::string& key) const;
  void wait_until(const std::vector<std::string>& keys, Deadline deadline) const;

  const ControlBlock& control_;
  Rank rank_;
  Deadline deadline_;
};

}  // namespace hpsim
