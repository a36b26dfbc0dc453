#include "base/check.h"
#include "exec/executor.h"

namespace hpsim {

std::string_view name_of(Backend backend) {
  switch (backend) {
    case Backend::Symbolic:
      return "symbolic";
    case Backend::Local:
      return "local";
    case Backend::Gloo:
      return "gloo";
  }
  HPSIM_CHECK(false, "unknown backend {}", static_cast<int>(backend));
  return {};
}

std::optional<Backend> parse_backend(std::string_view name) {
  for (const Backend backend : {Backend::Symbolic, Backend::Local, Backend::Gloo}) {
    if (name == name_of(backend)) return backend;
  }
  return std::nullopt;
}

}  // namespace hpsim
