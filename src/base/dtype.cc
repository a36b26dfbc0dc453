#include "base/dtype.h"

#include "base/check.h"

namespace hpsim {

std::int64_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return 8;
    case DType::Float32:
      return 4;
    case DType::BFloat16:
    case DType::Float16:
      return 2;
    case DType::Int64:
      return 8;
  }
  HPSIM_CHECK(false, "unknown dtype {}", static_cast<int>(dtype));
  return 0;
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return 0x1p-53;
    case DType::Float32:
      return 0x1p-24;
    case DType::BFloat16:
      return 0x1p-8;
    case DType::Float16:
      return 0x1p-11;
    case DType::Int64:
      break;
  }
  HPSIM_CHECK(false, "dtype {} does not round", static_cast<int>(dtype));
  return 0;
}

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return "float64";
    case DType::Float32:
      return "float32";
    case DType::BFloat16:
      return "bfloat16";
    case DType::Float16:
      return "float16";
    case DType::Int64:
      return "int64";
  }
  HPSIM_CHECK(false, "unknown dtype {}", static_cast<int>(dtype));
  return {};
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (const DType dtype :
       {DType::Float64, DType::Float32, DType::BFloat16, DType::Float16, DType::Int64}) {
    if (name == name_of(dtype)) return dtype;
  }
  return std::nullopt;
}

}  // namespace hpsim
