#include "base/check.h"

#include <string_view>

namespace hpsim {

void throw_internal_error(const char* file, int line, const char* condition,
                          const std::string& message) {
  // Only the part below the source root: messages must not depend on where the tree lies.
  std::string_view path = file;
  if (const std::size_t at = path.rfind("src/"); at != std::string_view::npos)
    path.remove_prefix(at);
  throw InternalError(fmt::format("{}:{}: {} ({})", path, line, message, condition));
}

}  // namespace hpsim
