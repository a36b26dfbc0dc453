#pragma once

#include <string>
#include <string_view>

namespace hpsim {

/// A file that is written as a whole or not at all, whatever ends the process meanwhile: beside it,
/// then renamed. What is no regular file (/dev/stdout, a pipe) is written to directly.
class OutputFile {
 public:
  /// Sees at once whether it can be written.
  /// \throws Error (Environment) if not
  explicit OutputFile(std::string path);

  /// \throws Error (Environment) if not all of it could be written
  void commit(std::string_view text) const;

 private:
  std::string path_;    ///< as typed
  std::string target_;  ///< where links lead
  bool is_direct_ = false;
};

}  // namespace hpsim
