#include "exec/gloo/connect.h"

#include <dirent.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/loop.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>

#include "exec/gloo/shared_store.h"

namespace hpsim {

namespace {

/// Keeps Gloo's thread awake until stopped. That thread sleeps up to 10 ms at a time, and giving up
/// a listening socket waits until it woke: about once per peer, nearly all that connecting costs.
/// Measured, two cores: 4 ranks 25-37 ms without, 3-7 ms with; 8 ranks 55-108 and 10-13 ms.
class LoopTicker : public gloo::transport::tcp::Handler {
 public:
  LoopTicker(gloo::transport::tcp::Device& device, std::int64_t num_ranks)
      : timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
    if (timer_ < 0) return;                             // connecting is slower then, no more
    constexpr std::int64_t kPeriodPerRank_ns = 25'000;  // ranks share the cores
    set_period_ns(kPeriodPerRank_ns * num_ranks);
    device.registerDescriptor(timer_, EPOLLIN, this);
  }
  ~LoopTicker() override {
    if (timer_ >= 0) close(timer_);
  }
  LoopTicker(const LoopTicker&) = delete;
  LoopTicker& operator=(const LoopTicker&) = delete;

  void handleEvents(int /*events*/) override {
    std::uint64_t ticks = 0;
    [[maybe_unused]] const ssize_t got = read(timer_, &ticks, sizeof(ticks));
  }

  void stop() const {
    if (timer_ >= 0) set_period_ns(0);
  }

 private:
  void set_period_ns(std::int64_t period) const {
    const itimerspec spec{{0, period}, {0, period}};
    timerfd_settime(timer_, 0, &spec, nullptr);
  }

  int timer_;
};

/// Destroyed in reverse: the context ends Gloo's thread before the ticker goes.
struct Connection {
  std::unique_ptr<LoopTicker> ticker;
  std::shared_ptr<gloo::Context> context;
};

void reset_connections_on_close() {
  DIR* const open_files = opendir("/proc/self/fd");
  if (open_files == nullptr) return;  // their ports then stay taken for a minute, no more
  while (const dirent* const entry = readdir(open_files)) {
    const linger reset{1, 0};
    // Fails on what is no socket, as it should.
    setsockopt(std::atoi(entry->d_name), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  }
  closedir(open_files);
}

}  // namespace

std::shared_ptr<gloo::Context> connect_mesh(const ControlBlock& control, Rank rank,
                                            double timeout_s) {
  if (control.num_ranks() == 1) return nullptr;
  constexpr double kLongest_ms = 1e9;
  const double timeout_ms = std::clamp(std::ceil(timeout_s * 1000), 1.0, kLongest_ms);

  gloo::transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  attributes.ai_family = AF_INET;
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto connection = std::make_shared<Connection>();
  connection->ticker = std::make_unique<LoopTicker>(
      dynamic_cast<gloo::transport::tcp::Device&>(*device), control.num_ranks());
  auto context = std::make_shared<gloo::rendezvous::Context>(static_cast<int>(rank.value),
                                                             static_cast<int>(control.num_ranks()));
  connection->context = context;
  context->setTimeout(std::chrono::milliseconds(static_cast<std::int64_t>(timeout_ms)));
  SharedStore store(control, rank, deadline_after(timeout_s));
  context->connectFullMesh(store, device);
  connection->ticker->stop();
  reset_connections_on_close();
  return {connection, context.get()};
}

}  // namespace hpsim
