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
      {"[2, 2]", R"(["tp", "mp"])", "{}", "mesh dims \"tp\" and \"mp\" are both tp_dim by name\n"},
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
  struct Row {
    const char* shape;
    const char* names;
    const char* value;
    std::optional<bool> shards;  ///< nothing: an error
  };
  const Row rows[] = {
      {"[4]", R"(["fsdp"])", "null", true},
      {"[4]", R"(["fsdp"])", "true", true},
      {"[4]", R"(["fsdp"])", "false", false},
      {"[4]", R"(["dp"])", "null", true},
      {"[4]", R"(["rep"])", "null", false},
      {"[4]", R"(["rep"])", "false", false},
      {"[4]", R"(["rep"])", "true", std::nullopt},
      {"[8]", R"(["tp"])", "null", false},
      {"[8]", R"(["tp"])", "false", false},
      {"[8]", R"(["tp"])", "true", std::nullopt},
      {"[2, 4]", R"(["tp", "ep"])", "null", false},
      {"[2, 4]", R"(["tp", "ep"])", "true", std::nullopt},
      {"[2, 4]", R"(["fsdp", "tp"])", "null", true},
      {"[2, 4]", R"(["fsdp", "tp"])", "false", false},
      {"[2, 2, 2]", R"(["rep", "fsdp", "tp"])", "null", true},
      {"[2, 2, 2, 1]", R"(["rep", "fsdp", "tp", "ep"])", "null", true},
      {"[2, 2, 2, 1]", R"(["rep", "fsdp", "tp", "ep"])", "false", false},
      {"[2, 4]", R"(["dp", "tp"])", "null", true},
  };
  for (const Row& row : rows) {
    INFO(row.names << " " << row.value);
    const std::string text =
        on_mesh(row.shape, row.names,
                fmt::format("\"fully_shard\": {{\"enable_param_shard\": {}}}", row.value));
    if (row.shards) {
      CHECK(parsed(text).fully_shard.shards_parameters == *row.shards);
    } else {
      CHECK(messages_of(text) == "enable_param_shard is true, but no mesh dim is fsdp_shard_dim\n");
    }
  }
  CHECK(messages_of(
            on_mesh("[2, 2]", R"(["x", "y"])", "\"fully_shard\": {\"enable_param_shard\": true}"))
            .find("mesh dim \"x\" has no role\nmesh dim \"y\" has no role\n") == 0);
}

TEST_CASE("tp and ep by name or by role; the batch is split over ep, not over tp") {
  const Scenario by_name = parsed(on_mesh("[2, 2, 2]", R"(["fsdp", "mp", "ep"])", "\"roles\": {}"));
  CHECK(by_name.roles.tp_dim == 1);
  CHECK(by_name.roles.ep_dim == 2);
  CHECK(by_name.data.data_dims == MeshDims{0, 2});
  const Scenario by_role = parsed(
      on_mesh("[2, 2]", R"(["x", "y"])", R"("roles": {"fsdp_shard_dim": "x", "tp_dim": "y"})"));
  CHECK(by_role.roles.tp_dim == 1);
  CHECK(by_role.data.data_dims == MeshDims{0});
}

TEST_CASE("shard_size splits the fsdp_shard_dim, and all that speaks of mesh dims") {
  const Scenario scenario = parsed(on_mesh(
      "[2, 8, 2]", R"(["rep", "dp", "tp"])",
      R"("roles": {"fsdp_shard_dim": "dp"}, "fully_shard": {"shard_size": 4},)"
      R"x("placements": {"weight": {"tp": "Shard(1)"}}, "data": {"data_dims": ["dp", "tp"]})x"));
  CHECK(scenario.mesh.shape() == std::vector<std::int64_t>{2, 2, 4, 2});
  CHECK(scenario.mesh.names({0, 1, 2, 3}) == "rep, dp.replicate, dp.shard, tp");
  CHECK(scenario.roles.dp_replicate_dim == 0);
  CHECK(scenario.roles.shard_replicate_dim == 1);
  CHECK(scenario.roles.fsdp_shard_dim == 2);
  CHECK(scenario.roles.tp_dim == 3);
  CHECK(scenario.data.data_dims == MeshDims{1, 2, 3});
  CHECK(placements_of(scenario, 0) ==
        std::vector<Placement>{Replicate{}, Replicate{}, Replicate{}, Shard{1}});
  // Rank 13 sat at (0, 6, 1): the second half of dp, third in its shard group.
  CHECK(scenario.mesh.coordinate_of(Rank{13}) == Coordinate{0, 1, 2, 1});
  const Scenario whole = parsed(on_mesh("[8]", R"(["dp"])", R"("fully_shard": {"shard_size": 8})"));
  CHECK(whole.mesh.num_dims() == 1);
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
