#pragma once

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace hpsim {

/// Moves this process, and those that it forks from now on, to a network of their own that has
/// nothing but a loopback device: sockets of others do not show. False where the kernel refuses.
inline bool enter_private_network() {
  if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  const int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP;
  const bool is_up = ioctl(control, SIOCSIFFLAGS, &request) == 0;
  close(control);
  return is_up;
}

/// States of the TCP sockets of this network: " 0A" listens, " 01" is connected, " 06" is closed,
/// but the kernel keeps its port for a minute.
inline std::string taken_ports() {
  std::string states;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);  // the heading
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string index;
      std::string local;
      std::string remote;
      std::string state;
      words >> index >> local >> remote >> state;
      states += " " + state;
    }
  }
  return states;
}

/// The same without those that are closed: ranks that are ended while they still connect leave
/// such.
inline std::string open_sockets() {
  std::string states = taken_ports();
  const std::string closed = " 06";
  for (std::size_t at = 0; (at = states.find(closed, at)) != std::string::npos;)
    states.erase(at, closed.size());
  return states;
}

}  // namespace hpsim
