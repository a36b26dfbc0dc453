#include "random_scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "random_policies.h"

namespace hpsim::test {
namespace {

using Json = nlohmann::ordered_json;

/// Draws one scenario; members are what later draws depend on.
class ScenarioDraw {
 public:
  explicit ScenarioDraw(Dice& dice) : dice_(dice) {}

  Json draw() {
    json_["hpsim"] = 1;
    json_["name"] = "random";
    is_exact_ = dice_.one_in(4);
    draw_mesh();
    draw_sync_object();
    is_narrow_ = !averages_ && dice_.one_in(4);
    draw_sharding();
    if (!dice_.one_in(3)) {
      draw_modules();
    } else {
      draw_parameters();
    }
    draw_units();
    draw_scaling();
    draw_training();
    draw_data();
    Json numerics = {{"dtype", dice_.one_in(3) ? "float64" : "float32"}};
    if (is_exact_) numerics["mode"] = "exact";
    json_["numerics"] = std::move(numerics);
    if (!fully_shard_.empty()) json_["fully_shard"] = fully_shard_;
    draw_policies(dice_, json_, is_narrow_);
    return json_;
  }

 private:
  [[nodiscard]] bool maybe(std::int64_t in) { return dice_.one_in(in); }

  /// Names tell the roles, but for x, which has none.
  void draw_mesh() {
    static const std::vector<std::vector<std::string>> kNames = {{"fsdp"},
                                                                 {"fsdp"},
                                                                 {"rep"},
                                                                 {"tp"},
                                                                 {"x"},
                                                                 {"dp"},
                                                                 {"rep", "fsdp"},
                                                                 {"rep", "fsdp"},
                                                                 {"fsdp", "rep"},
                                                                 {"fsdp", "tp"},
                                                                 {"fsdp", "tp"},
                                                                 {"tp", "fsdp"},
                                                                 {"fsdp", "ep"},
                                                                 {"dp", "tp"},
                                                                 {"x", "fsdp"},
                                                                 {"rep", "x"},
                                                                 {"tp", "ep"},
                                                                 {"rep", "tp"},
                                                                 {"rep", "fsdp", "tp"},
                                                                 {"fsdp", "ep", "tp"},
                                                                 {"rep", "ep", "fsdp"},
                                                                 {"fsdp", "x", "tp"},
                                                                 {"tp", "rep", "ep"},
                                                                 {"rep", "fsdp", "ep", "tp"},
                                                                 {"tp", "fsdp", "rep", "ep"}};
    names_ =
        kNames[static_cast<std::size_t>(dice_.below(static_cast<std::int64_t>(kNames.size())))];
    std::int64_t left = 12;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      shape_.push_back(1 +
                       dice_.below(names_.size() >= 3 ? std::min<std::int64_t>(left, 3) : left));
      left /= shape_.back();
    }
    const std::int64_t num_ranks =
        std::accumulate(shape_.begin(), shape_.end(), std::int64_t{1}, std::multiplies<>());
    Json mesh = {{"shape", shape_}, {"mesh_dim_names", names_}};
    if (maybe(3)) {
      std::vector<std::int64_t> ranks(static_cast<std::size_t>(num_ranks));
      std::iota(ranks.begin(), ranks.end(), std::int64_t{0});
      for (std::int64_t i = num_ranks - 1; i > 0; --i) {
        std::swap(ranks[static_cast<std::size_t>(i)],
                  ranks[static_cast<std::size_t>(dice_.below(i + 1))]);
      }
      mesh["ranks"] = ranks;
    }
    json_["mesh"] = std::move(mesh);
    if (size_of("x") > 0) {
      // The only way to have a dim without a role: a role that its name could have is null.
      rename("x", "mp");
      if (size_of("tp") > 0) {
        json_["roles"] = {{"tp_dim", "tp"}, {"ep_dim", "mp"}};
        is_ep_mp_ = true;
      } else {
        json_["roles"] = {{"tp_dim", nullptr}};
      }
    }
  }

