#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/suggest.h"
#include "scenario/sections.h"

namespace hpsim {
namespace {

constexpr int kMaxMeshDims = 8;

bool check_shape(const ObjectReader& mesh, const std::vector<std::int64_t>& shape) {
  Problems& problems = mesh.problems();
  const JsonCursor at = mesh.where("shape");
  if (shape.empty()) {
    problems.add(at, "the mesh has no dims", "one rank is \"shape\": [1]");
    return false;
  }
  if (!checked_num_elems(shape)) {
    problems.add(at, fmt::format("{} ranks do not fit 63 bits", fmt::join(shape, " * ")),
                 "make the mesh smaller than 2^63 ranks");
    return false;
  }
  if (shape.size() > kMaxMeshDims) {
    problems.add(at, fmt::format("a mesh of {} dims", shape.size()),
                 fmt::format("a mesh has 1 to {} dims", kMaxMeshDims));
    return false;
  }
  return true;
}

bool check_names(const ObjectReader& mesh, const std::vector<std::string>& names) {
  Problems& problems = mesh.problems();
  const std::vector<JsonCursor> elements = mesh.elements("mesh_dim_names");
  std::map<std::string_view, std::size_t> seen;
  bool is_good = true;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::size_t first = seen.emplace(names[i], i).first->second;
    if (names[i].empty()) {
      problems.add(elements[i], fmt::format("mesh dim {} has an empty name", i),
                   "give it a name, such as \"fsdp\"");
      is_good = false;
    } else if (first < i) {
      problems.add(
          elements[i],
          fmt::format("mesh dims {} and {} both have the name {}", first, i, in_quotes(names[i])),
          "give every mesh dim a name of its own");
      is_good = false;
    }
  }
  return is_good;
}

/// `ranks` as a permutation of 0..N-1.
bool check_ranks(const ObjectReader& mesh, const std::vector<std::int64_t>& shape,
                 const std::vector<std::int64_t>& ranks) {
  Problems& problems = mesh.problems();
  const std::int64_t num_ranks = num_elems(shape);
  if (static_cast<std::int64_t>(ranks.size()) != num_ranks) {
    const std::string product = shape.size() == 1 ? fmt::format("is {}", num_ranks)
                                                  : fmt::format("multiplies to {} = {}",
                                                                fmt::join(shape, " * "), num_ranks);
    problems.add(mesh.where("ranks"),
                 fmt::format("{} ranks listed, but shape {}", ranks.size(), product),
                 fmt::format("list {} ranks, or leave \"ranks\" out", num_ranks));
    return false;
  }
  const std::vector<JsonCursor> elements = mesh.elements("ranks");
  const std::string help = fmt::format("list each rank of 0..{} once", num_ranks - 1);
  std::map<std::int64_t, std::size_t> seen;
  bool is_good = true;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= num_ranks) {
      problems.add(
          elements[i],
          fmt::format("rank {} at position {} is outside 0..{}", ranks[i], i, num_ranks - 1), help);
      is_good = false;
      continue;
    }
    const auto [entry, is_new] = seen.emplace(ranks[i], i);
    if (is_new) continue;
    problems.add(
        elements[i],
        fmt::format("rank {} is listed twice, at positions {} and {}", ranks[i], entry->second, i),
        help);
    is_good = false;
  }
  return is_good;
}

enum class Role { FsdpShard, DpReplicate, Tp, Ep };
constexpr std::array<const char*, 4> kRoleKeys = {"fsdp_shard_dim", "dp_replicate_dim", "tp_dim",
                                                  "ep_dim"};

std::string_view key_of(Role role) {
  return kRoleKeys[static_cast<std::size_t>(role)];
}

constexpr std::pair<std::string_view, Role> kRoleNames[] = {{"fsdp", Role::FsdpShard},
                                                            {"dp_shard", Role::FsdpShard},
                                                            {"shard", Role::FsdpShard},
                                                            {"dp_replicate", Role::DpReplicate},
                                                            {"rep", Role::DpReplicate},
                                                            {"dp_rep", Role::DpReplicate},
                                                            {"replicate", Role::DpReplicate},
                                                            {"ddp", Role::DpReplicate},
                                                            {"tp", Role::Tp},
                                                            {"mp", Role::Tp},
                                                            {"ep", Role::Ep}};

std::optional<Role> role_by_name(std::string_view name) {
  for (const auto& [known, role] : kRoleNames) {
    if (known == name) return role;
  }
  return std::nullopt;
}

/// Finds out which dim has which role; see read_roles.
class RoleResolver {
 public:
  RoleResolver(const ObjectReader& scenario, const Mesh& mesh)
      : roles_(scenario.object("roles", "Roles")),
        problems_(scenario.problems()),
        names_(scenario.object("mesh", "Mesh").elements("mesh_dim_names")),
        mesh_(mesh),
        is_explicit_(static_cast<std::size_t>(mesh.num_dims())) {}

