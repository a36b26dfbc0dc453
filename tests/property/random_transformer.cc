#include "random_transformer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "random_policies.h"

namespace hpsim::test {
namespace {

using Json = nlohmann::ordered_json;

/// Draws one transformer; members are what later draws depend on.
class TransformerDraw {
 public:
  explicit TransformerDraw(Dice& dice) : dice_(dice) {}

  Json draw() {
    json_["hpsim"] = 1;
    json_["name"] = "random transformer";
    is_narrow_ = dice_.one_in(5);
    draw_mesh();
    draw_sizes();
    draw_model();
    if (tp_ > 0) draw_styles();
    draw_units();
    draw_training();
    if (dice_.one_in(3)) json_["numerics"] = {{"dtype", "float64"}};
    draw_policies(dice_, json_, is_narrow_);
    return json_;
  }

 private:
  void draw_mesh() {
    static const std::vector<std::vector<std::string>> kNames = {{"fsdp"},
                                                                 {"tp"},
                                                                 {"fsdp", "tp"},
                                                                 {"tp", "fsdp"},
                                                                 {"rep", "fsdp", "tp"},
                                                                 {"fsdp", "tp", "ep"},
                                                                 {"rep", "fsdp", "tp", "ep"}};
    names_ =
        kNames[static_cast<std::size_t>(dice_.below(static_cast<std::int64_t>(kNames.size())))];
    std::vector<std::int64_t> shape;
    std::int64_t num_ranks = 1;
    for (const std::string& name : names_) {
      std::int64_t size = dice_.pick<std::int64_t>({1, 2, 2, 4});
      if (size * num_ranks > 8) size = 1;
      if (name == "tp") tp_ = size;
      num_ranks *= size;
      shape.push_back(size);
    }
    json_["mesh"] = {{"shape", shape}, {"mesh_dim_names", names_}};
  }

  /// Heads divide over tp; a sequence is no shorter.
  void draw_sizes() {
    const std::int64_t tp = std::max<std::int64_t>(tp_, 1);
    kv_heads_ = tp * (is_narrow_ ? 1 : dice_.pick<std::int64_t>({1, 1, 2}));
    heads_ = kv_heads_ * (is_narrow_ ? 1 : dice_.pick<std::int64_t>({1, 2}));
    // At least four features: the norm of two is a step.
    dim_ = heads_ * (heads_ == 1 ? 4 : 2 + dice_.below(2));
    seq_ = tp + dice_.below(4);
    vocabulary_ = 3 + dice_.below(9);
    hidden_ = 2 + dice_.below(8);
  }

  Json norm() {
    return {{"name", "norm"}, {"type", dice_.one_in(2) ? "layer_norm" : "rms_norm"}, {"dim", dim_}};
  }

  Json residual(const char* name, Json body) {
    Json modules = Json::array();
    if (!dice_.one_in(5)) {
      modules.push_back(norm());
      has_norms_ = true;
    }
    modules.push_back(std::move(body));
    return {{"name", name}, {"type", "residual"}, {"modules", std::move(modules)}};
  }

  void draw_model() {
    has_tokens_ = !dice_.one_in(3);
    is_cross_entropy_ = dice_.one_in(2);
    Json model = Json::array();
    if (has_tokens_) {
      model.push_back({{"name", "tok"},
                       {"type", "embedding"},
                       {"num_embeddings", vocabulary_},
                       {"embedding_dim", dim_}});
    }
    Json block = Json::array();
    // Roundings of few bits grow with every module.
    has_attention_ = !is_narrow_ || dice_.one_in(2);
    has_mlp_ = !is_narrow_ || !has_attention_;
    if (has_attention_)
      block.push_back(residual("a", {{"name", "attn"},
                                     {"type", "attention"},
                                     {"dim", dim_},
                                     {"heads", heads_},
                                     {"kv_heads", kv_heads_},
                                     {"causal", !dice_.one_in(3)}}));
    if (has_mlp_)
      block.push_back(residual("m", {{"name", "mlp"},
                                     {"type", "mlp"},
                                     {"dim", dim_},
                                     {"hidden", hidden_},
                                     {"gated", !dice_.one_in(3)}}));
    model.push_back({{"name", "blocks"},
                     {"type", "repeat"},
                     {"count", is_narrow_ ? 1 : 1 + dice_.below(2)},
                     {"module", {{"type", "sequential"}, {"modules", std::move(block)}}}});
    has_last_norm_ = dice_.one_in(2);
    if (has_last_norm_) model.push_back(norm());
    has_output_ = is_cross_entropy_ || dice_.one_in(2);
    if (has_output_) {
      Json output = {{"name", "out"},
                     {"type", "linear"},
                     {"in_features", dim_},
                     {"out_features", vocabulary_},
                     {"bias", dice_.one_in(3)}};
      is_tied_ = has_tokens_ && dice_.one_in(3);
      if (is_tied_) output["tied_to"] = "tok.weight";
      model.push_back(std::move(output));
    }
    json_["model"] = std::move(model);
    json_["data"]["sample_shape"] = has_tokens_ ? Json{seq_} : Json{seq_, dim_};
    if (dice_.one_in(3)) draw_data_dims();
  }