  /// Weights of whole copies may be averaged; exactly where no number of ranks has other factors
  /// than 2.
  void draw_sync_object() {
    averages_ = maybe(5);
    if (!averages_) return;
    fully_shard_["sync_object"] = "weight";
    for (const std::int64_t size : shape_) {
      if ((size & (size - 1)) != 0) is_exact_ = false;
    }
  }

  void rename(const std::string& from, const std::string& to) {
    std::replace(names_.begin(), names_.end(), from, to);
    json_["mesh"]["mesh_dim_names"] = names_;
  }

  /// 0 if there is no such dim.
  [[nodiscard]] std::int64_t size_of(const std::string& name) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    return found == names_.end() ? 0 : shape_[static_cast<std::size_t>(found - names_.begin())];
  }
  [[nodiscard]] std::string shard_dim() const {
    for (const char* name : {"fsdp", "dp"}) {
      if (size_of(name) > 0) return name;
    }
    return {};
  }
  /// Dims on which placements may be written.
  [[nodiscard]] std::vector<std::string> placed_dims() const {
    std::vector<std::string> dims;
    for (const std::string& name : names_) {
      if (name == "tp" || name == "ep" || (name == "mp" && is_ep_mp_)) dims.push_back(name);
    }
    return dims;
  }

  void draw_sharding() {
    const std::string dim = shard_dim();
    num_shards_ = dim.empty() ? 0 : size_of(dim);
    if (averages_ && num_shards_ > 0) {
      const std::int64_t way = dice_.below(3);
      if (way == 0) fully_shard_["enable_param_shard"] = false;
      if (way == 1) fully_shard_["shard_size"] = 1;
      if (way == 2) fully_shard_["min_shard_bytes"] = 1 << 20;
      num_shards_ = way == 1 ? 1 : 0;
    } else if (num_shards_ > 0 && maybe(6)) {
      fully_shard_["enable_param_shard"] = false;
      num_shards_ = 0;
    }
    if (num_shards_ > 0 && !averages_ && maybe(3)) {
      std::vector<std::int64_t> divisors;
      for (std::int64_t d = 1; d <= num_shards_; ++d) {
        if (num_shards_ % d == 0) divisors.push_back(d);
      }
      num_shards_ = divisors[static_cast<std::size_t>(
          dice_.below(static_cast<std::int64_t>(divisors.size())))];
      fully_shard_["shard_size"] = num_shards_;
    }
    if (maybe(3)) fully_shard_["chunking"] = "balanced";
    fully_shard_["vocabulary"] = dice_.pick({"ragged", "ragged", "uneven_flag", "torch"});
    if (!averages_ && maybe(5)) fully_shard_["min_shard_bytes"] = dice_.pick({1, 64, 200});
    fully_shard_["reshard_after_forward"] = maybe(2);
  }

  std::int64_t draw_size() { return dice_.pick<std::int64_t>({1, 2, 3, 5, 7, 8, 11, 13}); }

  /// Ranks by which placements cut each tensor dim.
  std::vector<std::int64_t> draw_placements(std::size_t num_dims, Json& placements) {
    std::vector<std::int64_t> ways(num_dims, 1);
    const std::vector<std::string> dims = placed_dims();
    std::vector<std::int64_t> cut(dims.size(), -1);
    for (std::size_t i = 0; i < dims.size(); ++i) {
      if (maybe(3)) continue;
      cut[i] = dice_.below(static_cast<std::int64_t>(num_dims));
      ways[static_cast<std::size_t>(cut[i])] *= size_of(dims[i]);
      placements[dims[i]] = fmt::format("Shard({})", cut[i]);
    }
    if (dims.size() == 2 && cut[0] >= 0 && cut[0] == cut[1] && maybe(2)) {
      // The right one cuts first.
      placements[dims[0]] = fmt::format("StridedShard({}, {})", cut[0], size_of(dims[1]));
    }
    return ways;
  }

