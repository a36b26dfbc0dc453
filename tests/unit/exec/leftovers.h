#pragma once

#include <dirent.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <string>

namespace hpsim {

/// What a run may leave behind in this process and on this machine: open files, children, shared
/// memory files and files of the working directory.
struct Leftovers {
  std::set<std::string> open_files;
  std::set<std::string> shared_memory_files;
  std::set<std::string> working_directory;
  bool has_children = false;

  bool operator==(const Leftovers&) const = default;

  [[nodiscard]] static Leftovers now() {
    Leftovers found;
    found.open_files = entries("/proc/self/fd");
    found.shared_memory_files = entries("/dev/shm");
    found.working_directory = entries(".");
    // A child in any state, even one that was not waited for, makes this differ from ECHILD.
    found.has_children = !(waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD);
    return found;
  }

 private:
  static std::set<std::string> entries(const char* directory) {
    std::set<std::string> names;
    DIR* const open_directory = opendir(directory);
    if (open_directory == nullptr) return names;
    while (const dirent* const entry = readdir(open_directory))
      names.insert(entry->d_name);
    closedir(open_directory);
    return names;
  }
};

}  // namespace hpsim
