#include "scenario/parse.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "scenario/check_types.h"
#include "scenario/inactive.h"
#include "scenario/sections.h"
#include "scenario/validate.h"

namespace hpsim {
namespace {

/// A file of another format version is wrong in that alone.
void check_version(const JsonText& text, Problems& problems) {
  if (!text.root().is_object()) return;
  const auto version = text.root().find("hpsim");
  if (version == text.root().end() || !version->is_number_integer() || *version == 1) return;
  problems.add(JsonCursor{&text.root(), ""}.member("hpsim", *version),
               fmt::format("format version {}, but this hpsim reads version 1", version->dump()),
               "write \"hpsim\": 1");
  problems.throw_if_any();
}

std::string stem_of(const std::string& file) {
  const std::string stem = std::filesystem::path(file).stem().string();
  return stem.empty() ? "scenario" : stem;
}

/// Sorted keys, no comments, no blanks: what the file says, not how.
std::string hash_of(const Json& root) {
  return fmt::format("{:016x}", fnv1a64(nlohmann::json(root).dump()));
}

/// Looking keys up takes a time that grows with their square.
void check_expect_sizes(const JsonCursor& at, Problems& problems) {
  constexpr std::size_t kMostKeys = 1000;
  if (at.value->is_array()) {
    for (std::size_t i = 0; i < at.value->size(); ++i)
      check_expect_sizes(at.element(i, (*at.value)[i]), problems);
  } else if (at.value->is_object()) {
    if (at.value->size() > kMostKeys) {
      problems.add(at, fmt::format("{} keys in one object", at.value->size()),
                   fmt::format("no object of a report has more than {}", kMostKeys));
      return;
    }
    for (const auto& [key, value] : at.value->get_ref<const Json::object_t&>())
      check_expect_sizes(at.member(key, value), problems);
  }
}

void read_header(const JsonText& text, const ObjectReader& root, Scenario& scenario) {
  scenario.file = text.file();
  scenario.name = root.string("name").value_or(stem_of(text.file()));
  scenario.description = root.string("description").value_or("");
  scenario.hash = hash_of(text.root());
  if (scenario.name.empty()) {
    root.problems().add(root.where("name"), "the name is empty",
                        "leave it out: the default is the file's stem");
  }
  if (!root.has("expect")) return;
  const JsonCursor expect = root.where("expect");
  check_expect_sizes(expect, root.problems());
  scenario.expect = expect.value->dump();
}

/// `data.inactive`
void read_parts_left_out(const ObjectReader& root, Scenario& scenario) {
  const std::vector<InactivePart> parts = read_inactive(root, scenario);
  for (const InactivePart& part : parts)
    scenario.data.inactive.push_back(part.spec);
  if (root.problems().empty()) check_inactive(scenario, parts, root.problems());
  if (root.problems().empty()) check_unused(scenario, parts, root.problems());
}

void read_sections(const ObjectReader& root, Scenario& scenario) {
  const std::optional<Mesh> mesh = read_mesh(root);
  const std::optional<Roles> roles = mesh ? read_roles(root, *mesh) : std::nullopt;
  const std::optional<ModelSpec> model = read_model(root);
  scenario.numerics = read_numerics(root);
  scenario.fully_shard = read_fully_shard(root, roles, model);
  scenario.data = read_data(root, mesh, roles, model, scenario.numerics.mode);
  scenario.training = read_training(root, scenario.numerics.mode, scenario.data.init);
  if (mesh) scenario.mesh = *mesh;
  if (roles) scenario.roles = *roles;
  if (model) {
    scenario.model = *model;
    scenario.parameters = list_parameters(*model);
    read_precision(root, scenario);
    scenario.training.trained_from = read_trained_from(root, scenario);
    scenario.training.recomputed = read_recomputed(root, *model);
    scenario.units = read_units(root, *model, scenario.fully_shard.ignored_params);
    if (mesh && roles) {
      Parallelism parallelism = read_parallelism(root, *mesh, *roles, *model);
      scenario.placements = std::move(parallelism.placements);
      scenario.styles = std::move(parallelism.styles);
    }
  }
  if (mesh && roles && !root.object("data", "Data").is_bad("data_dims")) {
    scenario.training.global_batch =
        read_global_batch(root, scenario.num_data_ranks(), scenario.training.micro_batches);
    if (model) read_tokens_of_ranks(root, scenario);
  }
  scenario.faults = read_faults(root, mesh, scenario);
  if (scenario.is_exact()) check_exact_mode(scenario, root);
  if (mesh && roles && model) {
    read_cuts(root, scenario);
    read_reshard_after_forward(root, scenario);
  }
  if (scenario.fully_shard.sync_object == SyncObject::Weight) check_weight_sync(scenario, root);
  check_ties(scenario, root);
  check_dtypes(scenario, root);
  if (root.problems().empty()) check_sizes(scenario, root);
  if (mesh && roles && model) read_parts_left_out(root, scenario);
}

}  // namespace

Scenario parse_scenario(std::string_view text, const std::string& file) {
  const JsonText json(text, file);
  Problems problems(json);
  check_version(json, problems);
  const JsonCursor root_at{&json.root(), ""};
  check_types(root_at, problems);
  if (!json.root().is_object()) problems.throw_if_any();
  const ObjectReader root(root_at, "Scenario", problems);
  Scenario scenario;
  read_header(json, root, scenario);
  scenario.source = std::make_shared<const std::string>(text);
  read_sections(root, scenario);
  problems.throw_if_any();
  return scenario;
}

}  // namespace hpsim
