#include "exec/executor.h"

#include "base/check.h"
#include "exec/gloo/gloo_executor.h"
#include "exec/local.h"
#include "exec/symbolic.h"

namespace hpsim {

std::unique_ptr<Executor> make_executor(Backend backend) {
  switch (backend) {
    case Backend::Symbolic:
      return std::make_unique<SymbolicExecutor>();
    case Backend::Local:
      return std::make_unique<LocalExecutor>();
    case Backend::Gloo:
      return make_gloo_executor();
  }
  HPSIM_CHECK(false, "unknown backend {}", static_cast<int>(backend));
  return nullptr;
}

}  // namespace hpsim
