#include <fmt/format.h>

#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

struct RolesRow {
  const char* shape;
  const char* names;
  const char* roles;  ///< nullptr: none
  std::optional<int> fsdp;
  std::optional<int> replicate;
  MeshDims data_dims;
  bool shards;
};

TEST_CASE("roles come from names unless roles says otherwise") {
  const RolesRow rows[] = {
      {"[4]", R"(["fsdp"])", nullptr, 0, {}, {0}, true},
      {"[4]", R"(["dp_shard"])", nullptr, 0, {}, {0}, true},
      {"[4]", R"(["shard"])", nullptr, 0, {}, {0}, true},
      {"[4]", R"(["dp"])", nullptr, 0, {}, {0}, true},
      {"[4]", R"(["rep"])", nullptr, {}, 0, {0}, false},
      {"[4]", R"(["dp_replicate"])", nullptr, {}, 0, {0}, false},
      {"[4]", R"(["dp_rep"])", nullptr, {}, 0, {0}, false},
      {"[4]", R"(["replicate"])", nullptr, {}, 0, {0}, false},
      {"[4]", R"(["ddp"])", nullptr, {}, 0, {0}, false},
      {"[2, 4]", R"(["dp", "fsdp"])", nullptr, 1, 0, {0, 1}, true},
      {"[2, 4]", R"(["fsdp", "dp"])", nullptr, 0, 1, {0, 1}, true},
      {"[2, 4]", R"(["rep", "dp"])", nullptr, 1, 0, {0, 1}, true},
      {"[4]", R"(["fsdp"])", R"({"fsdp_shard_dim": null})", {}, {}, {}, false},
      {"[4]", R"(["dp"])", R"({"fsdp_shard_dim": null})", {}, {}, {}, false},
      {"[4]", R"(["dp"])", R"({"dp_replicate_dim": "dp"})", {}, 0, {0}, false},
      {"[4]", R"(["fsdp"])", R"({"dp_replicate_dim": "fsdp"})", {}, 0, {0}, false},
      {"[2, 4]", R"(["rep", "fsdp"])", R"({"dp_replicate_dim": null})", 1, {}, {1}, true},
      {"[2, 4]",
       R"(["a", "b"])",
       R"({"fsdp_shard_dim": "a", "dp_replicate_dim": "b"})",
       0,
       1,
       {0, 1},
       true},
      {"[2, 4]", R"(["a", "dp"])", R"({"fsdp_shard_dim": "a"})", 0, 1, {0, 1}, true},
      {"[2, 4]", R"(["fsdp", "tp"])", R"({"tp_dim": null})", 0, {}, {0}, true},
      {"[2, 4]", R"(["ep", "fsdp"])", R"({"ep_dim": null})", 1, {}, {1}, true},
  };
  for (const RolesRow& row : rows) {
    INFO(row.names << " " << (row.roles == nullptr ? "" : row.roles));
    const Scenario scenario = parsed(
        on_mesh(row.shape, row.names, row.roles ? fmt::format("\"roles\": {}", row.roles) : ""));
    CHECK(scenario.roles.fsdp_shard_dim == row.fsdp);
    CHECK(scenario.roles.dp_replicate_dim == row.replicate);
    CHECK(scenario.data.data_dims == row.data_dims);
    CHECK(scenario.fully_shard.shards_parameters == row.shards);
  }
}

TEST_CASE("roles that cannot be told are refused") {
  struct Row {
    const char* shape;
    const char* names;
    const char* roles;
    const char* message;
  };
  const Row rows[] = {
      {"[2, 2]", R"(["fsdp", "shard"])", "{}",
       "mesh dims \"fsdp\" and \"shard\" are both fsdp_shard_dim by name\n"},
      {"[2, 2]", R"(["rep", "ddp"])", "{}",
       "mesh dims \"rep\" and \"ddp\" are both dp_replicate_dim by name\n"},
      {"[2, 2]", R"(["x", "y"])", "{}", "mesh dim \"x\" has no role\nmesh dim \"y\" has no role\n"},
      {"[2, 2]", R"(["a", "fsdp"])", R"({"fsdp_shard_dim": "a"})",
       "mesh dim \"fsdp\" has no role: \"roles\" gives fsdp_shard_dim to \"a\"\n"},
      {"[2, 2]", R"(["fsdp", "mp"])", "{}",
       "not supported yet: mesh dim \"mp\", by its name the tp_dim\n"},
      {"[4]", R"(["fsdp"])", R"({"fsdp_shard_dim": "fsdp", "dp_replicate_dim": "fsdp"})",
       "mesh dim \"fsdp\" is given two roles\n"},
      {"[4]", R"(["Fsdp"])", "{}", "mesh dim \"Fsdp\" has no role\n"},
      {"[4]", R"(["dp"])", R"({"fsdp_shard_dim": "dq"})", "no mesh dim has the name \"dq\"\n"},
  };
  for (const Row& row : rows) {
    INFO(row.names << " " << row.roles);
    CHECK(messages_of(on_mesh(row.shape, row.names, fmt::format("\"roles\": {}", row.roles))) ==
          row.message);
  }
}

TEST_CASE("enable_param_shard wins over what the roles imply") {
  const auto with = [](const char* name, const char* value) {
    return on_mesh("[4]", fmt::format("[\"{}\"]", name),
                   fmt::format("\"fully_shard\": {{\"enable_param_shard\": {}}}", value));
  };
  CHECK(parsed(with("fsdp", "true")).fully_shard.shards_parameters);
  CHECK_FALSE(parsed(with("fsdp", "false")).fully_shard.shards_parameters);
  CHECK(parsed(with("fsdp", "null")).fully_shard.shards_parameters);
  CHECK_FALSE(parsed(with("rep", "false")).fully_shard.shards_parameters);
  CHECK_FALSE(parsed(with("rep", "null")).fully_shard.shards_parameters);
  CHECK(messages_of(with("rep", "true")) ==
        "enable_param_shard is true, but no mesh dim is fsdp_shard_dim\n");
}

TEST_CASE("data_dims may be any mesh dims, in any order") {
  const auto with = [](const char* dims) {
    return on_mesh("[2, 4]", R"(["rep", "fsdp"])",
                   fmt::format("\"data\": {{\"data_dims\": {}}}", dims));
  };
  CHECK(parsed(with(R"(["fsdp", "rep"])")).data.data_dims == MeshDims{0, 1});
  CHECK(parsed(with(R"(["fsdp"])")).num_data_ranks() == 4);
  CHECK(parsed(with("[]")).num_data_ranks() == 1);
  CHECK(parsed(with("[]")).training.global_batch == 2);
}

}  // namespace
}  // namespace hpsim
