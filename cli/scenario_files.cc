#include "scenario_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "scenario/parse.h"

namespace hpsim {
namespace {

namespace fs = std::filesystem;

/// One more than the scenario reader takes, so that it sees that a file is too large.
constexpr std::size_t kMaxBytes = (std::size_t{16} << 20) + 1;

[[noreturn]] void refuse(const std::string& path, const std::string& why, std::string help = {}) {
  throw Error(ErrorKind::Usage,
              {Diagnostic{.file = path, .message = why, .help = std::move(help)}});
}

[[noreturn]] void refuse_for_errno(const std::string& path) {
  refuse(path, fmt::format("cannot be read: {}", std::strerror(errno)));
}

class OpenFile {
 public:
  /// Opens at once also a pipe that nobody writes to.
  explicit OpenFile(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
    if (fd_ < 0) refuse_for_errno(path);
  }
  ~OpenFile() { ::close(fd_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

/// Files and pipes are read; reading anything else may never end.
bool check_kind(const OpenFile& file, const std::string& path) {
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) refuse_for_errno(path);
  if (!S_ISREG(status.st_mode) && !S_ISFIFO(status.st_mode)) {
    refuse(path, S_ISDIR(status.st_mode) ? "is a directory" : "is a device, not a file",
           "a scenario is a file, or comes through a pipe");
  }
  return S_ISFIFO(status.st_mode);
}

void wait_for_writer(const OpenFile& file, const std::string& path) {
  constexpr int kLongestWaitMs = 10'000;
  pollfd wanted{file.fd(), POLLIN, 0};
  const int num_ready = ::poll(&wanted, 1, kLongestWaitMs);
  if (num_ready < 0 && errno != EINTR) refuse_for_errno(path);
  if (num_ready == 0) {
    refuse(path, fmt::format("nothing came through this pipe for {} s", kLongestWaitMs / 1000),
           "start what writes to it first");
  }
}

/// Looks for a key of the outermost object and stops there.
class KeySearch : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit KeySearch(std::string key) : key_(std::move(key)) {}

  bool found = false;

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*size*/) override { return enter(); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t /*size*/) override { return enter(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    found = found || (depth_ == 1 && name == key_);
    return !found;
  }
  bool parse_error(std::size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    is_json_ = false;
    return false;
  }

  [[nodiscard]] bool is_json() const { return is_json_; }

 private:
  bool enter() {
    ++depth_;
    return true;
  }
  bool leave() {
    --depth_;
    return true;
  }

  std::string key_;
  int depth_ = 0;
  bool is_json_ = true;
};

KeySearch searched(const std::string& text, const std::string& key) {
  KeySearch search(key);
  nlohmann::json::sax_parse(text, &search, nlohmann::json::input_format_t::json, true, true);
  return search;
}

bool is_scenario(const std::string& path) {
  const std::string text = read_text_file(path, kMaxBytes);
  const KeySearch search = searched(text, "hpsim");
  return search.found || (!search.is_json() && text.find("\"hpsim\"") != std::string::npos);
}

std::vector<std::string> files_below(const std::string& directory) {
  std::vector<std::string> files;
  std::error_code failure;
  fs::recursive_directory_iterator it(directory, failure);
  for (; !failure && it != fs::recursive_directory_iterator(); it.increment(failure)) {
    const fs::path& path = it->path();
    if (it->is_directory(failure)) {
      if (path.filename() == "invalid") it.disable_recursion_pending();
    } else if (path.extension() == ".json" && it->is_regular_file(failure) &&
               is_scenario(path.string())) {
      files.push_back(path.string());
    }
  }
  if (failure) refuse(directory, fmt::format("cannot be read: {}", failure.message()));
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::string read_text_file(const std::string& path, std::size_t max_bytes) {
  const OpenFile file(path);
  const bool is_pipe = check_kind(file, path);
  std::string text;
  char block[1 << 16];
  while (text.size() < max_bytes) {
    if (is_pipe) wait_for_writer(file, path);
    const ssize_t count = ::read(file.fd(), block, std::min(sizeof block, max_bytes - text.size()));
    if (count == 0) break;
    if (count > 0) {
      text.append(block, static_cast<std::size_t>(count));
    } else if (errno != EAGAIN && errno != EINTR) {
      refuse_for_errno(path);
    }
  }
  return text;
}

bool has_top_level_key(const std::string& text, const std::string& key) {
  return searched(text, key).found;
}

std::vector<std::string> find_scenario_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  std::set<std::string> known;
  const auto add = [&](const std::string& file) {
    std::error_code failure;
    const fs::path real = fs::weakly_canonical(file, failure);
    if (known.insert(failure ? file : real.string()).second) files.push_back(file);
  };
  for (const std::string& path : paths) {
    std::error_code failure;
    const fs::file_status status = fs::status(path, failure);
    if (status.type() == fs::file_type::not_found) refuse(path, "no such file or directory");
    if (!fs::is_directory(status)) {
      add(path);
      continue;
    }
    const std::vector<std::string> below = files_below(path);
    if (below.empty()) {
      refuse(path, "holds no scenario",
             "a scenario is a *.json file with a top-level key \"hpsim\"; directories named "
             "\"invalid\" are looked into only if named themselves");
    }
    for (const std::string& file : below)
      add(file);
  }
  return files;
}

ReadScenarios read_scenarios(const std::vector<std::string>& files) {
  ReadScenarios read;
  for (const std::string& file : files) {
    const std::string text = read_text_file(file, kMaxBytes);
    try {
      read.scenarios.push_back(parse_scenario(text, file));
    } catch (const Error& error) {
      read.rejected.push_back({file, error.diagnostics()});
    }
  }
  return read;
}

}  // namespace hpsim
