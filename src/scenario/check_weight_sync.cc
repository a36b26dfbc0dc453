#include <fmt/format.h>

#include <bit>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "layout/tensor_layout.h"
#include "scenario/module_layouts.h"
#include "scenario/validate.h"

namespace hpsim {
namespace {

constexpr const char* kOrGrad = "or write \"sync_object\": \"grad\"";

/// Parameters with one mistake in common, told by the first of them.
struct Culprits {
  int first = -1;
  std::int64_t count = 0;
  MeshDims dims;  ///< of the first

  void add(int p, MeshDims dims_of_p) {
    if (count++ > 0) return;
    first = p;
    dims = std::move(dims_of_p);
  }
};

class WeightSyncCheck {
 public:
  WeightSyncCheck(const Scenario& scenario, const ObjectReader& file)
      : scenario_(scenario),
        file_(file),
        fully_shard_(file.object("fully_shard", "FullyShard")),
        problems_(file.problems()) {}

  void check_values() {
    const FullyShardSpec& spec = scenario_.fully_shard;
    if (spec.reduce_op == ReduceOp::Sum) {
      problems_.add(
          fully_shard_.has("reduce_op") ? fully_shard_.where("reduce_op")
                                        : fully_shard_.where("sync_object"),
          fmt::format("reduce_op is \"sum\"{}, but sync_object \"weight\" takes the mean of "
                      "weights",
                      fully_shard_.has("reduce_op") ? "" : " by default with \"global_tokens\""),
          fmt::format("write {}\"avg\", {}",
                      fully_shard_.has("reduce_op") ? "" : "\"reduce_op\": ", kOrGrad));
    }
    if (spec.gradient_divide_factor) {
      problems_.add(fully_shard_.where("gradient_divide_factor"),
                    fmt::format("gradient_divide_factor is {}, but sync_object \"weight\" divides "
                                "weights by the number of their copies",
                                *spec.gradient_divide_factor),
                    fmt::format("leave it out, {}", kOrGrad));
    }
    check_dtypes();
    const ObjectReader training = file_.object("training", "Training");
    if (scenario_.training.clip_grad_norm && !training.is_bad("clip_grad_norm")) {
      problems_.add(training.where("clip_grad_norm"),
                    "clip_grad_norm needs the norm of the mean gradient, but sync_object "
                    "\"weight\" reduces no gradient",
                    fmt::format("leave it out, {}", kOrGrad));
    }
    if (scenario_.training.optimizer.kind != OptimizerSpec::Kind::Sgd) {
      const ObjectReader optimizer = training.object("optimizer", "Optimizer");
      problems_.add(
          optimizer.where("name"),
          fmt::format("the optimizer is {}, but sync_object \"weight\" needs sgd: the mean "
                      "of other updates is not the update by the mean gradient",
                      optimizer.variant()),
          fmt::format("use sgd, {}", kOrGrad));
    }
  }

  void check_parameters() {
    Culprits cut;
    Culprits ignored;
    Culprits partial;
    Culprits inexact;
    const std::vector<MeshDims> partials = partial_dims(scenario_);
    const std::vector<MeshDims> averages = averaged_dims(scenario_);
    for (int p = 0; p < static_cast<int>(scenario_.parameters.size()); ++p) {
      const Mesh& mesh = scenario_.mesh;
      const MeshDims& averaged = averages[static_cast<std::size_t>(p)];
      const MeshDims left = unaveraged(partials[static_cast<std::size_t>(p)], averaged);
      if (is_sharded(scenario_, p) && mesh.size(*scenario_.roles.fsdp_shard_dim) > 1) {
        cut.add(p, {*scenario_.roles.fsdp_shard_dim});
      } else if (mesh.size(left) > 1) {
        (is_ignored(scenario_, p) ? ignored : partial).add(p, left);
      }
      const auto size = static_cast<std::uint64_t>(mesh.size(averaged));
      if (scenario_.is_exact() && !std::has_single_bit(size)) inexact.add(p, averaged);
    }
    if (cut.count > 0) tell_cut(cut);
    if (ignored.count > 0) tell_ignored(ignored);
    if (partial.count > 0) tell_partial(partial);
    // Exactness of means that are not taken says nothing.
    if (inexact.count > 0 && cut.count == 0) tell_inexact(inexact);
  }