  void draw_parameters() {
    const std::int64_t count = 1 + dice_.below(4);
    Json parameters;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::string name = fmt::format("p{}", i);
      names_of_parameters_.push_back(name);
      std::vector<std::int64_t> shape(static_cast<std::size_t>(1 + dice_.below(3)));
      for (std::int64_t& size : shape)
        size = draw_size();
      Json placements = Json::object();
      const std::vector<std::int64_t> ways = draw_placements(shape.size(), placements);
      if (num_shards_ > 0) draw_shard_placement(name, ways, shape);
      if (placements.empty() || maybe(2)) {
        parameters[name] = shape;
        if (!placements.empty()) json_["placements"][name] = placements;
      } else {
        parameters[name] = {{"shape", shape}, {"placements", placements}};
      }
    }
    json_["parameters"] = std::move(parameters);
  }

  /// May change the shape so that the cut is possible.
  void draw_shard_placement(const std::string& name, const std::vector<std::int64_t>& ways,
                            std::vector<std::int64_t>& shape) {
    Json& placements = fully_shard_["shard_placement"];
    const auto num_dims = static_cast<std::int64_t>(shape.size());
    const std::int64_t kind = dice_.below(4);
    if (kind == 0) {
      const std::int64_t dim = dice_.below(num_dims);
      placements[name] = maybe(2) ? dim : dim - num_dims;
      const auto at = static_cast<std::size_t>(dim);
      if (dim > 0) shape[at] = num_shards_ * ways[at] * (1 + dice_.below(2));
    } else if (kind == 1) {
      const std::int64_t num_cut = 1 + dice_.below(num_dims);
      std::vector<int> dims(static_cast<std::size_t>(num_cut));
      std::iota(dims.begin(), dims.end(), 0);
      std::vector<std::int64_t> units;
      for (std::int64_t i = 0; i < num_shards_; ++i)
        units.push_back(dice_.below(4));
      units[0] += 1;
      const std::int64_t sum = std::accumulate(units.begin(), units.end(), std::int64_t{0});
      // Even cuts by TP, so that the cells are the same on all ranks.
      for (std::size_t d = 0; d < static_cast<std::size_t>(num_cut); ++d) {
        shape[d] = ways[d] * dice_.pick<std::int64_t>({1, 2, 3});
      }
      shape[static_cast<std::size_t>(dice_.below(num_cut))] *= sum;
      placements[name] = {{"dims", dims}, {"local_units", units}};
    }
    if (placements.is_null()) fully_shard_.erase("shard_placement");
  }

  /// A style, placements, or both, of a linear; by how many ranks they cut its columns.
  std::int64_t draw_parallelism(const std::string& name, bool has_bias) {
    const std::vector<std::string> dims = placed_dims();
    std::vector<int> cut(dims.size(), -1);  // tensor dim
    const auto tp = std::find(dims.begin(), dims.end(), "tp");
    if (tp != dims.end() && !hands_on_terms_ && !maybe(3)) {
      const int style = static_cast<int>(dice_.below(3)) - 1;
      json_["parallelize"][name] = style < 0 ? "replicate" : style == 0 ? "colwise" : "rowwise";
      cut[static_cast<std::size_t>(tp - dims.begin())] = style;
    }
    Json weight = Json::object();
    Json bias = Json::object();
    std::vector<bool> is_written(dims.size(), false);
    const bool cuts_alike = hands_on_terms_ || maybe(4);  // all mesh dims the same tensor dim
    const int common = hands_on_terms_ ? 1 : static_cast<int>(dice_.below(2));
    for (std::size_t i = 0; i < dims.size(); ++i) {
      if (!cuts_alike && !maybe(3)) continue;
      is_written[i] = true;
      cut[i] = cuts_alike ? common : static_cast<int>(dice_.below(3)) - 1;
      weight[dims[i]] = cut[i] < 0 ? "Replicate" : fmt::format("Shard({})", cut[i]);
      bias[dims[i]] = cut[i] == 0 ? "Shard(0)" : "Replicate";
    }
    if (dims.size() == 2 && is_written[0] && cut[0] >= 0 && cut[0] == cut[1] && maybe(2)) {
      // The right one cuts first.
      const std::int64_t factor = size_of(dims[1]);
      weight[dims[0]] = fmt::format("StridedShard({}, {})", cut[0], factor);
      if (cut[0] == 0) bias[dims[0]] = weight[dims[0]];
    }
    if (!weight.empty()) {
      json_["placements"][name + ".weight"] = weight;
      if (has_bias) json_["placements"][name + ".bias"] = bias;
    }
    std::int64_t ways = 1;
    for (std::size_t i = 0; i < dims.size(); ++i) {
      if (cut[i] == 1) ways *= size_of(dims[i]);
    }
    return ways;
  }

  void draw_modules() {
    Json model = Json::array();
    // Exact integers grow with every layer.
    const std::int64_t num_linear = 1 + dice_.below(is_exact_ ? 2 : is_narrow_ ? 3 : 4);
    std::int64_t features = draw_size();
    std::string last;  // with as many inputs as outputs
    hands_on_terms_ = maybe(5);
    for (std::int64_t i = 0; i < num_linear; ++i) {
      const bool is_bare = maybe(hands_on_terms_ ? 2 : 4);
      if (is_bare == (i == 0)) {
        if (i == 0) json_["data"]["sample_shape"] = {features};
        Json activation = {
            {"name", fmt::format("a{}", i)},
            {"type", is_exact_ ? "relu" : dice_.pick({"relu", "tanh", "silu", "gelu"})}};
        if (activation["type"] == "gelu" && maybe(2)) activation["approximate"] = "tanh";
        model.push_back(std::move(activation));
      }
      const std::string name = fmt::format("l{}", i);
      const std::int64_t out = maybe(3) ? features : draw_size();
      if (!last.empty() && out == features && maybe(2)) {
        // One unit holds what both use.
        model.push_back({{"name", name},
                         {"type", "linear"},
                         {"in_features", features},
                         {"out_features", out},
                         {"tied_to", last}});
        has_ties_ = true;
        continue;
      }
      const bool has_bias = maybe(2);
      const std::int64_t ways = draw_parallelism(name, has_bias);
      // Columns that divide may be cut.
      if (num_shards_ > 0 && features % (num_shards_ * ways) == 0 && maybe(2)) {
        fully_shard_["shard_placement"][name + ".weight"] = 1;
      }
      model.push_back({{"name", name},
                       {"type", "linear"},
                       {"in_features", features},
                       {"out_features", out},
                       {"bias", has_bias}});
      names_of_units_.push_back(name);
      names_of_parameters_.push_back(name + ".weight");
      if (has_bias) names_of_parameters_.push_back(name + ".bias");
      last = out == features && placed_dims().empty() ? name : "";
      features = out;
    }
    json_["model"] = std::move(model);
  }

  void draw_units() {
    if (names_of_units_.empty()) names_of_units_ = names_of_parameters_;
    if (has_ties_) fully_shard_["units"] = Json::array();
    if (has_ties_ || maybe(2)) return;
    Json units = Json::array();
    for (const std::string& name : names_of_units_) {
      if (maybe(2)) units.push_back(name);
    }
    fully_shard_["units"] = std::move(units);
  }

  void draw_scaling() {
    fully_shard_["reduce_op"] = averages_ || maybe(2) ? "avg" : "sum";
    if (maybe(3)) {
      fully_shard_["gradient_scaling_factor"] = is_exact_ ? 2 : dice_.pick({2.0, 0.5, 3.0});
    }
    if (!averages_ && maybe(4)) {
      fully_shard_["gradient_divide_factor"] = is_exact_ ? 4 : dice_.pick({2.0, 7.0, 300.0});
    }
    for (const std::string& name : names_of_parameters_) {
      if (maybe(5)) {
        fully_shard_["replicate_params"].push_back(name);
      } else if (!averages_ && maybe(6)) {
        fully_shard_["ignored_params"].push_back(name);
      }
    }
  }

  /// Names of the dims over which the batch is split: by default those of fully_shard and ep.
  std::vector<std::string> draw_data_dims() {
    const bool is_default = !averages_ && !maybe(3);
    const bool has_domain =
        !shard_dim().empty() || std::find(names_.begin(), names_.end(), "rep") != names_.end();
    std::vector<std::string> dims;
    for (const std::string& name : names_) {
      const bool is_in_domain = !has_domain || name == "fsdp" || name == "dp" || name == "rep";
      if (averages_) {
        // Copies are averaged within the fully_shard domain only.
        if (is_in_domain && !maybe(4)) dims.push_back(name);
        continue;
      }
      const bool has_role = name == "fsdp" || name == "dp" || name == "rep" || name == "ep" ||
                            (name == "mp" && is_ep_mp_);
      if (is_default ? has_role : maybe(2)) dims.push_back(name);
    }
    if (!is_default) json_["data"]["data_dims"] = dims;
    return dims;
  }

  /// Exact numbers in few bits are small.
  void draw_data() {
    json_["data"]["seed"] = dice_.below(1000);
    if (!is_exact_ || !is_narrow_) return;
    for (const char* key : {"init", "input", "target"})
      json_["data"][key] = {{"kind", "integer"}, {"max", 1}};
  }

  void draw_training() {
    std::int64_t num_data_ranks = 1;
    for (const std::string& dim : draw_data_dims())
      num_data_ranks *= size_of(dim);
    Json training = {{"steps", 1 + dice_.below(3)},
                     {"global_batch", num_data_ranks * (1 + dice_.below(3))}};
    const bool moves_far = averages_ && is_exact_;  // or ranks round to the weight they came from
    if (moves_far || maybe(3)) training["loss_normalization"] = "sum";
    Json optimizer;
    if (is_exact_) {
      const double momentum = dice_.pick({0.0, 0.5});
      optimizer = {{"name", "sgd"}, {"momentum", momentum}};
      if (moves_far) optimizer["lr"] = 0.25;
      if (momentum != 0) optimizer["nesterov"] = maybe(2);
    } else if (averages_ || maybe(2)) {
      const double momentum = dice_.pick({0.0, 0.9});
      optimizer = {{"name", "sgd"}, {"lr", 0.01}, {"momentum", momentum}};
      if (momentum != 0) optimizer["nesterov"] = maybe(2);
    } else {
      optimizer = {{"name", dice_.pick({"adam", "adamw"})}, {"lr", 0.001}};
    }
    if (!is_exact_ && maybe(3)) optimizer["weight_decay"] = 0.01;
    training["optimizer"] = std::move(optimizer);
    json_["training"] = std::move(training);
  }

  Dice& dice_;
  Json json_;
  Json fully_shard_ = Json::object();
  std::vector<std::string> names_;
  std::vector<std::int64_t> shape_;
  std::int64_t num_shards_ = 0;  ///< 0: parameters are not cut
  bool is_exact_ = false;
  bool averages_ = false;   ///< sync_object "weight"
  bool is_narrow_ = false;  ///< some dtype has 16 bits
  bool has_ties_ = false;
  bool is_ep_mp_ = false;
  bool hands_on_terms_ = false;  ///< all linears are cut by columns, and none asks for the sum
  std::vector<std::string> names_of_parameters_;
  std::vector<std::string> names_of_units_;
};

}  // namespace

std::string random_scenario(Dice& dice) {
  return ScenarioDraw(dice).draw().dump(1);
}

}  // namespace hpsim::test
