#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace hpsim {

/// A bug in hpsim, never something that a scenario, flag, file or peer can cause: exit 70.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void throw_internal_error(const char* file, int line, const char* condition,
                                       const std::string& message);

}  // namespace hpsim

/// Throws InternalError with the formatted message unless `condition` holds, in every build type.
#define HPSIM_CHECK(condition, ...)                                                              \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      ::hpsim::throw_internal_error(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
    }                                                                                            \
  } while (false)
