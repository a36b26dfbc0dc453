#include "mesh/group.h"
#include "report/explain_report.h"
#include "report/json.h"
#include "report/json_parts.h"

namespace hpsim {
namespace {

Json interval_json(Interval interval) {
  return Json::array({interval.begin, interval.end});
}

Json step_or_null(int step) {
  return step < 0 ? Json(nullptr) : Json(step);
}

/// Writes the facts of one parameter.
class Writer {
 public:
  Writer(const Plan& plan, bool lists_ranks)
      : plan_(plan), mesh_(plan.mesh()), lists_ranks_(lists_ranks) {}

  [[nodiscard]] Json parameter(const ParameterFacts& facts) const {
    const PlannedParameter& parameter = plan_.parameter(facts.parameter);
    const Bucket& bucket = plan_.bucket(parameter.bucket);
    Json json = parameter_json(plan_.scenario, parameter, lists_ranks_);
    json["unit"] = plan_.unit_name(bucket);
    json["dims"] = list_json(facts.dims, [&](const DimFact& fact) -> Json {
      const auto at = static_cast<std::size_t>(fact.mesh_dim);
      return {{"mesh_dim", mesh_.name(fact.mesh_dim)},
              {"size", mesh_.size(fact.mesh_dim)},
              {"sharded", to_string(parameter.sharded[at], vocabulary())},
              {"unsharded", to_string(parameter.unsharded[at], vocabulary())},
              {"rule", fact.rule}};
    });
    json["cuts"] = list_json(facts.cuts, [&](const AxisCut& cut) { return cut_json(cut); });
    json["groups"] = list_json(facts.groups, [&](const GroupFact& fact) -> Json {
      return {{"group", name_of(fact.kind)},
              {"mesh_dims", names_of_dims(mesh_, fact.group.dims)},
              {"size", fact.group.size},
              {"count", mesh_.num_ranks() / fact.group.size},
              {"collectives", list_json(fact.steps, [&](int index) { return sent_json(index); })},
              {"why", fact.why}};
    });
    json["gradient"] = list_json(facts.gradient, [&](const GradientFact& fact) -> Json {
      return {{"mesh_dim", mesh_.name(fact.mesh_dim)},
              {"state", name_of(fact.state)},
              {"reduced_by", list_json(fact.steps, [&](int index) { return sent_json(index); })},
              {"why", fact.why}};
    });
    json["scale"] = {{"k", number(facts.scale.factor)},
                     {"F", number(facts.scale.divisor)},
                     {"value", number(facts.scale.factor / facts.scale.divisor)},
                     {"why", facts.scale.why},
                     {"k_applied_in", step_or_null(facts.scale.factor_step)},
                     {"F_applied_in", step_or_null(facts.scale.divisor_step)}};
    json["life"] = list_json(facts.life, [&](const LifeStep& each) { return life_json(each); });
    json["rank"] = rank_json(facts);
    return json;
  }

 private:
  [[nodiscard]] Vocabulary vocabulary() const { return plan_.scenario.fully_shard.vocabulary; }
  [[nodiscard]] const Step& step(int index) const {
    return plan_.steps[static_cast<std::size_t>(index)];
  }

  [[nodiscard]] Json cut_json(const AxisCut& cut) const {
    Json names = Json::array();
    for (const int dim : cut.mesh_dims)
      names.push_back(mesh_.name(dim));
    return {{"tensor_dim", cut.tensor_dim},
            {"mesh_dims", std::move(names)},
            {"runs", list_json(cut.runs, [&](const PartRun& run) -> Json {
               return {{"coordinates", list_json(run.coordinates, interval_json)},
                       {"strides", run.strides},
                       {"length", run.length()},
                       {"slot", run.slot},
                       {"first", interval_json(run.first)},
                       {"last", interval_json(run.last())}};
             })}};
  }

  [[nodiscard]] Json sent_json(int index) const {
    return {{"index", index},
            {"op", name_of(step(index).collective->op)},
            {"phase", name_of(step(index).phase)}};
  }

  [[nodiscard]] Json life_json(const LifeStep& each) const {
    const auto layout = [&](const std::vector<Placement>& placements) {
      return placements.empty() ? Json(nullptr) : placements_json(placements, vocabulary());
    };
    const Step& s = step(each.step);
    Json json{{"index", each.step},
              {"kind", name_of(s.kind)},
              {"phase", name_of(s.phase)},
              {"of", each.is_gradient ? "gradient" : "parameter"},
              {"before", layout(each.before)},
              {"after", layout(each.after)},
              {"bytes_before", each.bytes_before},
              {"bytes_after", each.bytes_after},
              {"rule", s.why.rule}};
    if (s.is_async) json["async"] = true;
    if (s.is_recomputed) json["recomputed"] = true;
    return json;
  }

  /// Ranks that vary along `dims`, all of them or the first.
  [[nodiscard]] Json members_json(const MeshDims& dims, Rank rank) const {
    const std::int64_t limit = lists_ranks_ ? mesh_.size(dims) : kMaxListedRanks;
    return {{"mesh_dims", names_of_dims(mesh_, dims)},
            {"size", mesh_.size(dims)},
            {"ranks", rank_numbers(group_of(mesh_, dims, rank, limit))}};
  }

  [[nodiscard]] Json rank_json(const ParameterFacts& facts) const {
    const RankFact& fact = facts.rank;
    const Rank rank = mesh_.rank_at(fact.coordinate);
    Json exchanges = Json::array();
    for (const GroupFact& group : facts.groups) {
      if (group.steps.empty()) continue;
      MeshDims dims;
      for (const int index : group.steps)
        dims = union_of(dims, step(index).collective->dims);
      Json entry{{"group", name_of(group.kind)}};
      entry.update(members_json(dims, rank));
      exchanges.push_back(std::move(entry));
    }
    return {{"rank", rank.value},
            {"coordinate", fact.coordinate},
            {"boxes", list_json(fact.held.boxes,
                                [](const Box& box) -> Json {
                                  return {{"offset", box.offset}, {"shape", box.shape}};
                                })},
            {"elements", fact.held.elems},
            {"padding", fact.padding_elems},
            {"slot_offset", fact.offset_elems},
            {"row_elements", fact.row_elems},
            {"same", members_json(fact.same_dims, rank)},
            {"exchanges", std::move(exchanges)}};
  }

  const Plan& plan_;
  const Mesh& mesh_;
  bool lists_ranks_;
};

}  // namespace

Json explain_json(const Plan& plan, const ExplainView& view) {
  const Scenario& scenario = plan.scenario;
  const Mesh& mesh = plan.mesh();
  const Explainer explainer(plan);
  const Writer writer(plan, view.full || mesh.num_ranks() <= kMaxListedRanks);
  const Coordinate coordinate = view.rank
                                    ? mesh.coordinate_of(*view.rank)
                                    : Coordinate(static_cast<std::size_t>(mesh.num_dims()), 0);
  std::vector<std::string> names;
  for (int dim = 0; dim < mesh.num_dims(); ++dim)
    names.push_back(mesh.name(dim));
  return {{"explain", 1},
          {"hpsim_version", HPSIM_VERSION},
          {"scenario", {{"name", scenario.name}, {"file", scenario.file}, {"hash", scenario.hash}}},
          {"world_size", mesh.num_ranks()},
          {"mesh", {{"shape", mesh.shape()}, {"mesh_dim_names", names}}},
          {"parameters",
           list_json(view.parameters,
                     [&](int p) { return writer.parameter(explainer.explain(p, coordinate)); })},
          {"activations", activations_json(plan)}};
}

}  // namespace hpsim
