#include "output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace hpsim {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& path, int error) {
  throw Error(ErrorKind::Environment,
              {Diagnostic{.file = path,
                          .message = fmt::format("cannot be written: {}", std::strerror(error))}});
}

/// An open file that is closed again whatever happens.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : fd_(::open(path.c_str(), flags, 0666)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

/// 0, or the errno of what failed.
int write_whole(const std::string& path, int flags, std::string_view text) {
  const Descriptor file(path, flags | O_WRONLY | O_CLOEXEC | O_NOCTTY);
  if (file.fd() < 0) return errno;
  while (!text.empty()) {
    const ssize_t written = ::write(file.fd(), text.data(), text.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

/// Lets Ctrl-C and the like wait: none of them ends the process between two lines of this scope.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

/// A new file beside `target` that holds the text. \throws Error (Environment), leaving none
std::string write_beside(const std::string& target, const std::string& path,
                         std::string_view text) {
  std::string temporary = (fs::path(target).parent_path() / ".hpsim-XXXXXX").string();
  const int fd = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) refuse(path, errno);
  struct stat status {};
  const mode_t mask = ::umask(0);
  ::umask(mask);
  const bool exists = ::stat(target.c_str(), &status) == 0;
  ::fchmod(fd, exists ? status.st_mode & 07777 : 0666 & ~mask);
  ::close(fd);
  const int error = write_whole(temporary, O_TRUNC, text);
  if (error == 0) return temporary;
  ::unlink(temporary.c_str());
  refuse(path, error);
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)), target_(path_) {
  std::error_code failure;
  const fs::path real = fs::canonical(path_, failure);
  struct stat status {};
  if (!failure && ::stat(real.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) refuse(path_, EISDIR);
    if (::access(real.c_str(), W_OK) != 0) refuse(path_, errno);
    is_direct_ = !S_ISREG(status.st_mode);
    if (is_direct_) return;
    target_ = real.string();
  }
  const SignalsBlocked blocked;
  ::unlink(write_beside(target_, path_, {}).c_str());
}

void OutputFile::commit(std::string_view text) const {
  if (is_direct_) {
    const int error = write_whole(target_, 0, text);
    if (error != 0) refuse(path_, error);
    return;
  }
  const SignalsBlocked blocked;
  const std::string temporary = write_beside(target_, path_, text);
  if (std::rename(temporary.c_str(), target_.c_str()) == 0) return;
  const int error = errno;
  ::unlink(temporary.c_str());
  refuse(path_, error);
}

}  // namespace hpsim
