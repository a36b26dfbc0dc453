#include "exec/interrupted.h"

#include <fmt/format.h>
#include <string.h>

#include <ctime>

namespace hpsim {

Interrupted::Interrupted(int signal)
    : std::runtime_error(fmt::format("interrupted by SIG{}", sigabbrev_np(signal))),
      signal_(signal) {}

SignalWatch::SignalWatch() {
  sigemptyset(&watched_);
  sigaddset(&watched_, SIGINT);
  sigaddset(&watched_, SIGTERM);
  sigprocmask(SIG_BLOCK, &watched_, &before_);
}

SignalWatch::~SignalWatch() {
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

void SignalWatch::check() const {
  const timespec now{};
  const int signal = sigtimedwait(&watched_, nullptr, &now);
  if (signal > 0) throw Interrupted(signal);
}

}  // namespace hpsim
