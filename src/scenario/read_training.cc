#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "scenario/sections.h"

namespace hpsim {
namespace {

using Mode = NumericsSpec::Mode;

/// `init`, `input` or `target`; `fallback` if it is not given or wrong.
FillSpec read_fill(const ObjectReader& data, std::string_view key, const FillSpec& fallback) {
  if (!data.has(key) || data.is_bad(key)) return fallback;
  const ObjectReader reader = data.object(key, "Fill");
  FillSpec fill;
  if (reader.variant() == "uniform") {
    fill.kind = FillSpec::Kind::Uniform;
    fill.bound = reader.number("bound").value_or(1);
    return fill;
  }
  // Values come from 31 bits of the hash.
  constexpr std::int64_t kLargestMax = (std::int64_t{1} << 30) - 1;
  fill.kind = FillSpec::Kind::Integer;
  fill.max = reader.integer("max").value_or(2);
  fill.scale = reader.number("scale").value_or(1);
  if (fill.max > kLargestMax) {
    data.problems().add(reader.where("max"),
                        fmt::format("max is {}, but values have 31 bits", fill.max),
                        fmt::format("at most {}", kLargestMax));
  }
  return fill;
}

MeshDims read_data_dims(const ObjectReader& data, const Mesh& mesh, const Roles& roles) {
  MeshDims dims;
  const auto names = data.strings("data_dims");
  const std::vector<JsonCursor> elements = data.elements("data_dims");
  if (!names) {
    for (const std::optional<int>& dim :
         {roles.fsdp_shard_dim, roles.dp_replicate_dim, roles.ep_dim}) {
      if (dim) dims.push_back(*dim);
    }
  } else {
    for (std::size_t i = 0; i < names->size(); ++i) {
      const JsonCursor& at = elements[i];
      const std::optional<int> dim = mesh.find((*names)[i]);
      if (!dim) {
        data.problems().add(at, fmt::format("no mesh dim has the name {}", in_quotes((*names)[i])),
                            fmt::format("the mesh dims are {}", quoted_list(mesh.names())));
      } else if (std::find(dims.begin(), dims.end(), *dim) != dims.end()) {
        data.problems().add(at, fmt::format("mesh dim {} is listed twice", in_quotes((*names)[i])),
                            "list each mesh dim once");
      } else {
        dims.push_back(*dim);
        continue;
      }
      data.problems().mark_bad(*data.where("data_dims").value);
    }
  }
  std::sort(dims.begin(), dims.end());
  return dims;
}

LossKind loss_of(const ObjectReader& scenario) {
  const ObjectReader training = scenario.object("training", "Training");
  return training.string("loss") == "cross_entropy" ? LossKind::CrossEntropy : LossKind::Mse;
}

FillSpec tokens_below(std::int64_t vocabulary) {
  FillSpec fill;
  fill.kind = FillSpec::Kind::Token;
  fill.vocabulary = vocabulary;
  return fill;
}

/// `input` and `target` where they are tokens: there is nothing to choose then.
void read_tokens(const ObjectReader& scenario, const ModelSpec& model, DataSpec& spec) {
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;
  const ObjectReader data = scenario.object("data", "Data");
  const auto refuse = [&](const char* key, const char* why) {
    if (!data.has(key) || data.is_bad(key)) return;
    scenario.problems().add(data.where(key), fmt::format("the {} is tokens: {}", key, why),
                            fmt::format("leave \"{}\" out", key));
  };
  const auto limit = [&](std::string what, std::int64_t number) {
    if (number <= kMostTokens) return;
    scenario.problems().add(
        scenario.where("model"),
        fmt::format("{} {}, the limit is {}", std::move(what), number, kMostTokens),
        "tokens are drawn as float32, which holds all whole numbers up to 2^24 only");
  };
  const ModuleSpec& first = model.modules.front();
  if (first.type == ModuleType::Embedding) {
    spec.input = tokens_below(first.in_features);
    refuse("input", "the first module is an embedding");
    limit(fmt::format("the num_embeddings of {} are", in_quotes(first.name)), first.in_features);
  }
  if (loss_of(scenario) == LossKind::CrossEntropy) {
    spec.target = tokens_below(output_features(model));
    refuse("target", "the loss is cross_entropy");
    limit("the classes of cross_entropy, features of the model's output, are",
          output_features(model));
  }
}

void read_sgd(const ObjectReader& reader, OptimizerSpec& spec) {
  spec.kind = OptimizerSpec::Kind::Sgd;
  spec.momentum = reader.number("momentum").value_or(0);
  spec.nesterov = reader.boolean("nesterov").value_or(false);
  if (spec.nesterov && spec.momentum == 0 && !reader.is_bad("momentum")) {
    reader.problems().add(reader.where("nesterov"), "nesterov is true, but momentum is 0",
                          "torch.optim.SGD refuses this too: give a momentum, such as 0.9");
  }
}

void read_adam(const ObjectReader& reader, OptimizerSpec& spec) {
  spec.kind = reader.variant() == "adam" ? OptimizerSpec::Kind::Adam : OptimizerSpec::Kind::AdamW;
  spec.eps = reader.number("eps").value_or(1e-8);
  const auto betas = reader.numbers("betas");
  if (!betas) return;
  if (betas->size() != 2) {
    reader.problems().add(reader.where("betas"), fmt::format("{} betas, not 2", betas->size()),
                          "such as [0.9, 0.999]");
    return;
  }
  spec.beta1 = betas->front();
  spec.beta2 = betas->back();
}

OptimizerSpec read_optimizer(const ObjectReader& training, Mode mode, const FillSpec& init) {
  const bool is_given = training.has("optimizer");
  const ObjectReader reader =
      training.object("optimizer", is_given ? "Optimizer" : "Optimizer.sgd");
  OptimizerSpec spec;
  if (reader.variant().empty()) return spec;
  spec.lr = reader.number("lr").value_or(0);
  spec.weight_decay = reader.number("weight_decay").value_or(0);
  if (reader.variant() == "sgd") {
    read_sgd(reader, spec);
  } else {
    read_adam(reader, spec);
  }
  if (mode == Mode::Exact) {
    if (!reader.has("lr")) spec.lr = 0.0625;
    const bool init_is_integer = init.kind == FillSpec::Kind::Integer;
    spec.round_to = reader.number("round_to").value_or(init_is_integer ? init.scale : 1);
    spec.clamp = reader.number("clamp").value_or(
        init_is_integer ? static_cast<double>(init.max) * init.scale : 1);
    return spec;
  }
  for (const char* key : {"round_to", "clamp"}) {
    if (!reader.has(key)) continue;
    training.problems().add(
        reader.where(key),
        fmt::format("{} is only for exact mode, but the mode is \"derived\"", key),
        "leave it out, or write \"numerics\": {\"mode\": \"exact\"}");
  }
  return spec;
}

std::optional<ClipSpec> read_clip(const ObjectReader& training) {
  if (!training.has("clip_grad_norm") || training.is_null("clip_grad_norm")) return std::nullopt;
  const ObjectReader reader = training.object("clip_grad_norm", "ClipGradNorm");
  ClipSpec clip;
  clip.max_norm = reader.number("max_norm").value_or(1);
  clip.norm_type = reader.string("norm_type") == "inf" ? std::numeric_limits<double>::infinity()
                                                       : reader.number("norm_type").value_or(2);
  // Powers of gradients of 1e-19 are above the smallest double still.
  constexpr double kLargestPower = 16;
  if (std::isfinite(clip.norm_type) && clip.norm_type > kLargestPower) {
    training.problems().add(
        reader.where("norm_type"),
        fmt::format("norm_type {} is above {}: powers of small gradients would be 0",
                    clip.norm_type, kLargestPower),
        "write \"inf\", which it is close to");
  }
  return clip;
}

}  // namespace

DataSpec read_data(const ObjectReader& scenario, const std::optional<Mesh>& mesh,
                   const std::optional<Roles>& roles, const std::optional<ModelSpec>& model,
                   Mode mode) {
  const ObjectReader reader = scenario.object("data", "Data");
  FillSpec fallback;
  fallback.kind = mode == Mode::Exact ? FillSpec::Kind::Integer : FillSpec::Kind::Uniform;
  DataSpec spec;
  spec.seed = reader.unsigned_integer("seed").value_or(0);
  spec.init = read_fill(reader, "init", fallback);
  spec.input = read_fill(reader, "input", fallback);
  spec.target = read_fill(reader, "target", fallback);
  spec.init_bound_from_shape = !reader.has("init") || !reader.object("init", "Fill").has("bound");
  if (model && !model->is_elementwise()) read_tokens(scenario, *model, spec);
  if (mesh && roles) spec.data_dims = read_data_dims(reader, *mesh, *roles);
  return spec;
}

TrainingSpec read_training(const ObjectReader& scenario, Mode mode, const FillSpec& init) {
  const ObjectReader reader = scenario.object("training", "Training");
  TrainingSpec spec;
  spec.steps = reader.integer("steps").value_or(1);
  spec.loss = loss_of(scenario);
  if (spec.loss == LossKind::CrossEntropy && scenario.has("parameters")) {
    scenario.problems().add(reader.where("loss"),
                            "cross_entropy takes the output of a model, but the scenario has "
                            "\"parameters\"",
                            "leave \"loss\" out, or write a \"model\"");
  }
  const auto normalization = reader.string("loss_normalization");
  if (normalization == "sum") spec.loss_normalization = LossNormalization::Sum;
  if (normalization == "global_tokens") spec.loss_normalization = LossNormalization::GlobalTokens;
  spec.optimizer = read_optimizer(reader, mode, init);
  spec.clip_grad_norm = read_clip(reader);
  if (reader.string("init_device") == "meta") spec.init_device = InitDevice::Meta;
  spec.reduce_unused = reader.boolean("reduce_unused").value_or(false);
  read_micro_batches(reader, spec);
  return spec;
}

}  // namespace hpsim
