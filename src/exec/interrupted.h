#pragma once

#include <csignal>
#include <optional>
#include <stdexcept>

namespace hpsim {

/// SIGINT or SIGTERM ended the run; nothing of it is left. Exit 130.
class Interrupted : public std::runtime_error {
 public:
  explicit Interrupted(int signal);
  [[nodiscard]] int signal() const { return signal_; }

 private:
  int signal_;
};

/// While it lives, SIGINT and SIGTERM do not end this process but wait to be taken, so that what
/// must be cleaned up can be. Processes forked meanwhile hold them back too.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// \throws Interrupted if one of the two came
  void check() const;

 private:
  sigset_t watched_{};
  sigset_t before_{};
};

}  // namespace hpsim
