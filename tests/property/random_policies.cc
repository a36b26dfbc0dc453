#include "random_policies.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "model/units.h"
#include "scenario/parse.h"
#include "tensor/fill.h"

namespace hpsim::test {
namespace {

using Json = nlohmann::ordered_json;

class PolicyDraw {
 public:
  PolicyDraw(Dice& dice, Json& json, bool is_narrow)
      : dice_(dice),
        json_(json),
        is_narrow_(is_narrow),
        base_(parse_scenario(json.dump(), "drawn.json")),
        averages_(base_.fully_shard.sync_object == SyncObject::Weight),
        anchor_(dice.below(static_cast<std::int64_t>(base_.parameters.size()))) {}

  void draw() {
    draw_micro_batches();
    draw_resharding();
    draw_prefetch();
    if (dice_.one_in(4)) fully_shard()["comm_fusion"] = "none";
    // Not drawn: what seeds make of the rest stays as it is.
    if ((anchor_ + num_micro_batches_) % 2 == 0) training()["init_device"] = "meta";
    draw_normalization();
    if (!base_.is_exact() && !averages_ && dice_.one_in(3)) draw_clipping();
    if (dice_.one_in(4)) draw_frozen();
    if (dice_.one_in(2)) draw_inactive();
    if (!base_.model.is_elementwise() && dice_.one_in(3)) draw_tokens();
    if (is_narrow_) {
      draw_narrow();
    } else if (!averages_ && dice_.one_in(6)) {
      draw_wide();
    }
    if (!base_.model.is_elementwise()) draw_recomputed();
  }

 private:
  Json& fully_shard() { return json_["fully_shard"]; }
  Json& training() { return json_["training"]; }

  template <class T>
  const T& any_of(const std::vector<T>& list) {
    return list[static_cast<std::size_t>(dice_.below(static_cast<std::int64_t>(list.size())))];
  }

  /// Some of 0..count - 1, at least one.
  std::vector<std::int64_t> some_of(std::int64_t count) {
    std::vector<std::int64_t> numbers;
    for (std::int64_t i = 0; i < count; ++i) {
      if (dice_.one_in(2)) numbers.push_back(i);
    }
    if (numbers.empty()) numbers.push_back(dice_.below(count));
    return numbers;
  }

  void draw_micro_batches() {
    num_micro_batches_ = dice_.pick<std::int64_t>({1, 1, 1, 2, 2, 3});
    if (num_micro_batches_ == 1 && dice_.one_in(2)) return;
    training()["micro_batches"] = num_micro_batches_;
    if (training().contains("global_batch")) {
      training()["global_batch"] = base_.training.global_batch * num_micro_batches_;
    }
    const auto draw_syncs = [&](const char* key) {
      const std::int64_t kind = dice_.pick<std::int64_t>({0, 1, 2, 2, 3});
      if (kind == 1) training()[key] = "every";
      if (kind == 2) training()[key] = "last";
      if (kind == 3) {
        std::vector<bool> syncs;
        for (std::int64_t m = 0; m + 1 < num_micro_batches_; ++m)
          syncs.push_back(dice_.one_in(2));
        syncs.push_back(true);
        training()[key] = syncs;
      }
      return kind == 2;
    };
    syncs_last_ = draw_syncs("requires_gradient_sync");
    draw_syncs("requires_all_reduce");
  }

  /// Parts that divide the shard group may be kept between passes.
  void draw_resharding() {
    if (dice_.one_in(3)) fully_shard()["reshard_after_backward"] = false;
    const std::optional<int> dim = base_.roles.fsdp_shard_dim;
    if (!dim || !base_.fully_shard.shards_parameters || !dice_.one_in(3)) return;
    const std::int64_t size = base_.mesh.size(*dim);
    std::vector<std::int64_t> divisors;
    for (std::int64_t k = 1; k <= size; ++k) {
      if (size % k == 0) divisors.push_back(k);
    }
    // Those that are neither true nor false are what is special.
    const bool is_part = divisors.size() > 2 && !dice_.one_in(4);
    fully_shard()["reshard_after_forward"] =
        is_part ? divisors[static_cast<std::size_t>(
                      1 + dice_.below(static_cast<std::int64_t>(divisors.size()) - 2))]
                : any_of(divisors);
  }

