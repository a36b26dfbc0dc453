#include "layout/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"
#include "tensor/shape.h"

namespace hpsim {
namespace {

std::string_view flag(bool uneven) {
  return uneven ? ", uneven" : "";
}

std::string dims_text(const std::vector<int>& dims) {
  return to_string(Shape(dims.begin(), dims.end()));
}

struct Printer {
  Vocabulary vocabulary;

  std::string operator()(const Replicate&) const { return "Replicate"; }
  std::string operator()(const Partial& partial) const {
    return fmt::format("Partial({})", to_string(partial.op));
  }
  std::string operator()(const Shard& shard) const {
    return fmt::format("Shard({}{})", shard.dim, flag(shard.uneven));
  }
  std::string operator()(const StridedShard& shard) const {
    return fmt::format("{}StridedShard({}, {}{})", vocabulary == Vocabulary::Torch ? "_" : "",
                       shard.dim, shard.split_factor, flag(shard.uneven));
  }
  std::string operator()(const RaggedShard& ragged) const {
    return fmt::format("RaggedShard({}, {})", dims_text(ragged.dims),
                       to_string(ragged.local_units));
  }
  std::string operator()(const RaggedStridedShard& ragged) const {
    std::vector<std::string> units;
    for (const LocalUnits& each : ragged.local_units)
      units.push_back(to_string(each));
    return fmt::format("RaggedStridedShard({}, {}, {})", dims_text(ragged.dims),
                       units.size() == 1 ? units[0] : fmt::format("({})", fmt::join(units, ", ")),
                       ragged.split_factor);
  }
};

struct CutDims {
  std::vector<int> operator()(const Replicate&) const { return {}; }
  std::vector<int> operator()(const Partial&) const { return {}; }
  std::vector<int> operator()(const Shard& shard) const { return {shard.dim}; }
  std::vector<int> operator()(const StridedShard& shard) const { return {shard.dim}; }
  std::vector<int> operator()(const RaggedShard& ragged) const { return ragged.dims; }
  std::vector<int> operator()(const RaggedStridedShard& ragged) const { return ragged.dims; }
};

}  // namespace

std::string_view name_of(Vocabulary vocabulary) {
  switch (vocabulary) {
    case Vocabulary::Ragged:
      return "ragged";
    case Vocabulary::UnevenFlag:
      return "uneven_flag";
    case Vocabulary::Torch:
      return "torch";
  }
  HPSIM_CHECK(false, "unknown vocabulary {}", static_cast<int>(vocabulary));
  return {};
}

std::string to_string(const Placement& placement, Vocabulary vocabulary) {
  return std::visit(Printer{vocabulary}, placement);
}

std::string to_string(const std::vector<Placement>& placements, Vocabulary vocabulary) {
  std::string text = "[";
  for (const Placement& placement : placements) {
    if (text.size() > 1) text += ", ";
    text += to_string(placement, vocabulary);
  }
  return text + "]";
}

std::string to_string(ReduceOp op) {
  return op == ReduceOp::Sum ? "sum" : "avg";
}

std::vector<int> cut_dims(const Placement& placement) {
  return std::visit(CutDims{}, placement);
}

bool cuts(const Placement& placement, int tensor_dim) {
  if (const auto* shard = std::get_if<Shard>(&placement)) return shard->dim == tensor_dim;
  if (const auto* shard = std::get_if<StridedShard>(&placement)) return shard->dim == tensor_dim;
  const auto is_among = [&](const std::vector<int>& dims) {
    return std::find(dims.begin(), dims.end(), tensor_dim) != dims.end();
  };
  if (const auto* ragged = std::get_if<RaggedShard>(&placement)) return is_among(ragged->dims);
  const auto* strided = std::get_if<RaggedStridedShard>(&placement);
  return strided != nullptr && is_among(strided->dims);
}

bool is_cut(const Placement& placement) {
  return !std::holds_alternative<Replicate>(placement) &&
         !std::holds_alternative<Partial>(placement);
}

std::int64_t split_factor_of(const Placement& placement) {
  if (const auto* strided = std::get_if<StridedShard>(&placement)) return strided->split_factor;
  const auto* ragged = std::get_if<RaggedStridedShard>(&placement);
  return ragged == nullptr ? 1 : ragged->split_factor;
}

}  // namespace hpsim
