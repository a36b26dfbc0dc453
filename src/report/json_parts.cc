#include "report/json_parts.h"

#include <cmath>

#include "mesh/group.h"
#include "plan/rank_layout.h"
#include "report/json.h"

namespace hpsim {
namespace {

/// A number, or where it differs by rank a list by rank, or a table over mesh dims.
template <class Number, class Value>
Json by_rank(const Mesh& mesh, const PerCoordinate& differs, bool lists_ranks, const Value& value) {
  Json list = Json::array();
  Coordinate coordinate(static_cast<std::size_t>(mesh.num_dims()), 0);
  if (differs.is_uniform()) return Number(value(coordinate));
  if (lists_ranks) {
    for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank)
      list.push_back(Number(value(mesh.coordinate_of(Rank{rank}))));
    return list;
  }
  do {
    list.push_back(Number(value(coordinate)));
  } while (advance(mesh, differs.dims(), coordinate));
  return {{"mesh_dims", names_of_dims(mesh, differs.dims())}, {"values", std::move(list)}};
}

Json elems_json(const Mesh& mesh, const PerCoordinate& elems, bool lists_ranks,
                std::int64_t factor = 1) {
  return by_rank<std::int64_t>(mesh, elems, lists_ranks, [&](const Coordinate& coordinate) {
    return elems.at(mesh, coordinate) * factor;
  });
}

/// One entry per box: `label` says whose.
void append_boxes(const Json& label, const std::vector<Box>& boxes, Json& shards) {
  for (const Box& box : boxes) {
    Json entry = label;
    entry["offset"] = box.offset;
    entry["shape"] = box.shape;
    shards.push_back(std::move(entry));
  }
}

}  // namespace

Json number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  constexpr double kExactIntegers = 9007199254740992.0;  // 2^53
  if (value == std::nearbyint(value) && std::abs(value) < kExactIntegers) {
    return static_cast<std::int64_t>(value);
  }
  return value;
}

Json numbers(const std::vector<double>& values) {
  Json array = Json::array();
  for (const double value : values)
    array.push_back(number(value));
  return array;
}

Json rank_numbers(const std::vector<Rank>& ranks) {
  Json array = Json::array();
  for (const Rank& rank : ranks)
    array.push_back(rank.value);
  return array;
}

Json names_of_dims(const Mesh& mesh, const MeshDims& dims) {
  Json names = Json::array();
  for (const int dim : dims)
    names.push_back(mesh.name(dim));
  return names;
}

Json groups_json(const Mesh& mesh, const MeshDims& dims, bool lists_ranks,
                 std::int64_t consecutive) {
  if (lists_ranks) {
    Json groups = Json::array();
    for (const std::vector<Rank>& group : groups_along(mesh, dims, consecutive))
      groups.push_back(rank_numbers(group));
    return groups;
  }
  const Rank first = mesh.rank_at(Coordinate(static_cast<std::size_t>(mesh.num_dims()), 0));
  const std::int64_t size = consecutive > 0 ? consecutive : mesh.size(dims);
  return {{"mesh_dims", names_of_dims(mesh, dims)},
          {"size", size},
          {"count", mesh.num_ranks() / size},
          {"first", rank_numbers(group_of(mesh, dims, first, std::min(size, kMaxListedRanks)))}};
}

Json placements_json(const std::vector<Placement>& placements, Vocabulary vocabulary) {
  Json array = Json::array();
  for (const Placement& placement : placements)
    array.push_back(to_string(placement, vocabulary));
  return array;
}

/// Per rank; above 64 ranks per part, the parts being those of TP, EP and fully_shard row-major
/// over the mesh dims that cut; above 64 parts those at which sizes change, first and last of each
/// run.
Json shards_json(const Mesh& mesh, const PlannedParameter& parameter, bool lists_ranks) {
  Json shards = Json::array();
  const MeshDims dims = parameter.cut_dims();
  if (lists_ranks) {
    for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
      append_boxes({{"rank", rank}},
                   held_shard(mesh, parameter, mesh.coordinate_of(Rank{rank})).boxes, shards);
    }
    return shards;
  }
  std::vector<Coordinate> coordinates;
  if (mesh.size(dims) <= kMaxListedRanks) {
    for (std::int64_t part = 0; part < mesh.size(dims); ++part)
      coordinates.push_back(mesh.coordinate_along(dims, part));
  } else {
    coordinates = telling_coordinates(mesh, parameter);
  }
  for (const Coordinate& coordinate : coordinates) {
    append_boxes({{"shard", mesh.index_along(dims, coordinate)}},
                 held_shard(mesh, parameter, coordinate).boxes, shards);
  }
  return shards;
}

Json parameter_json(const Scenario& scenario, const PlannedParameter& parameter, bool lists_ranks) {
  const Mesh& mesh = scenario.mesh;
  const Vocabulary vocabulary = scenario.fully_shard.vocabulary;
  const auto padded_shape = [&](const Coordinate& coordinate) {
    return padded_shape_at(mesh, parameter, coordinate);
  };
  return {{"name", parameter.name},
          {"global_shape", parameter.shape},
          {"dtype", name_of(parameter.dtype)},
          {"placements",
           {{"sharded", placements_json(parameter.sharded, vocabulary)},
            {"unsharded", placements_json(parameter.unsharded, vocabulary)}}},
          {"shard_size", parameter.shard_size()},
          {"dp_size", parameter.dp_size()},
          {"rank_size", parameter.rank_size()},
          {"sharded_group", groups_json(mesh, parameter.sharded_group.dims, lists_ranks)},
          {"unsharded_group", groups_json(mesh, parameter.unsharded_group.dims, lists_ranks)},
          {"partial_group", groups_json(mesh, parameter.partial_group.dims, lists_ranks)},
          {"padded_shape", by_rank<Json>(mesh, parameter.padded_elems, lists_ranks, padded_shape)},
          {"shards", shards_json(mesh, parameter, lists_ranks)}};
}

