#include "random_experts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "random_policies.h"

namespace hpsim::test {
namespace {

using Json = nlohmann::ordered_json;

class ExpertsDraw {
 public:
  explicit ExpertsDraw(Dice& dice) : dice_(dice) {}

  Json draw() {
    json_["hpsim"] = 1;
    json_["name"] = "random experts";
    draw_mesh();
    draw_model();
    draw_cuts();
    draw_training();
    if (dice_.one_in(3)) json_["numerics"] = {{"dtype", "float64"}};
    draw_policies(dice_, json_, dice_.one_in(4));
    return json_;
  }

 private:
  void draw_mesh() {
    std::vector<std::string> names = {"ep"};
    for (const char* name : {"fsdp", "tp", "rep"}) {
      if (dice_.one_in(2)) names.emplace_back(name);
    }
    for (std::size_t i = names.size(); i-- > 1;)
      std::swap(names[i],
                names[static_cast<std::size_t>(dice_.below(static_cast<std::int64_t>(i) + 1))]);
    std::vector<std::int64_t> shape;
    std::int64_t num_ranks = 1;
    for (const std::string& name : names) {
      std::int64_t size = name == "ep" ? dice_.pick<std::int64_t>({1, 2, 2, 3, 4})
                                       : dice_.pick<std::int64_t>({1, 2, 2, 3, 4, 4});
      if (size * num_ranks > 8) size = 1;
      if (name == "ep") ep_ = size;
      if (name == "tp") tp_ = size;
      num_ranks *= size;
      shape.push_back(size);
    }
    json_["mesh"] = {{"shape", shape}, {"mesh_dim_names", names}};
    if (!dice_.one_in(3)) return;
    Json dims = Json::array();
    for (const std::string& name : names) {
      if (dice_.one_in(2)) dims.push_back(name);
    }
    json_["data"]["data_dims"] = std::move(dims);
  }

  void draw_model() {
    dim_ = 4 + dice_.below(5);
    experts_over_tp_ = tp_ > 1 && dice_.one_in(4);
    const std::int64_t num_parts = ep_ * (experts_over_tp_ ? tp_ : 1);
    const std::int64_t experts = num_parts * (1 + dice_.below(3));
    const Json moe = {
        {"name", "moe"},      {"type", "moe"},
        {"dim", dim_},        {"hidden", 1 + dice_.below(8)},
        {"experts", experts}, {"top_k", 1 + dice_.below(std::min<std::int64_t>(experts, 4))}};
    Json model = Json::array();
    const std::int64_t before = dice_.below(3);
    if (before == 0) model.push_back({{"name", "norm"}, {"type", "rms_norm"}, {"dim", dim_}});
    if (before == 1) {
      model.push_back(
          {{"name", "lin"}, {"type", "linear"}, {"in_features", 5}, {"out_features", dim_}});
    }
    is_residual_ = before != 2 && dice_.one_in(2);
    if (is_residual_) {
      model.push_back({{"name", "r"}, {"type", "residual"}, {"modules", Json::array({moe})}});
    } else {
      model.push_back(moe);
    }
    if (dice_.one_in(2)) {
      model.push_back({{"name", "out"},
                       {"type", "linear"},
                       {"in_features", dim_},
                       {"out_features", 2 + dice_.below(4)}});
    }
    json_["model"] = std::move(model);
    const std::int64_t features = before == 1 ? 5 : dim_;
    const bool has_sequence = dice_.one_in(2);
    json_["data"]["sample_shape"] =
        has_sequence ? Json{1 + dice_.below(4), features} : Json{features};
  }

  /// Experts stay whole, or are cut over ep; over tp too, or inside.
  void draw_cuts() {
    const std::string moe = is_residual_ ? "r.moe" : "moe";
    if (!dice_.one_in(6)) json_["parallelize"][moe] = "expert";
    if (experts_over_tp_) {
      json_["placements"][moe + ".experts.*"]["tp"] = "Shard(0)";
    } else if (tp_ > 0 && dice_.one_in(2)) {
      json_["placements"][moe + ".experts.w1"]["tp"] = "Shard(1)";
      json_["placements"][moe + ".experts.w3"]["tp"] = "Shard(1)";
      json_["placements"][moe + ".experts.w2"]["tp"] = "Shard(2)";
    }
    Json fully_shard = Json::object();
    if (dice_.one_in(2)) fully_shard["units"] = Json::array();
    if (dice_.one_in(3)) fully_shard["reduce_op"] = "sum";
    if (dice_.one_in(5)) fully_shard["gradient_divide_factor"] = 3;
    if (dice_.one_in(4)) fully_shard["reshard_after_forward"] = false;
    if (!fully_shard.empty()) json_["fully_shard"] = std::move(fully_shard);
  }

  void draw_training() {
    Json training = {{"steps", 1 + dice_.below(2)},
                     {"optimizer", {{"name", dice_.one_in(2) ? "sgd" : "adamw"}}}};
    if (dice_.one_in(3)) training["loss"] = "cross_entropy";
    if (dice_.one_in(3)) training["loss_normalization"] = "sum";
    json_["training"] = std::move(training);
  }

  Dice& dice_;
  Json json_;
  std::int64_t ep_ = 1;
  std::int64_t tp_ = 0;  ///< size of the tp dim; 0: there is none
  std::int64_t dim_ = 4;
  bool experts_over_tp_ = false;
  bool is_residual_ = false;
};

}  // namespace

std::string random_experts(Dice& dice) {
  return ExpertsDraw(dice).draw().dump(2);
}

}  // namespace hpsim::test