 private:
  /// This path computes in one dtype.
  void check_dtypes() {
    const DType dtype = scenario_.numerics.dtype;
    const ObjectReader numerics = file_.object("numerics", "Numerics");
    if (dtype != DType::Float32 && dtype != DType::Float64) {
      refuse_dtype(numerics, "dtype", fmt::format("is {}", name_of(dtype)),
                   "write \"float32\" or \"float64\"");
    }
    if (!scenario_.numerics.parameter_dtypes.empty()) {
      refuse_dtype(numerics, "parameter_dtypes",
                   fmt::format("gives some parameters another dtype than {}", name_of(dtype)),
                   "leave it out");
    }
    const ObjectReader policy = fully_shard_.object("mp_policy", "MpPolicy");
    const MixedPrecision& spec = scenario_.fully_shard.mp_policy;
    const std::pair<const char*, std::optional<DType>> given[] = {
        {"param_dtype", spec.param_dtype},
        {"reduce_dtype", spec.reduce_dtype},
        {"output_dtype", spec.output_dtype}};
    for (const auto& [key, other] : given) {
      if (!other || *other == dtype) continue;
      refuse_dtype(policy, key, fmt::format("is {}", name_of(*other)), "leave it out");
    }
  }

  void refuse_dtype(const ObjectReader& reader, const char* key, const std::string& what,
                    const char* help) {
    problems_.add(reader.where(key),
                  fmt::format("{} {}, but sync_object \"weight\" computes in one dtype, float32 or "
                              "float64",
                              key, what),
                  fmt::format("{}, {}", help, kOrGrad));
  }

  /// Dims on which a gradient is Partial and copies are not averaged.
  [[nodiscard]] MeshDims unaveraged(const MeshDims& partial, const MeshDims& averaged) const {
    MeshDims left;
    for (const int dim : partial) {
      if (scenario_.mesh.size(dim) > 1 && !contains(averaged, dim)) left.push_back(dim);
    }
    return left;
  }

  /// `"dp", "ep"`
  [[nodiscard]] std::string names(const MeshDims& dims) const {
    std::vector<std::string> names;
    for (const int dim : dims)
      names.push_back(scenario_.mesh.name(dim));
    return quoted_list(names);
  }
  /// `"w" and 2 other parameters`
  [[nodiscard]] std::string names(const Culprits& culprits) const {
    std::string text =
        in_quotes(scenario_.parameters[static_cast<std::size_t>(culprits.first)].name);
    if (culprits.count > 1) {
      text += fmt::format(" and {} other parameter{}", culprits.count - 1,
                          culprits.count == 2 ? "" : "s");
    }
    return text;
  }

  void tell_cut(const Culprits& cut) {
    problems_.add(
        fully_shard_.where("sync_object"),
        fmt::format("sync_object is \"weight\", but fully_shard cuts {} over {} ranks along {}",
                    names(cut), scenario_.mesh.size(cut.dims), names(cut.dims)),
        fmt::format("only whole copies can be averaged: write \"enable_param_shard\": false, or "
                    "list what is cut in replicate_params, {}",
                    kOrGrad));
  }

  void tell_ignored(const Culprits& ignored) {
    problems_.add(
        fully_shard_.where("ignored_params"),
        fmt::format("fully_shard ignores {}, whose gradient is a sum over {} ranks along {}, but "
                    "sync_object \"weight\" reduces no gradient",
                    names(ignored), scenario_.mesh.size(ignored.dims), names(ignored.dims)),
        fmt::format("take it out of ignored_params, {}", kOrGrad));
  }

  void tell_partial(const Culprits& partial) {
    const ObjectReader data = file_.object("data", "Data");
    const std::string dims = names(partial.dims);
    problems_.add(
        data.has("data_dims") ? data.where("data_dims") : fully_shard_.where("sync_object"),
        fmt::format("the batch is split over {} ranks along {}, and {} not cut along it; "
                    "sync_object \"weight\" averages along {} only, the fully_shard domain",
                    scenario_.mesh.size(partial.dims), dims,
                    names(partial) + (partial.count > 1 ? " are" : " is"),
                    names(fully_shard_domain(scenario_))),
        fmt::format("keep {} out of data_dims, or cut the parameter along it, {}", dims, kOrGrad));
  }

  void tell_inexact(const Culprits& inexact) {
    const std::int64_t size = scenario_.mesh.size(inexact.dims);
    const auto above = std::bit_ceil(static_cast<std::uint64_t>(size));
    problems_.add(
        file_.object("numerics", "Numerics").where("mode"),
        fmt::format("exact mode needs means over a power of two of ranks, but the weights "
                    "of {} are averaged over {} along {}",
                    names(inexact), size, names(inexact.dims)),
        fmt::format("average over {} or {} ranks, or use the mode \"derived\"", above / 2, above));
  }

  const Scenario& scenario_;
  const ObjectReader& file_;
  ObjectReader fully_shard_;
  Problems& problems_;
};

}  // namespace

void check_weight_sync(const Scenario& scenario, const ObjectReader& file) {
  const bool is_sound = file.problems().empty();
  WeightSyncCheck check(scenario, file);
  check.check_values();
  if (is_sound) check.check_parameters();
}

}  // namespace hpsim
