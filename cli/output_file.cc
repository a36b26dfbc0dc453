#include "output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
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

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)), target_(path_) {
  std::error_code failure;
  const fs::path real = fs::canonical(path_, failure);
  struct stat status {};
  const bool exists = !failure && ::stat(real.c_str(), &status) == 0;
  if (exists) {
    if (S_ISDIR(status.st_mode)) refuse(path_, EISDIR);
    if (::access(real.c_str(), W_OK) != 0) refuse(path_, errno);
    if (!S_ISREG(status.st_mode)) return;
    target_ = real.string();
  }
  const fs::path target(target_);
  temporary_ =
      (target.parent_path() / fmt::format(".{}.{}.tmp", target.filename().string(), ::getpid()))
          .string();
  const Descriptor file(temporary_, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC);
  if (file.fd() < 0) {
    const int error = errno;
    temporary_.clear();
    refuse(path_, error);
  }
  if (exists) ::fchmod(file.fd(), status.st_mode & 07777);
}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::commit(std::string_view text) {
  const int error = write_whole(temporary_.empty() ? target_ : temporary_,
                                temporary_.empty() ? 0 : O_TRUNC, text);
  if (error != 0) refuse(path_, error);
  if (temporary_.empty()) return;
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) refuse(path_, errno);
  temporary_.clear();
}

}  // namespace hpsim