  void draw_prefetch() {
    if (!dice_.one_in(3)) return;
    for (const char* key : {"forward_prefetch", "backward_prefetch"}) {
      if (!dice_.one_in(3)) fully_shard()[key] = dice_.pick<std::int64_t>({1, 1, 2, 3, 9});
    }
    // The root unit stays whole.
    const bool is_told =
        json_.value("fully_shard", Json::object()).contains("reshard_after_forward");
    if (!is_told && dice_.one_in(3)) fully_shard()["reshard_after_forward"] = nullptr;
  }

  /// Exact weights that are averaged have to move far, by a sum.
  void draw_normalization() {
    if ((averages_ && base_.is_exact()) || !dice_.one_in(4)) return;
    training()["loss_normalization"] = "global_tokens";
    // Weights are averaged by their mean whatever gradients are.
    if (averages_) fully_shard()["reduce_op"] = "avg";
  }

  void draw_clipping() {
    Json clip = {{"max_norm", dice_.pick({0.01, 0.1, 1.0, 100.0})}};
    const std::int64_t kind = dice_.below(4);
    if (kind == 0) clip["norm_type"] = 2;
    if (kind == 1) clip["norm_type"] = "inf";
    if (kind == 2) clip["norm_type"] = dice_.pick({1.0, 1.5, 3.0});
    training()["clip_grad_norm"] = std::move(clip);
  }

  void draw_frozen() {
    Json frozen = Json::array();
    for (std::size_t p = 0; p < base_.parameters.size(); ++p) {
      if (static_cast<std::int64_t>(p) == anchor_ || !dice_.one_in(2)) continue;
      const std::string& name = base_.parameters[p].name;
      if (base_.model.is_elementwise() && json_["parameters"][name].is_object()) {
        json_["parameters"][name]["frozen"] = true;
      } else {
        frozen.push_back(name);
      }
      if (dice_.one_in(2)) {
        training()["unfreeze_at"][name] = dice_.below(base_.training.steps);
      }
    }
    if (!frozen.empty()) training()["frozen"] = std::move(frozen);
  }

  [[nodiscard]] bool has_parameters(const ModelPart& part) const {
    return std::any_of(base_.parameters.begin(), base_.parameters.end(),
                       [&](const ParameterSpec& parameter) {
                         return part.first <= parameter.module && parameter.module < part.end;
                       });
  }

  [[nodiscard]] bool is_cut_by_tp_or_ep(const ModelPart& part) const {
    for (int p = 0; p < static_cast<int>(base_.parameters.size()); ++p) {
      const int module = base_.parameters[static_cast<std::size_t>(p)].module;
      if (module < part.first || module >= part.end) continue;
      for (const Placement& placement : placements_of(base_, p)) {
        if (is_cut(placement)) return true;
      }
    }
    return false;
  }

  /// Whether the input of a part can stand for its output.
  [[nodiscard]] bool can_be_identity(const ModelPart& part) const {
    if (base_.model.is_elementwise()) return true;
    const std::vector<ModuleSpec>& modules = base_.model.modules;
    const ModuleSpec& last = modules[static_cast<std::size_t>(part.end) - 1];
    if (part.end - part.first > 1) {
      return last.type == ModuleType::Add && last.inputs.at(1) == part.first;
    }
    switch (last.type) {
      case ModuleType::Relu:
      case ModuleType::Tanh:
      case ModuleType::Silu:
      case ModuleType::Gelu:
      case ModuleType::LayerNorm:
      case ModuleType::RmsNorm:
        return true;
      case ModuleType::Linear:
        return last.in_features == last.out_features && last.tied_to < 0 &&
               !is_cut_by_tp_or_ep(part);
      default:
        return false;
    }
  }

  /// Ranks with some of the coordinates along a mesh dim over which the batch is split, and which
  /// cuts no module; none if there is no such dim.
  std::vector<std::int64_t> some_ranks() {
    std::vector<int> dims;
    for (const auto& dim : {base_.roles.fsdp_shard_dim, base_.roles.dp_replicate_dim}) {
      if (dim && base_.mesh.size(*dim) > 1 && contains(base_.data.data_dims, *dim)) {
        dims.push_back(*dim);
      }
    }
    if (dims.empty()) return {};
    const int dim = any_of(dims);
    std::vector<std::int64_t> chosen = some_of(base_.mesh.size(dim));
    if (static_cast<std::int64_t>(chosen.size()) == base_.mesh.size(dim)) chosen.pop_back();
    std::vector<std::int64_t> ranks;
    for (std::int64_t rank = 0; rank < base_.mesh.num_ranks(); ++rank) {
      const Coordinate coordinate = base_.mesh.coordinate_of(Rank{rank});
      if (std::binary_search(chosen.begin(), chosen.end(),
                             coordinate[static_cast<std::size_t>(dim)])) {
        ranks.push_back(rank);
      }
    }
    return ranks;
  }

