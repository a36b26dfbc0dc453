#pragma once

#include <dirent.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <set>
#include <string>

namespace hpsim {

/// A working directory of its own for as long as it lives: what others do elsewhere does not show.
class PrivateDirectory {
 public:
  PrivateDirectory() : before_(getcwd(nullptr, 0)) {
    path_ = (std::filesystem::temp_directory_path() / "hpsim_test_XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr || chdir(path_.c_str()) != 0) abort();
  }
  ~PrivateDirectory() {
    if (chdir(before_) != 0) abort();
    rmdir(path_.c_str());
    free(before_);
  }
  PrivateDirectory(const PrivateDirectory&) = delete;
  PrivateDirectory& operator=(const PrivateDirectory&) = delete;

 private:
  char* before_;
  std::string path_;
};

/// What a run may leave behind, as text to compare before and after: open files, files of the
/// working directory, named shared memory of Gloo or hpsim, children running or not waited for.
inline std::string leftovers() {
  const auto list = [](const char* directory, auto wanted) {
    std::set<std::string> names;
    DIR* const open_directory = opendir(directory);
    while (const dirent* const entry =
               open_directory == nullptr ? nullptr : readdir(open_directory))
      if (wanted(std::string(entry->d_name))) names.insert(entry->d_name);
    if (open_directory != nullptr) closedir(open_directory);
    std::string text;
    for (const std::string& name : names)
      text += " " + name;
    return text;
  };
  const auto all = [](const std::string&) { return true; };
  const auto ours = [](const std::string& name) {
    return name.find("gloo") != std::string::npos || name.find("hpsim") != std::string::npos;
  };
  const bool has_children = !(waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD);
  return "fds:" + list("/proc/self/fd", all) + "; files:" + list(".", all) +
         "; shared memory:" + list("/dev/shm", ours) + (has_children ? "; children" : "");
}

}  // namespace hpsim
