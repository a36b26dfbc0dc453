#include "shrink/reductions.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shrink/feature_sizes.h"

namespace hpsim {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Reduction> text_reductions(const Json& /*scenario*/) {
  return {{"name, description and $schema left out", [](Json& scenario) {
             for (const char* const key : {"$schema", "name", "description"})
               scenario.erase(key);
           }}};
}

std::vector<Reduction> expect_reductions(const Json& /*scenario*/) {
  return {{"/expect left out", [](Json& scenario) { scenario.erase("expect"); }}};
}

std::vector<Reduction> pass_reductions(const Json& scenario) {
  std::vector<Reduction> reductions;
  for (const char* const key : {"steps", "micro_batches", "global_batch"}) {
    const Json::json_pointer at(std::string("/training/") + key);
    if (!scenario.contains(at) || !scenario[at].is_number_integer()) continue;
    const auto number = scenario[at].get<std::int64_t>();
    reductions.push_back({fmt::format("{} left out", at.to_string()),
                          [key](Json& smaller) { smaller["training"].erase(key); }});
    for (const std::int64_t fewer : smaller_numbers(number, 1)) {
      reductions.push_back({fmt::format("{}: {} -> {}", at.to_string(), number, fewer),
                            [at, fewer](Json& smaller) { smaller[at] = fewer; }});
    }
  }
  return reductions;
}

std::vector<Reduction> parameter_reductions(const Json& scenario) {
  std::vector<Reduction> reductions;
  if (!scenario.contains("parameters") || !scenario["parameters"].is_object()) return reductions;
  for (const auto& [begin, end] : parts_of(scenario["parameters"].size())) {
    reductions.push_back({fmt::format("parameters {} to {} left out", begin, end - 1),
                          [begin = begin, end = end](Json& smaller) {
                            Json& parameters = smaller["parameters"];
                            std::vector<std::string> names;
                            for (const auto& [name, shape] : parameters.items())
                              names.push_back(name);
                            names = {names.begin() + static_cast<std::ptrdiff_t>(begin),
                                     names.begin() + static_cast<std::ptrdiff_t>(end)};
                            for (const std::string& name : names)
                              parameters.erase(name);
                          }});
  }
  return reductions;
}

std::vector<Reduction> section_reductions(const Json& scenario) {
  std::vector<Reduction> reductions;
  for (const char* const key :
       {"fully_shard", "training", "data", "numerics", "roles", "parallelize", "placements"}) {
    if (!scenario.contains(key)) continue;
    reductions.push_back({fmt::format("/{} left out", key), [key](Json& smaller) {
                            const Json section = smaller[key];
                            smaller.erase(key);
                            if (section.is_object() && section.contains("seed"))
                              smaller[key] = {{"seed", section["seed"]}};
                          }});
  }
  return reductions;
}

}  // namespace

const std::vector<ReductionKind>& reduction_kinds() {
  static const std::vector<ReductionKind> kKinds = {
      {"texts", text_reductions},       {"expect", expect_reductions},
      {"mesh", mesh_reductions},        {"passes", pass_reductions},
      {"modules", module_reductions},   {"parameters", parameter_reductions},
      {"features", feature_reductions}, {"sections", section_reductions},
      {"keys", key_reductions},         {"elements", element_reductions},
      {"numbers", number_reductions}};
  return kKinds;
}

std::vector<std::int64_t> smaller_numbers(std::int64_t number, std::int64_t least) {
  std::vector<std::int64_t> numbers = {least, 2, number / 2, number - 1};
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  std::erase_if(numbers, [&](std::int64_t each) { return each < least || each >= number; });
  return numbers;
}

std::vector<std::pair<std::size_t, std::size_t>> parts_of(std::size_t size) {
  std::vector<std::pair<std::size_t, std::size_t>> parts;
  if (size == 0) return parts;
  for (std::size_t length = std::max<std::size_t>(1, size / 2);; length /= 2) {
    for (std::size_t end = size; end > 0; end -= std::min(length, end))
      parts.emplace_back(end - std::min(length, end), end);
    if (length == 1) return parts;
  }
}

std::vector<Reduction> mesh_reductions(const Json& scenario) {
  std::vector<Reduction> reductions;
  const Json& shape = scenario.at("mesh").at("shape");
  if (!shape.is_array()) return reductions;
  for (std::size_t dim = shape.size(); dim-- > 0 && shape.size() > 1;) {
    reductions.push_back({fmt::format("mesh dim {} left out", dim), [dim](Json& smaller) {
                            Json& mesh = smaller["mesh"];
                            mesh["shape"].erase(dim);
                            mesh["mesh_dim_names"].erase(dim);
                            mesh.erase("ranks");
                          }});
  }
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const auto size = shape[dim].get<std::int64_t>();
    for (const std::int64_t fewer : smaller_numbers(size, 1)) {
      reductions.push_back(
          {fmt::format("/mesh/shape/{}: {} -> {}", dim, size, fewer), [dim, fewer](Json& smaller) {
             smaller["mesh"]["shape"][dim] = fewer;
             smaller["mesh"].erase("ranks");
           }});
    }
  }
  return reductions;
}

std::vector<Reduction> feature_reductions(const Json& scenario) {
  std::vector<Reduction> reductions;
  for (const std::int64_t size : feature_sizes(scenario)) {
    for (const std::int64_t fewer : smaller_numbers(size, 1)) {
      reductions.push_back(
          {fmt::format("{} features: {}", size, fewer), [size, fewer](Json& smaller) {
             replace_feature_size(smaller, size, fewer);
             fit_features(smaller);
           }});
    }
  }
  return reductions;
}

}  // namespace hpsim
