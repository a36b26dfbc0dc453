#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "scenario/pattern_matcher.h"
#include "scenario/sections.h"

namespace hpsim {
namespace {

/// Terms that are divided by their number on all data ranks are added up.
ReduceOp read_reduce_op(const ObjectReader& scenario, const ObjectReader& fully_shard) {
  const ObjectReader training = scenario.object("training", "Training");
  const bool is_sum = fully_shard.has("reduce_op")
                          ? fully_shard.string("reduce_op") == "sum"
                          : training.string("loss_normalization") == "global_tokens";
  return is_sum ? ReduceOp::Sum : ReduceOp::Avg;
}

/// `2, 3, 6`: the first divisors but 1 and the number itself.
std::string inner_divisors(std::int64_t number) {
  constexpr std::size_t kMostShown = 12;
  constexpr std::int64_t kMostTried = 1 << 20;
  std::string text;
  std::size_t num_found = 0;
  for (std::int64_t k = 2; k <= std::min(number / 2, kMostTried); ++k) {
    if (number % k != 0) continue;
    if (++num_found > kMostShown) return text + ", ...";
    text += fmt::format("{}{}", text.empty() ? "" : ", ", k);
  }
  return text;
}

}  // namespace

std::vector<int> read_parameter_patterns(const ObjectReader& reader, std::string_view key,
                                         const ModelSpec& model) {
  std::vector<std::string> names = names_of(list_parameters(model));
  std::vector<bool> is_matched(names.size());
  PatternMatcher matcher(std::move(names), "parameter", reader.problems());
  const auto patterns = reader.strings(key);
  const std::vector<JsonCursor> elements = reader.elements(key);
  for (std::size_t i = 0; patterns && i < patterns->size(); ++i) {
    for (const int p : matcher.matches_of((*patterns)[i], elements[i]))
      is_matched[static_cast<std::size_t>(p)] = true;
  }
  std::vector<int> matched;
  for (std::size_t p = 0; p < is_matched.size(); ++p) {
    if (is_matched[p]) matched.push_back(static_cast<int>(p));
  }
  return matched;
}

FullyShardSpec read_fully_shard(const ObjectReader& scenario, const std::optional<Roles>& roles,
                                const std::optional<ModelSpec>& model) {
  const ObjectReader reader = scenario.object("fully_shard", "FullyShard");
  FullyShardSpec spec;
  spec.reshard_after_forward = reader.boolean("reshard_after_forward").value_or(true);
  spec.keeps_root_after_forward = reader.is_null("reshard_after_forward");
  spec.forward_prefetch = reader.integer("forward_prefetch").value_or(0);
  spec.backward_prefetch = reader.integer("backward_prefetch").value_or(0);
  spec.reshard_after_backward = reader.boolean("reshard_after_backward").value_or(true);
  spec.fuses_collectives = reader.string("comm_fusion") != "none";
  spec.reduce_op = read_reduce_op(scenario, reader);
  if (reader.string("sync_object") == "weight") spec.sync_object = SyncObject::Weight;
  spec.gradient_scaling_factor = reader.number("gradient_scaling_factor").value_or(1);
  spec.gradient_divide_factor = reader.number("gradient_divide_factor");
  if (spec.gradient_scaling_factor == 0) {
    scenario.problems().add(reader.where("gradient_scaling_factor"),
                            "gradient_scaling_factor is 0: no gradient would be left",
                            "the default is 1");
  }
  if (roles) {
    const auto enable = reader.boolean("enable_param_shard");
    spec.shards_parameters = enable.value_or(roles->fsdp_shard_dim.has_value());
    if (spec.shards_parameters && !roles->fsdp_shard_dim) {
      scenario.problems().add(
          reader.where("enable_param_shard"),
          "enable_param_shard is true, but no mesh dim is fsdp_shard_dim",
          "name one in \"roles\", or leave enable_param_shard out: parameters are then copies");
    }
  }
  spec.min_shard_bytes = reader.integer("min_shard_bytes").value_or(0);
  spec.chunking = reader.string("chunking") == "balanced" ? Chunking::Balanced : Chunking::Ceil;
  for (const Vocabulary vocabulary : {Vocabulary::UnevenFlag, Vocabulary::Torch}) {
    if (reader.string("vocabulary") == name_of(vocabulary)) spec.vocabulary = vocabulary;
  }
  if (!model) return spec;
  spec.replicate_params = read_parameter_patterns(reader, "replicate_params", *model);
  spec.ignored_params = read_parameter_patterns(reader, "ignored_params", *model);
  std::vector<int> both;
  std::set_intersection(spec.replicate_params.begin(), spec.replicate_params.end(),
                        spec.ignored_params.begin(), spec.ignored_params.end(),
                        std::back_inserter(both));
  if (!both.empty()) {
    const std::string name = list_parameters(*model)[static_cast<std::size_t>(both[0])].name;
    scenario.problems().add(
        reader.where("ignored_params"),
        fmt::format("{} is in ignored_params and in replicate_params", in_quotes(name)),
        "keep it in one: fully_shard all-reduces what is replicated, and leaves alone what is "
        "ignored");
  }
  return spec;
}

void read_reshard_after_forward(const ObjectReader& scenario, Scenario& result) {
  const ObjectReader reader = scenario.object("fully_shard", "FullyShard");
  const auto given = reader.integer("reshard_after_forward");
  if (!given || reader.is_bad("shard_size") || reader.is_bad("enable_param_shard")) return;
  FullyShardSpec& spec = result.fully_shard;
  const std::optional<int> dim = result.roles.fsdp_shard_dim;
  const JsonCursor at = reader.where("reshard_after_forward");
  if (!dim || !spec.shards_parameters) {
    scenario.problems().add(
        at,
        fmt::format("reshard_after_forward is {}, but parameters are not sharded: {}", *given,
                    dim ? "enable_param_shard is false" : "no mesh dim is fsdp_shard_dim"),
        "write true or false, or leave it out");
    return;
  }
  const std::int64_t size = result.mesh.size(*dim);
  if (size % *given != 0) {
    const std::string divisors = inner_divisors(size);
    scenario.problems().add(
        at,
        fmt::format("reshard_after_forward is {}, which does not divide the shard group of {} "
                    "ranks along {}",
                    *given, size, in_quotes(result.mesh.name(*dim))),
        fmt::format("write a divisor: 1 (false), {}{} (true)",
                    divisors.empty() ? "" : divisors + ", ", size));
    return;
  }
  spec.reshard_after_forward = *given != 1;
  if (*given != 1 && *given != size) spec.post_forward_size = *given;
}

}  // namespace hpsim
