#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/report.h"

namespace hpsim {

// Parts of the JSON that several forms share. `lists_ranks`: groups and shards are listed rank by
// rank; otherwise per mesh dim, for any number of ranks. See json.h.

using Json = nlohmann::ordered_json;

/// Integral numbers as integers; NaN and infinities, which JSON lacks, as strings.
[[nodiscard]] Json number(double value);
[[nodiscard]] Json numbers(const std::vector<double>& values);
[[nodiscard]] Json rank_numbers(const std::vector<Rank>& ranks);

/// ["rep", "fsdp"]
[[nodiscard]] Json names_of_dims(const Mesh& mesh, const MeshDims& dims);

/// [[0, 1], [2, 3]], or {"mesh_dims", "size", "count", "first": at most 64 ranks of one of them}
[[nodiscard]] Json groups_json(const Mesh& mesh, const MeshDims& dims, bool lists_ranks,
                               std::int64_t consecutive = 0);

/// ["Replicate", "Shard(0)"]
[[nodiscard]] Json placements_json(const std::vector<Placement>& placements, Vocabulary vocabulary);

/// An entry of `parameters`.
[[nodiscard]] Json parameter_json(const Scenario& scenario, const PlannedParameter& parameter,
                                  bool lists_ranks);

/// An entry of `collectives`.
[[nodiscard]] Json collective_json(const Mesh& mesh, const std::vector<PayloadReport>& payloads,
                                   const CollectiveReport& collective, bool lists_ranks);

/// Adds the kinds that are alive.
void add_kinds(const BytesByKind& bytes, Json& json);

/// Memory per rank while parameters are made: {"peak", and the peaks of kinds}, maxima over ranks.
[[nodiscard]] Json init_memory_json(const MemoryProfile& memory);

[[nodiscard]] Json check_json(const CheckResult& check);
[[nodiscard]] Json finding_json(const Finding& finding);
[[nodiscard]] Json left_out_json(const LeftOut& left_out);
[[nodiscard]] Json diagnostic_json(const Diagnostic& diagnostic);

template <class T, class Function>
[[nodiscard]] Json list_json(const std::vector<T>& items, Function to_json) {
  Json array = Json::array();
  for (const T& item : items)
    array.push_back(to_json(item));
  return array;
}

}  // namespace hpsim
