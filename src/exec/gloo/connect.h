#pragma once

#include <gloo/context.h>

#include <memory>

#include "exec/gloo/control_block.h"

namespace hpsim {

/// Connects `rank` with all others over TCP on the loopback interface; null if it is alone.
/// Waits, here and in every later exchange, no longer than `timeout_s`.
///
/// Connections are reset when a process ends, however it ends: none lingers to hold its port, and
/// peers notice at once. So ranks must have met before any of them ends.
///
/// \throws gloo::IoException if another rank did not come in time
[[nodiscard]] std::shared_ptr<gloo::Context> connect_mesh(const ControlBlock& control, Rank rank,
                                                          double timeout_s);

}  // namespace hpsim
