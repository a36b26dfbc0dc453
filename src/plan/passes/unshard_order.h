#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hpsim {

/// The units of a pass in the order in which compute asks for them, and how far ahead of that their
/// unshards are begun: right after a unit is there, those of the next ones. All units count, also
/// those that need no unshard, as in the lists of set_modules_to_forward_prefetch.
///
///   units, ahead           asked for     begun then
///   root L2 L1 L0, 1       root          L2            FSDP2's own order in backward
///                          L2            L1
///                          L1            L0
///                          L0
///   L3 L2 L1 L0, 2         L3            L2 L1
///                          L2            L0            L1 is begun already
///                          L1 L0
///   L0 L1, 0               L0 L1
class UnshardOrder {
 public:
  UnshardOrder() = default;
  UnshardOrder(std::vector<int> units, std::int64_t ahead);

  /// The units whose unshard is now begun, those that are asked for first come first.
  /// \pre `unit` is the next of the order
  [[nodiscard]] std::vector<int> ask_for(int unit);

 private:
  std::vector<int> units_;
  std::size_t ahead_ = 0;
  std::size_t num_asked_ = 0;
  std::size_t num_begun_ = 0;  ///< or asked for
};

}  // namespace hpsim