  std::optional<Roles> resolve() {
    for (const Role role : {Role::FsdpShard, Role::DpReplicate, Role::Tp, Role::Ep})
      read_explicit(role);
    for (int dim = 0; dim < mesh_.num_dims(); ++dim) {
      if (!is_explicit(dim) && mesh_.name(dim) != "dp") infer(dim);
    }
    const std::optional<int> dp = mesh_.find("dp");
    if (dp && !is_explicit(*dp)) {
      take(claimed_[index(Role::FsdpShard)] ? Role::DpReplicate : Role::FsdpShard, *dp);
    }
    if (!is_good_) return std::nullopt;
    return Roles{.fsdp_shard_dim = holder_[index(Role::FsdpShard)],
                 .dp_replicate_dim = holder_[index(Role::DpReplicate)],
                 .tp_dim = holder_[index(Role::Tp)],
                 .ep_dim = holder_[index(Role::Ep)]};
  }

 private:
  static std::size_t index(Role role) { return static_cast<std::size_t>(role); }
  [[nodiscard]] bool is_explicit(int dim) const {
    return is_explicit_[static_cast<std::size_t>(dim)];
  }
  [[nodiscard]] const JsonCursor& at(int dim) const {
    return names_[static_cast<std::size_t>(dim)];
  }

  void complain(const JsonCursor& where, std::string message, std::string help) {
    problems_.add(where, std::move(message), std::move(help));
    is_good_ = false;
  }

  void read_explicit(Role role) {
    const std::string_view key = key_of(role);
    const JsonCursor where = roles_.where(key);
    if (!roles_.has(key)) return;
    if (roles_.is_null(key)) {
      is_null_[index(role)] = true;
      return;
    }
    if (!where.is_string()) {
      is_good_ = false;
      return;
    }
    const auto& name = where.string();
    const std::optional<int> dim = mesh_.find(name);
    if (!dim) {
      complain(where, fmt::format("no mesh dim has the name {}", in_quotes(name)),
               fmt::format("the mesh dims are {}", quoted_list(mesh_.names())));
      return;
    }
    if (is_explicit(*dim)) {
      complain(where, fmt::format("mesh dim {} is given two roles", in_quotes(name)),
               "give each mesh dim one role");
      return;
    }
    is_explicit_[static_cast<std::size_t>(*dim)] = true;
    claimed_[index(role)] = true;
    holder_[index(role)] = *dim;
  }

  void infer(int dim) {
    const std::optional<Role> role = role_by_name(mesh_.name(dim));
    if (role) {
      take(*role, dim);
      return;
    }
    std::vector<std::string_view> known = {"dp"};
    for (const auto& [name, known_role] : kRoleNames)
      known.push_back(name);
    const auto meant = suggest(mesh_.name(dim), known);
    const std::string name = in_quotes(mesh_.name(dim));
    complain(at(dim), fmt::format("mesh dim {} has no role", name),
             fmt::format("{}say what it is for: \"roles\": {{\"fsdp_shard_dim\": {}}}, or "
                         "\"dp_replicate_dim\", \"tp_dim\", \"ep_dim\"",
                         meant ? fmt::format("did you mean \"{}\"? Else ", *meant) : "", name));
  }

  void take(Role role, int dim) {
    claimed_[index(role)] = true;
    if (is_null_[index(role)]) return;
    const std::string name = in_quotes(mesh_.name(dim));
    const std::optional<int>& holder = holder_[index(role)];
    if (!holder) {
      holder_[index(role)] = dim;
      return;
    }
    const std::string other = in_quotes(mesh_.name(*holder));
    if (is_explicit(*holder)) {
      complain(at(dim),
               fmt::format("mesh dim {} has no role: \"roles\" gives {} to {}", name, key_of(role),
                           other),
               fmt::format("give {} a role in \"roles\" too", name));
    } else {
      complain(at(dim),
               fmt::format("mesh dims {} and {} are both {} by name", other, name, key_of(role)),
               fmt::format("say in \"roles\" which is {} and what the other is for", key_of(role)));
    }
  }

  ObjectReader roles_;
  Problems& problems_;
  std::vector<JsonCursor> names_;
  const Mesh& mesh_;
  std::vector<bool> is_explicit_;  ///< per dim: `roles` names it
  std::array<std::optional<int>, 4> holder_;
  std::array<bool, 4> claimed_{};  ///< some dim has the role, or would have if it were not null
  std::array<bool, 4> is_null_{};
  bool is_good_ = true;
};

}  // namespace

std::optional<Mesh> read_mesh(const ObjectReader& scenario) {
  const ObjectReader mesh = scenario.object("mesh", "Mesh");
  const auto shape = mesh.integers("shape");
  const auto names = mesh.strings("mesh_dim_names");
  const auto ranks = mesh.integers("ranks");
  const bool shape_is_good = shape && check_shape(mesh, *shape);
  bool is_good = shape_is_good && names;
  if (names) is_good &= check_names(mesh, *names);
  if (shape && names && !shape->empty() && names->size() != shape->size()) {
    mesh.problems().add(
        mesh.where("mesh_dim_names"),
        fmt::format("{} names, but shape has {} dims", names->size(), shape->size()),
        "give one name per mesh dim");
    is_good = false;
  }
  const bool ranks_are_good = shape_is_good && ranks && check_ranks(mesh, *shape, *ranks);
  if (!is_good) return std::nullopt;
  return ranks_are_good ? Mesh(*shape, *names, *ranks) : Mesh(*shape, *names);
}

std::optional<Roles> read_roles(const ObjectReader& scenario, const Mesh& mesh) {
  return RoleResolver(scenario, mesh).resolve();
}

}  // namespace hpsim