  /// Modules tied to one weight must see the same samples: not cut along tp, whose modules take
  /// all.
  void draw_data_dims() {
    Json dims = Json::array();
    for (const std::string& name : names_) {
      if (dice_.one_in(2) && !(is_tied_ && name == "tp")) dims.push_back(name);
    }
    json_["data"]["data_dims"] = std::move(dims);
  }

  void draw_styles() {
    Json styles = Json::object();
    const bool cuts_sequence = dice_.one_in(2);
    const auto style = [&](const char* pattern, std::initializer_list<const char*> choices) {
      if (cuts_sequence) {
        styles[pattern] = "rowwise_sp";
      } else if (!dice_.one_in(5)) {
        styles[pattern] = dice_.pick(choices);
      }
    };
    if (has_attention_) style("**.attn", {"colwise", "rowwise_sp"});
    if (has_mlp_) style("**.mlp", {"colwise", "rowwise_sp"});
    if (has_tokens_) style("tok", {"colwise", "rowwise", "rowwise_sp"});
    if (cuts_sequence && has_norms_) styles["**.norm"] = "sequence_parallel";
    if (cuts_sequence && has_last_norm_) styles["norm"] = "sequence_parallel";
    if (has_output_ && is_tied_) {
      // A tied weight is cut alike for both.
      if (styles.contains("tok"))
        styles["out"] = styles["tok"] == "colwise" ? "rowwise" : "colwise";
    } else if (has_output_ && dice_.one_in(2)) {
      styles["out"] = dice_.pick({"colwise", "rowwise"});
    }
    if (!styles.empty()) json_["parallelize"] = std::move(styles);
  }

  /// Tied weights lie in one unit: the root unit.
  void draw_units() {
    Json fully_shard = Json::object();
    if (is_tied_ || dice_.one_in(2)) fully_shard["units"] = Json{"blocks.*"};
    if (dice_.one_in(3)) fully_shard["reshard_after_forward"] = false;
    if (dice_.one_in(5)) fully_shard["enable_param_shard"] = false;
    if (!fully_shard.empty()) json_["fully_shard"] = std::move(fully_shard);
  }

  void draw_training() {
    Json training = {{"steps", 1 + dice_.below(2)},
                     {"optimizer", {{"name", dice_.one_in(2) ? "sgd" : "adamw"}}}};
    if (is_cross_entropy_) training["loss"] = "cross_entropy";
    if (dice_.one_in(4)) training["loss_normalization"] = "sum";
    json_["training"] = std::move(training);
  }

  Dice& dice_;
  Json json_;
  std::vector<std::string> names_;
  std::int64_t tp_ = 0;  ///< size of the tp dim; 0: there is none
  std::int64_t heads_ = 1, kv_heads_ = 1, dim_ = 4, seq_ = 1, vocabulary_ = 3, hidden_ = 2;
  bool is_narrow_ = false;  ///< some dtype has 16 bits
  bool has_attention_ = true;
  bool has_mlp_ = true;
  bool has_tokens_ = false;
  bool has_norms_ = false;
  bool has_last_norm_ = false;
  bool has_output_ = false;
  bool is_tied_ = false;
  bool is_cross_entropy_ = false;
};

}  // namespace

std::string random_transformer(Dice& dice) {
  return TransformerDraw(dice).draw().dump(2);
}

}  // namespace hpsim::test