Json collective_json(const Mesh& mesh, const std::vector<PayloadReport>& payloads,
                     const CollectiveReport& collective, bool lists_ranks) {
  const CollectiveSpec& spec = collective.spec;
  const PayloadReport& payload = payloads.at(static_cast<std::size_t>(collective.payload));
  std::vector<std::string> params = payload.params;
  if (collective.partial >= 0) {
    const Interval range = payload.partials.at(static_cast<std::size_t>(collective.partial));
    params.assign(payload.params.begin() + range.begin, payload.params.begin() + range.end);
  }
  const std::int64_t elem_bytes = size_bytes(spec.dtype);
  Json json{
      {"seq", collective.seq},
      {"op", name_of(spec.op)},
      {"phase", name_of(collective.phase)},
      {"step", collective.step},
      {"micro_batch", collective.micro_batch},
      {"unit", payload.unit},
      {"params", params},
      {"mesh_dims", names_of_dims(mesh, spec.dims)},
      {"groups", groups_json(mesh, spec.dims, lists_ranks, spec.consecutive)},
      {"dtype", name_of(spec.dtype)},
      {"reduce_op", is_reduction(spec.op) ? Json(spec.takes_max ? "max" : "sum") : Json(nullptr)},
      {"prescale", number(spec.prescale)},
      {"scale", number(spec.scale)},
      {"elements_in", elems_json(mesh, spec.elems_in, lists_ranks)},
      {"elements_out", elems_json(mesh, spec.elems_out, lists_ranks)},
      {"bytes_in", elems_json(mesh, spec.elems_in, lists_ranks, elem_bytes)},
      {"bytes_out", elems_json(mesh, spec.elems_out, lists_ranks, elem_bytes)}};
  if (!payload.activation.empty()) json["activation"] = payload.activation;
  if (collective.overlap) {
    json["overlaps"] = collective.overlap->computes;
    json["completed_before"] = collective.overlap->completed_before;
  }
  if (collective.is_recomputed) json["recomputed"] = true;
  if (spec.is_routed) json["routing"] = "balanced";
  if (collective.routed) {
    json["routed"] = {
        {"elements_in", elems_json(mesh, collective.elems_in(), lists_ranks)},
        {"elements_out", elems_json(mesh, collective.elems_out(), lists_ranks)},
        {"bytes_in", elems_json(mesh, collective.elems_in(), lists_ranks, elem_bytes)},
        {"bytes_out", elems_json(mesh, collective.elems_out(), lists_ranks, elem_bytes)}};
  }
  return json;
}

void add_kinds(const BytesByKind& bytes, Json& json) {
  for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind) {
    if (bytes[kind] > 0) json[std::string(name_of(static_cast<MemoryKind>(kind)))] = bytes[kind];
  }
}

Json init_memory_json(const MemoryProfile& memory) {
  Json json{{"peak", memory.init_peak_total}};
  add_kinds(memory.init_peak, json);
  return json;
}

Json check_json(const CheckResult& check) {
  Json json{{"id", name_of(check.id)},
            {"verdict", check.passed ? "pass" : "fail"},
            {"compared", check.compared}};
  if (check.worst) {
    json["worst"] = {{"param", check.worst->param},
                     {"rank", check.worst->rank},
                     {"step", check.worst->step},
                     {"ratio", number(check.worst->ratio)}};
  }
  return json;
}

Json finding_json(const Finding& finding) {
  Json json{{"code", name_of(finding.code)},
            {"severity", finding.severity == Severity::Error ? "error" : "warning"},
            {"check", name_of(finding.check)}};
  if (!finding.param.empty()) json["param"] = finding.param;
  if (finding.rank) json["rank"] = *finding.rank;
  if (!finding.coordinate.empty()) json["coordinate"] = finding.coordinate;
  if (finding.step) json["step"] = *finding.step;
  if (!finding.index.empty()) json["index"] = finding.index;
  if (finding.expected) json["expected"] = number(*finding.expected);
  if (finding.got) json["got"] = number(*finding.got);
  if (finding.ratio) json["ratio"] = number(*finding.ratio);
  if (!finding.explains.empty()) json["explains"] = finding.explains;
  if (!finding.pointer.empty()) json["pointer"] = finding.pointer;
  if (finding.line > 0) {
    json["line"] = finding.line;
    json["column"] = finding.column;
  }
  json["message"] = finding.message;
  return json;
}

Json left_out_json(const LeftOut& left_out) {
  return {{"check", name_of(left_out.check)},
          {"errors", left_out.errors},
          {"warnings", left_out.warnings}};
}

Json diagnostic_json(const Diagnostic& diagnostic) {
  Json json = {{"file", diagnostic.file},       {"line", diagnostic.line},
               {"column", diagnostic.column},   {"pointer", diagnostic.pointer},
               {"message", diagnostic.message}, {"help", diagnostic.help}};
  if (!diagnostic.code.empty()) json["code"] = diagnostic.code;
  return json;
}

}  // namespace hpsim