  void draw_inactive() {
    const int anchor = base_.parameters[static_cast<std::size_t>(anchor_)].module;
    std::vector<ModelPart> parts;
    for (const ModelPart& part : model_parts(base_.model)) {
      const bool has_anchor = part.first <= anchor && anchor < part.end;
      if (!has_anchor && can_be_identity(part)) parts.push_back(part);
    }
    int end = 0;
    while (!parts.empty()) {
      const ModelPart part = parts[static_cast<std::size_t>(
          dice_.below(std::min<std::int64_t>(2, static_cast<std::int64_t>(parts.size()))))];
      if (end == 0 || dice_.one_in(2)) add_inactive(part);
      end = part.end;
      parts.erase(std::remove_if(parts.begin(), parts.end(),
                                 [&](const ModelPart& other) { return other.first < end; }),
                  parts.end());
    }
  }

  void add_inactive(const ModelPart& part) {
    Json entry;
    entry[base_.model.is_elementwise() ? "params" : "modules"] = {part.name};
    if (dice_.one_in(2)) entry["steps"] = some_of(base_.training.steps);
    bool is_used_elsewhere = false;
    if (num_micro_batches_ > 1 && (syncs_last_ || dice_.one_in(2))) {
      std::vector<std::int64_t> passes = some_of(num_micro_batches_);
      if (static_cast<std::int64_t>(passes.size()) == num_micro_batches_) passes.pop_back();
      is_used_elsewhere = static_cast<std::int64_t>(passes.size()) < num_micro_batches_;
      entry["micro_batches"] = std::move(passes);
    }
    const std::vector<std::int64_t> ranks =
        dice_.one_in(3) ? std::vector<std::int64_t>{} : some_ranks();
    if (!ranks.empty()) {
      entry["ranks"] = ranks;
      // Or ranks would reduce different gradients.
      if (has_parameters(part) && !(syncs_last_ && is_used_elsewhere))
        training()["reduce_unused"] = true;
    }
    if (dice_.one_in(8)) training()["reduce_unused"] = true;
    json_["data"]["inactive"].push_back(std::move(entry));
  }

  /// In one of three, some parts of which none lies in another. Dice of its own, made of all that
  /// is drawn: what is rare among the rest stays where it is.
  void draw_recomputed() {
    Dice dice(fnv1a64(json_.dump()));
    if (!dice.one_in(3)) return;
    const std::vector<ModelPart> parts = model_parts(base_.model);
    Json patterns = Json::array();
    int end = 0;
    for (const ModelPart& part : parts) {
      if (part.first < end || !dice.one_in(3)) continue;
      patterns.push_back(part.name);
      end = part.end;
    }
    if (patterns.empty()) {
      const std::int64_t any = dice.below(static_cast<std::int64_t>(parts.size()));
      patterns.push_back(parts[static_cast<std::size_t>(any)].name);
    }
    training()["activation_checkpointing"] = std::move(patterns);
  }

  void draw_tokens() {
    const std::int64_t num_valid = base_.micro_batch_size() * num_positions(base_.model);
    const std::string normalization = training().value("loss_normalization", "local_mean");
    const std::int64_t least = normalization == "local_mean" ? 1 : 0;
    Json tokens = Json::array();
    for (std::int64_t rank = 0; rank < base_.num_data_ranks(); ++rank) {
      // Of the first rank, so that there is one; and a second, or causal attention chooses nothing.
      const auto number = [&] {
        const std::int64_t from = rank == 0 ? std::min<std::int64_t>(2, num_valid) : least;
        return from + dice_.below(num_valid - from + 1);
      };
      if (dice_.one_in(2)) {
        tokens.push_back(number());
        continue;
      }
      Json numbers = Json::array();
      for (std::int64_t m = 0; m < num_micro_batches_; ++m)
        numbers.push_back(number());
      tokens.push_back(std::move(numbers));
    }
    json_["data"]["tokens"] = std::move(tokens);
  }

  /// Weights that fully_shard ignores would not be cast.
  void cast_all_weights() {
    if (base_.model.is_elementwise() || !fully_shard().contains("ignored_params")) return;
    Json kept = Json::array();
    for (const Json& name : fully_shard()["ignored_params"]) {
      const auto text = name.get<std::string>();
      if (text.size() < 7 || text.substr(text.size() - 7) != ".weight") kept.push_back(name);
    }
    fully_shard()["ignored_params"] = std::move(kept);
  }

