#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "layout/placement.h"
#include "mesh/mesh.h"
#include "model/model_spec.h"
#include "model/parameters.h"
#include "model/units.h"
#include "tensor/fill.h"

namespace hpsim {

/// Which mesh dim does what; nothing if no dim has the role.
struct Roles {
  std::optional<int> fsdp_shard_dim;    ///< parameters are cut along it; reduce-scatter
  std::optional<int> dp_replicate_dim;  ///< copies along it; all-reduce
};

/// `fully_shard`: what is cut, gathered and reduced, and when.
struct FullyShardSpec {
  bool shards_parameters = true;  ///< enable_param_shard, or what null infers from the roles
  bool reshard_after_forward = true;
  ReduceOp reduce_op = ReduceOp::Avg;
  double gradient_scaling_factor = 1;            ///< k: multiplies the first collective's input
  std::optional<double> gradient_divide_factor;  ///< replaces the divisor F
  std::vector<int> replicate_params;             ///< indices: never cut, all-reduce only
};

struct OptimizerSpec {
  enum class Kind { Sgd, Adam, AdamW };
  Kind kind = Kind::Sgd;
  double lr = 0.1;
  double weight_decay = 0;
  double momentum = 0;                ///< sgd
  bool nesterov = false;              ///< sgd
  double beta1 = 0.9, beta2 = 0.999;  ///< adam, adamw
  double eps = 1e-8;                  ///< adam, adamw
  std::optional<double> round_to;     ///< exact mode: weights to the nearest multiple, ties even
  std::optional<double> clamp;        ///< exact mode: then to [-clamp, clamp]

  /// 0 for plain sgd, 1 for sgd with momentum (the buffer), 2 for adam (exp_avg, exp_avg_sq).
  [[nodiscard]] int num_state_tensors() const {
    return kind == Kind::Sgd ? (momentum != 0 ? 1 : 0) : 2;
  }
};

enum class LossNormalization { LocalMean, Sum };

struct TrainingSpec {
  std::int64_t steps = 1;
  std::int64_t global_batch = 0;  ///< samples per optimizer step over all data ranks
  LossNormalization loss_normalization = LossNormalization::LocalMean;
  OptimizerSpec optimizer;
};

struct DataSpec {
  std::uint64_t seed = 0;
  FillSpec init;                      ///< of parameters; see `parameter_fill`
  bool init_bound_from_shape = true;  ///< uniform init with bound 1 / sqrt(last dim)
  FillSpec input;
  FillSpec target;
  MeshDims data_dims;  ///< the batch is split over them, row-major
};

struct NumericsSpec {
  enum class Mode { Derived, Exact };
  DType dtype = DType::Float32;  ///< float32 or float64
  Mode mode = Mode::Derived;
};

/// One experiment, complete and valid: defaults filled in, names resolved, patterns matched.
struct Scenario {
  std::string name;
  std::string description;
  std::string file;  ///< the argument as typed
  std::string hash;  ///< fnv1a64 of the canonical JSON, 16 hex digits
  Mesh mesh{{1}, {"fsdp"}};
  Roles roles;
  ModelSpec model;
  std::vector<ParameterSpec> parameters;  ///< list_parameters(model)
  std::vector<UnitSpec> units;            ///< assign_units(...), in the order of first use
  FullyShardSpec fully_shard;
  TrainingSpec training;
  DataSpec data;
  NumericsSpec numerics;
  std::string expect;  ///< JSON text of `expect`; empty if there is none

  /// Ranks that see distinct data: product of the sizes of data_dims.
  [[nodiscard]] std::int64_t num_data_ranks() const { return mesh.size(data.data_dims); }
  /// Samples of one data rank in one optimizer step.
  [[nodiscard]] std::int64_t local_batch() const {
    return training.global_batch / num_data_ranks();
  }
  [[nodiscard]] bool is_exact() const { return numerics.mode == NumericsSpec::Mode::Exact; }
};

/// How the parameter is initialised: `data.init` with its bound resolved for this shape.
[[nodiscard]] FillSpec parameter_fill(const DataSpec& data, const ParameterSpec& parameter);

/// A count as a divisor of a mean or of the avg scale: itself, but in exact mode the next power of
/// two that is at least as large, so that the division is exact. 6 -> 6, in exact mode 8.
[[nodiscard]] double mean_divisor(const Scenario& scenario, std::int64_t count);

/// F, what the sum of gradients over data ranks is divided by: gradient_divide_factor if given,
/// else mean_divisor(number of data ranks) for avg and 1 for sum.
[[nodiscard]] double gradient_divisor(const Scenario& scenario);

}  // namespace hpsim
