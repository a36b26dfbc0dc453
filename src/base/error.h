#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace hpsim {

/// Why a run of hpsim ended without a verdict; each kind has one exit code (see `exit_code_of`).
enum class ErrorKind {
  Usage,            ///< bad flags or arguments: exit 2
  InvalidScenario,  ///< the scenario is wrong, or asks for what is not supported: exit 3
  RankFailure,      ///< a rank died, hung or disagreed: exit 6
  Environment,      ///< the machine lacks something: exit 7
};

enum class Severity { Error, Warning };

/// One thing that is wrong, ready to print. See `to_string(Diagnostic)` for the text form:
///
///   scenarios/hsdp/2x4.json:3:12: /mesh/ranks: error: 6 ranks listed, but shape multiplies to 8
///     help: list 8 ranks, or leave "ranks" out
struct Diagnostic {
  std::string file;       ///< as given on the command line; empty if no file is to blame
  std::int64_t line = 0;  ///< 1-based; 0 if unknown
  std::int64_t column = 0;
  std::string pointer;  ///< RFC 6901 JSON pointer; empty for the whole file
  Severity severity = Severity::Error;
  std::string message;  ///< one claim with both numbers; lower case, no full stop
  std::string help;     ///< the way out; empty if unknown
  std::string code;     ///< printed code of the finding that it is, "HANG"; empty: none

  bool operator==(const Diagnostic&) const = default;
};

/// `file:line:column: pointer: error: CODE: message`, and a second line `  help: ...` if any.
/// Parts that are empty or 0 are left out. No newline at the end. Control characters are written as
/// \u001b, except the ends of lines in message and help.
[[nodiscard]] std::string to_string(const Diagnostic& diagnostic);

/// Thrown at most once per stage, with everything that the stage found.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::vector<Diagnostic> diagnostics);
  /// One diagnostic that belongs to no file.
  Error(ErrorKind kind, std::string message, std::string help = {});

  [[nodiscard]] ErrorKind kind() const { return kind_; }
  [[nodiscard]] const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }

 private:
  ErrorKind kind_;
  std::vector<Diagnostic> diagnostics_;
};

/// 2, 3, 6 or 7, as documented at the enumerators.
[[nodiscard]] int exit_code_of(ErrorKind kind);

}  // namespace hpsim