  /// Parameters have one dtype, are computed with in one, or in their own where nothing mixes them.
  void draw_parameter_dtypes(const std::string& other) {
    Json dtypes = Json::object();
    for (const ParameterSpec& parameter : base_.parameters) {
      if (dice_.one_in(2)) dtypes[parameter.name] = other;
    }
    if (!dtypes.empty()) json_["numerics"]["parameter_dtypes"] = std::move(dtypes);
  }

  /// What units give is cast again by the unit that takes it: where every module is a unit, or one
  /// unit holds all.
  [[nodiscard]] bool may_give_another() {
    if (base_.model.is_elementwise()) return true;
    if (!fully_shard().contains("units")) return !has_ties();
    return fully_shard()["units"].empty();
  }
  [[nodiscard]] bool has_ties() const {
    return std::any_of(base_.model.modules.begin(), base_.model.modules.end(),
                       [](const ModuleSpec& module) { return module.tied_to >= 0; });
  }
  /// Whether modules find what they take in the dtype in which they compute, cast or not.
  [[nodiscard]] bool may_leave_inputs(const std::string& param_dtype) {
    if (base_.model.is_elementwise()) return true;
    if (fully_shard()["mp_policy"].contains("output_dtype")) return false;
    return base_.model.modules.front().type == ModuleType::Embedding ||
           json_["numerics"]["dtype"] == param_dtype;
  }

  void draw_narrow() {
    const std::string narrow = dice_.pick({"bfloat16", "float16"});
    const std::string other = dice_.one_in(4) ? "float64" : "float32";
    Json& numerics = json_["numerics"];
    numerics["dtype"] = other;
    Json policy = Json::object();
    std::string param_dtype;
    const std::int64_t kind = dice_.below(6);
    if (kind == 0) numerics["dtype"] = narrow;
    if (kind == 1) param_dtype = narrow;
    if (kind == 2) policy["reduce_dtype"] = narrow;
    if (kind == 3) {
      if (dice_.one_in(2)) numerics["dtype"] = narrow;
      if (!base_.model.is_elementwise() || dice_.one_in(2)) {
        param_dtype = dice_.one_in(2) ? narrow : other;
      }
      draw_parameter_dtypes(numerics["dtype"] == narrow ? other : narrow);
    }
    if (kind == 4) {
      numerics["dtype"] = narrow;
      param_dtype = other;
    }
    if (kind == 5) {
      // Inputs have the dtype of compute, and some parameters do not.
      param_dtype = dice_.one_in(2) ? narrow : other;
      numerics["dtype"] = param_dtype;
      draw_parameter_dtypes(param_dtype == narrow ? other : narrow);
    }
    if (kind != 2 && dice_.one_in(2)) policy["reduce_dtype"] = dice_.pick({"float32", "float64"});
    finish(std::move(policy), param_dtype, dice_.one_in(2) ? narrow : other);
  }

  void draw_wide() {
    Json policy = Json::object();
    if (dice_.one_in(2)) policy["reduce_dtype"] = "float64";
    if (!json_["numerics"].contains("dtype")) json_["numerics"]["dtype"] = "float32";
    finish(std::move(policy), dice_.pick({"float32", "float64"}), "float64");
  }

  void finish(Json policy, const std::string& param_dtype, const std::string& output_dtype) {
    cast_all_weights();
    if (!param_dtype.empty()) policy["param_dtype"] = param_dtype;
    const bool casts = !param_dtype.empty() || base_.model.is_elementwise();
    if (casts && may_give_another() && dice_.one_in(3)) policy["output_dtype"] = output_dtype;
    fully_shard()["mp_policy"] = std::move(policy);
    if (casts && may_leave_inputs(param_dtype) && dice_.one_in(2)) {
      fully_shard()["mp_policy"]["cast_forward_inputs"] = false;
    }
  }

  Dice& dice_;
  Json& json_;
  bool is_narrow_;
  Scenario base_;  ///< as it is drawn without policies
  bool averages_;
  std::int64_t anchor_;  ///< the parameter that has a gradient in every pass
  std::int64_t num_micro_batches_ = 1;
  bool syncs_last_ = false;
};

}  // namespace

void draw_policies(Dice& dice, Json& scenario, bool is_narrow) {
  PolicyDraw(dice, scenario, is_narrow).draw();
}

}  // namespace hpsim::test
