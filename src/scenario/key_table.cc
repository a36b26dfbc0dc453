#include "scenario/schema.h"

namespace hpsim {
namespace {

constexpr Presence kRequired = Presence::Required;
constexpr Presence kOptional = Presence::Optional;
constexpr Presence kNotYet = Presence::NotYet;

constexpr VariantSpec kVariants[] = {{"Module", "type"}, {"Optimizer", "name"}, {"Fill", "kind"}};

// clang-format off
constexpr KeySpec kKeys[] = {
    {"Scenario", "hpsim", "1", "", kRequired, "version of the format"},
    {"Scenario", "$schema", "string", "", kOptional, "for editors"},
    {"Scenario", "name", "string", "", kOptional, "for golden files and reports; default: the file's stem"},
    {"Scenario", "description", "string", R"("")", kOptional, "one line for lists and reports"},
    {"Scenario", "mesh", "Mesh", "", kRequired, "the named array of ranks"},
    {"Scenario", "roles", "Roles", "{}", kOptional, "which mesh dim does what, where names do not say it"},
    {"Scenario", "parameters", "{[int>=1] | Elementwise}", "", kOptional, "layout-only model: name -> shape"},
    {"Scenario", "model", "[Module]", "", kOptional, "modules, applied in order"},
    {"Scenario", "parallelize", "{'colwise' | 'rowwise' | 'rowwise_sp' | 'sequence_parallel' | 'replicate' | 'expert'}", "{}", kOptional, "module (or elementwise parameter) pattern -> style of tensor parallelism along tp_dim; expert: of expert parallelism along ep_dim"},
    {"Scenario", "placements", "{{string}}", "{}", kOptional, "parameter pattern -> mesh dim -> placement by tensor or expert parallelism: \"Shard(0)\", \"Replicate\""},
    {"Scenario", "fully_shard", "FullyShard", "{}", kOptional, "what is cut, gathered and reduced"},
    {"Scenario", "training", "Training", "{}", kOptional, "steps, batch, loss, optimizer"},
    {"Scenario", "data", "Data", "{}", kOptional, "how every number is drawn"},
    {"Scenario", "numerics", "Numerics", "{}", kOptional, "element type and how results are judged"},
    {"Scenario", "expect", "{any}", "{}", kOptional, "any part of the report, compared as a subset"},
    {"Scenario", "faults", "[Fault]", "[]", kOptional, "faults to plant; the run must then fail"},

    {"Mesh", "shape", "[int>=1]", "", kRequired, "sizes of the mesh dims"},
    {"Mesh", "mesh_dim_names", "[string]", "", kRequired, "one name per mesh dim"},
    {"Mesh", "ranks", "[int]", "", kOptional, "row-major array of ranks, a permutation; default 0, 1, 2, ..."},

    {"Roles", "fsdp_shard_dim", "string | null", "", kOptional, "mesh dim along which parameters are cut; default by name"},
    {"Roles", "dp_replicate_dim", "string | null", "", kOptional, "mesh dim along which parameters are copies; default by name"},
    {"Roles", "tp_dim", "string | null", "", kOptional, "mesh dim of tensor parallelism; default by name"},
    {"Roles", "ep_dim", "string | null", "", kOptional, "mesh dim of expert parallelism; default by name"},

    {"Elementwise", "shape", "[int>=1]", "", kRequired, "sizes of the tensor dims"},
    {"Elementwise", "placements", "{string}", "{}", kOptional, "mesh dim -> placement"},
    {"Elementwise", "frozen", "bool", "false", kOptional, "no gradient"},

    {"Module", "name", "string", "", kOptional, "default: the module's index"},
    {"Module", "type", "'linear' | 'relu' | 'tanh' | 'silu' | 'gelu' | 'layer_norm' | 'rms_norm' | 'embedding' | 'attention' | 'mlp' | 'moe' | 'residual' | 'sequential' | 'repeat'", "", kRequired, "what the module computes"},
    {"Module.linear", "in_features", "int>=1", "", kRequired, "size of the input's last dim"},
    {"Module.linear", "out_features", "int>=1", "", kRequired, "size of the output's last dim"},
    {"Module.linear", "bias", "bool", "true", kOptional, "adds a vector of out_features"},
    {"Module.linear", "tied_to", "string", "", kOptional, "the parameter of an earlier module that its weight is, or an earlier module: that module, used once more"},
    {"Module.gelu", "approximate", "'none' | 'tanh'", R"("none")", kOptional, "the exact function, or its tanh approximation"},
    {"Module.layer_norm", "dim", "int>=1", "", kRequired, "size of the last dim"},
    {"Module.layer_norm", "eps", "number>0", "1e-05", kOptional, "added to the variance"},
    {"Module.rms_norm", "dim", "int>=1", "", kRequired, "size of the last dim"},
    {"Module.rms_norm", "eps", "number>0", "1e-06", kOptional, "added to the mean square"},
    {"Module.embedding", "num_embeddings", "int>=1", "", kRequired, "size of the vocabulary"},
    {"Module.embedding", "embedding_dim", "int>=1", "", kRequired, "size of a row"},
    {"Module.embedding", "tied_to", "string", "", kOptional, "the parameter of an earlier module that its weight is, or an earlier module: that module, used once more"},
    {"Module.attention", "dim", "int>=1", "", kRequired, "size of the last dim"},
    {"Module.attention", "heads", "int>=1", "", kRequired, "number of query heads"},
    {"Module.attention", "kv_heads", "int>=1", "", kOptional, "number of key and value heads; default: heads"},
    {"Module.attention", "causal", "bool", "true", kOptional, "positions see no later ones"},
    {"Module.mlp", "dim", "int>=1", "", kRequired, "size of the last dim"},
    {"Module.mlp", "hidden", "int>=1", "", kRequired, "size inside"},
    {"Module.mlp", "gated", "bool", "true", kOptional, "w2(silu(w1 x) * w3 x), else w2(gelu(w1 x))"},
    {"Module.moe", "dim", "int>=1", "", kRequired, "size of the last dim"},
    {"Module.moe", "hidden", "int>=1", "", kRequired, "size inside an expert"},
    {"Module.moe", "experts", "int>=1", "", kRequired, "number of experts"},
    {"Module.moe", "top_k", "int>=1", "", kRequired, "experts per position"},
    {"Module.residual", "modules", "[Module]", "", kRequired, "x + modules(x)"},
    {"Module.sequential", "modules", "[Module]", "", kRequired, "one after the other"},
    {"Module.repeat", "count", "int>=1", "", kRequired, "how often"},
    {"Module.repeat", "module", "Module", "", kRequired, "children are named 0, 1, ..."},

    {"FullyShard", "units", "[string]", "", kOptional, "patterns; each match is one communication unit, the rest is the root unit; default: every top-level module, or one unit for parameters"},
    {"FullyShard", "enable_param_shard", "bool | null", "null", kOptional, "cut parameters; null: where a mesh dim is fsdp_shard_dim"},
    {"FullyShard", "shard_size", "int>=1 | null", "null", kOptional, "ranks per shard group: splits the fsdp_shard_dim \"dp\" into \"dp.replicate\" and \"dp.shard\"; default: all of the dim"},
    {"FullyShard", "shard_placement", "{int | ShardPlacement}", "{}", kOptional, "parameter pattern -> tensor dim to cut, or a ragged cut; default: dim 0"},
    {"FullyShard", "chunking", "'ceil' | 'balanced'", R"("ceil")", kOptional, "how rows are cut"},
    {"FullyShard", "vocabulary", "'ragged' | 'uneven_flag' | 'torch'", R"("ragged")", kOptional, "how uneven placements print"},
    {"FullyShard", "min_shard_bytes", "int>=0", "0", kOptional, "parameters with fewer bytes (global shape, their dtype) stay whole"},
    {"FullyShard", "reshard_after_forward", "bool | int>=1 | null", "true", kOptional, "free gathered parameters between forward and backward; k: keep 1/k of the whole there, on k ranks each; null: true, but the root unit stays whole, as PyTorch does by default"},
    {"FullyShard", "reshard_after_backward", "bool", "true", kOptional, "free gathered parameters after the backward of every micro-batch, not of the last alone"},
    {"FullyShard", "mp_policy", "MpPolicy", "{}", kOptional, "mixed precision"},
    {"FullyShard", "reduce_op", "'avg' | 'sum'", R"("avg")", kOptional, "whether the sum over data ranks is divided by their number"},
    {"FullyShard", "gradient_scaling_factor", "number", "1", kOptional, "k: multiplies the input of the first collective, once"},
    {"FullyShard", "gradient_divide_factor", "number>0 | null", "null", kOptional, "F: replaces the divisor of the gradient sum"},
    {"FullyShard", "ignored_params", "[string]", "[]", kOptional, "patterns of parameters that fully_shard leaves alone"},
    {"FullyShard", "replicate_params", "[string]", "[]", kOptional, "patterns of parameters that are never cut: all-reduce only"},
    {"FullyShard", "comm_fusion", "'group' | 'none'", R"("group")", kOptional, "group: one collective per unit, group and dtype; none: one per parameter"},
    {"FullyShard", "forward_prefetch", "int>=0", "0", kOptional, "units gathered ahead in forward: right after a unit's own unshard those of the next ones are begun"},
    {"FullyShard", "backward_prefetch", "int>=0", "0", kOptional, "the same in backward; 1 is the order of FSDP2 unless it is told another"},
    {"FullyShard", "sync_object", "'grad' | 'weight'", R"("grad")", kOptional, "what copies agree on: the sum of gradients, or the mean of weights after the optimizer"},
    {"ShardPlacement", "dims", "[int>=0]", "", kRequired, "leading tensor dims that are cut together"},
    {"ShardPlacement", "local_units", "[int>=0]", "", kRequired, "relative sizes per rank"},
    {"MpPolicy", "param_dtype", "'float32' | 'float64' | 'bfloat16' | 'float16' | null", "null", kOptional, "element type of gathered parameters, and of compute; null: their own"},
    {"MpPolicy", "reduce_dtype", "'float32' | 'float64' | 'bfloat16' | 'float16' | null", "null", kOptional, "element type of the reduction of gradients; null: that of compute"},
    {"MpPolicy", "output_dtype", "'float32' | 'float64' | 'bfloat16' | 'float16' | null", "null", kOptional, "element type of what units give; null: that of compute"},
    {"MpPolicy", "cast_forward_inputs", "bool", "true", kOptional, "units cast what they take to param_dtype"},

    {"Training", "steps", "int>=1", "1", kOptional, "optimizer steps"},
    {"Training", "global_batch", "int>=1", "", kOptional, "samples per optimizer step over all ranks; default: 2 per data rank and micro-batch"},
    {"Training", "micro_batches", "int>=1", "1", kOptional, "passes per optimizer step, whose gradients add up"},
    {"Training", "requires_gradient_sync", "'every' | 'last' | [bool]", R"("every")", kOptional, "micro-batches that reduce gradients; the last one must"},
    {"Training", "requires_all_reduce", "'every' | 'last' | [bool]", R"("every")", kOptional, "micro-batches that all-reduce what they reduce; the last one must"},
    {"Training", "loss", "'mse' | 'cross_entropy'", R"("mse")", kOptional, "what is minimised"},
    {"Training", "loss_normalization", "'local_mean' | 'sum' | 'global_tokens'", R"("local_mean")", kOptional, "what the sum of the loss terms of a rank is divided by; with global_tokens, reduce_op is \"sum\" unless given"},
    {"Training", "forward_only", "bool", "false", kNotYet, "no backward"},
    {"Training", "optimizer", "Optimizer", R"({"name": "sgd", "lr": 0.1})", kOptional, "as torch.optim"},
    {"Training", "clip_grad_norm", "ClipGradNorm | null", "null", kOptional, "factor min(1, max_norm / (norm + 1e-6)) of gradients"},
    {"Training", "activation_checkpointing", "[string]", "[]", kOptional, "patterns of modules that are computed again in backward"},
    {"Training", "init_device", "'cpu' | 'meta'", R"("cpu")", kOptional, "where parameters are created"},
    {"Training", "frozen", "[string]", "[]", kOptional, "patterns of parameters without gradient"},
    {"Training", "unfreeze_at", "{int>=0}", "{}", kOptional, "pattern of frozen parameters -> the optimizer step from which on they have a gradient"},
    {"Training", "reduce_unused", "bool", "false", kOptional, "parameters that some ranks do not use have gradients of zeros there"},
    {"Training", "checkpoint", "Checkpoint | null", "null", kNotYet, "save, load on another mesh, go on"},
    {"ClipGradNorm", "max_norm", "number>0", "", kRequired, "largest norm"},
    {"ClipGradNorm", "norm_type", "number>=1 | 'inf'", "2", kOptional, "p of the p-norm; inf: the largest magnitude"},
    {"Checkpoint", "save_at", "int>=1", "", kRequired, "save after so many steps"},
    {"Checkpoint", "resume_on", "ResumeOn", "", kRequired, "the mesh to go on with"},
    {"ResumeOn", "shape", "[int>=1]", "", kRequired, "sizes of the mesh dims"},
    {"ResumeOn", "mesh_dim_names", "[string]", "", kRequired, "one name per mesh dim"},
    {"ResumeOn", "roles", "Roles", "{}", kOptional, "which mesh dim does what"},

    {"Optimizer", "name", "'sgd' | 'adam' | 'adamw'", "", kRequired, "which optimizer"},
    {"Optimizer", "round_to", "number>0", "", kOptional, "exact mode: updated weights go to the nearest multiple; default: scale of init"},
    {"Optimizer", "clamp", "number>0", "", kOptional, "exact mode: then to [-clamp, clamp]; default: max * scale of init"},
    {"Optimizer.sgd", "lr", "number>=0", "0.1", kOptional, "learning rate, 0.0625 in exact mode"},
    {"Optimizer.sgd", "momentum", "number>=0", "0", kOptional, "factor of the momentum buffer"},
    {"Optimizer.sgd", "weight_decay", "number>=0", "0", kOptional, "times w, added to the gradient"},
    {"Optimizer.sgd", "nesterov", "bool", "false", kOptional, "Nesterov momentum"},
    {"Optimizer.adam", "lr", "number>=0", "0.001", kOptional, "learning rate"},
    {"Optimizer.adam", "betas", "[number>=0<1]", "[0.9, 0.999]", kOptional, "decay of the two moments"},
    {"Optimizer.adam", "eps", "number>0", "1e-08", kOptional, "added to the denominator"},
    {"Optimizer.adam", "weight_decay", "number>=0", "0", kOptional, "times w, added to the gradient"},
    {"Optimizer.adamw", "lr", "number>=0", "0.001", kOptional, "learning rate"},
    {"Optimizer.adamw", "betas", "[number>=0<1]", "[0.9, 0.999]", kOptional, "decay of the two moments"},
    {"Optimizer.adamw", "eps", "number>0", "1e-08", kOptional, "added to the denominator"},
    {"Optimizer.adamw", "weight_decay", "number>=0", "0.01", kOptional, "times lr w, subtracted from w"},

    {"Data", "seed", "uint", "0", kOptional, "changes every number that is drawn"},
    {"Data", "init", "Fill", R"({"kind": "uniform"})", kOptional, "parameters before the first step"},
    {"Data", "input", "Fill", R"({"kind": "uniform", "bound": 1})", kOptional, "inputs of the model; tokens where it begins with an embedding"},
    {"Data", "target", "Fill", R"({"kind": "uniform", "bound": 1})", kOptional, "targets of the loss; tokens for cross_entropy"},
    {"Data", "sample_shape", "[int>=1]", "", kOptional, "shape of one sample: [features], [sequence, features], or [sequence] of tokens; default: [in_features] where the first module is linear"},
    {"Data", "tokens", "[int>=0 | [int>=0]]", "", kOptional, "valid positions of each micro-batch, per data rank: a number, or one per micro-batch; default: all"},
    {"Data", "inactive", "[Inactive]", "[]", kOptional, "modules that are the identity, or parameters that leave the loss, on some ranks in some passes"},
    {"Data", "data_dims", "[string]", "", kOptional, "mesh dims over which the batch is split; default: those with a role"},
    {"Inactive", "modules", "[string]", "", kOptional, "patterns of modules of a model"},
    {"Inactive", "params", "[string]", "", kOptional, "patterns of elementwise parameters"},
    {"Inactive", "ranks", "[int>=0]", "", kOptional, "ranks of the mesh, with all that see the same samples; default: all"},
    {"Inactive", "steps", "[int>=0]", "", kOptional, "optimizer steps; default: all"},
    {"Inactive", "micro_batches", "[int>=0]", "", kOptional, "of each of these steps; default: all"},
    {"Fill", "kind", "'uniform' | 'integer'", "", kRequired, "distribution of the values"},
    {"Fill.uniform", "bound", "number>0", "", kOptional, "largest magnitude; default 1, of init 1/sqrt(last dim)"},
    {"Fill.integer", "max", "int>=1", "2", kOptional, "values in -max..max"},
    {"Fill.integer", "scale", "number>0", "1", kOptional, "factor of the values"},

    {"Numerics", "dtype", "'float32' | 'float64' | 'bfloat16' | 'float16'", R"("float32")", kOptional, "element type of parameters, optimizer state and data"},
    {"Numerics", "parameter_dtypes", "{'float32' | 'float64' | 'bfloat16' | 'float16'}", "{}", kOptional, "parameter pattern -> its element type, where it is another one"},
    {"Numerics", "mode", "'derived' | 'exact' | ~Tolerance", R"("derived")", kOptional, "bounds from rounding, or equality"},
    {"Tolerance", "rtol", "number>=0", "", kRequired, "relative tolerance"},
    {"Tolerance", "atol", "number>=0", "", kRequired, "absolute tolerance"},

    {"Fault", "fault", "fault", "", kRequired, "what is done wrong; hpsim faults lists all of them"},
    {"Fault", "params", "string", "", kOptional, "pattern of parameters that it is about; default: all"},
    {"Fault", "ranks", "[int>=0]", "", kOptional, "the ranks that do it, at least one; default: all, but kill, throw and stall need some"},
    {"Fault", "unit", "string", "", kOptional, "communication unit that it is about; default: all"},
    {"Fault", "step", "int>=0", "", kOptional, "optimizer step in which they do it; kill, throw and stall: before its first collective, by default that of seq, or of step 0; others by default: all"},
    {"Fault", "seq", "int>=0", "", kOptional, "number of the collective in the whole run, as in the report; kill, throw and stall: before which they do it"},
};
// clang-format on

}  // namespace

std::span<const KeySpec> all_keys() {
  return kKeys;
}

std::span<const VariantSpec> all_variants() {
  return kVariants;
}

}  // namespace hpsim
