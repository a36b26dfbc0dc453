#pragma once

#include <string>
#include <string_view>

namespace hpsim {

/// A file that is written as a whole or not at all: beside it until `commit`, then renamed. What is
/// no regular file (/dev/stdout, a pipe) is written to directly.
class OutputFile {
 public:
  /// Sees at once whether it can be written.
  /// \throws Error (Environment) if not
  explicit OutputFile(std::string path);
  /// Leaves nothing behind if nothing was committed.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// \throws Error (Environment) if not all of it could be written
  void commit(std::string_view text);

 private:
  std::string path_;       ///< as typed
  std::string target_;     ///< where links lead
  std::string temporary_;  ///< empty: written to directly, or committed
};

}  // namespace hpsim
