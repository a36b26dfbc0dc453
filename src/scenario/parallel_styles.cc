#include "scenario/parallel_styles.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "scenario/pattern_matcher.h"

namespace hpsim {
namespace {

using Style = ParallelStyle;
using Styles = std::vector<ParallelStyle>;

/// The style that the file calls so; nothing for styles that are not supported yet.
std::optional<Style> style_of(std::string_view name) {
  for (const Style style : {Style::Replicate, Style::Colwise, Style::Rowwise, Style::RowwiseSp,
                            Style::SequenceParallel, Style::Expert}) {
    if (name_of(style) == name) return style;
  }
  return std::nullopt;
}

bool cuts_sequence(Style style) {
  return style == Style::RowwiseSp || style == Style::SequenceParallel;
}

/// `colwise, rowwise or replicate`
std::string listed(const Styles& styles) {
  std::string list;
  for (std::size_t i = 0; i < styles.size(); ++i) {
    if (i > 0) list += i + 1 == styles.size() ? " or " : ", ";
    list += name_of(styles[i]);
  }
  return list;
}

class StyleReader {
 public:
  StyleReader(const ObjectReader& scenario, const Mesh& mesh, const Roles& roles,
              const ModelSpec& model)
      : scenario_(scenario),
        problems_(scenario.problems()),
        mesh_(mesh),
        roles_(roles),
        model_(model),
        choices_(std::max(model.modules.size(), model.elementwise.size())) {}

  std::vector<StyleChoice> read() {
    const auto patterns = scenario_.members("parallelize");
    if (patterns.empty()) return std::move(choices_);
    check_roles(patterns);
    parts_ = model_parts(model_);
    of_parts_.resize(parts_.size());
    PatternMatcher matcher(names_of(parts_), model_.is_elementwise() ? "parameter" : "module",
                           problems_);
    for (const auto& [pattern, at] : patterns) {
      const std::vector<int> matched = matcher.matches_of(pattern, at);
      if (at.is_string()) read_one(at, matched);
    }
    for (std::size_t i = 0; i < parts_.size(); ++i) {  // inner parts come later
      if (of_parts_[i].at || of_parts_[i].is_bad) apply(parts_[i], of_parts_[i]);
    }
    return std::move(choices_);
  }

 private:
  /// Styles cut along tp_dim, but for experts, which are cut along ep_dim.
  void check_roles(const std::vector<std::pair<std::string, JsonCursor>>& patterns) {
    bool cuts_experts = false;
    bool cuts_others = false;
    for (const auto& [pattern, at] : patterns) {
      const std::optional<Style> style = at.is_string() ? style_of(at.string()) : std::nullopt;
      if (!style || *style == Style::Replicate) continue;
      (*style == Style::Expert ? cuts_experts : cuts_others) = true;
    }
    const auto check = [&](bool is_used, const std::optional<int>& dim, const char* role) {
      if (!is_used || dim) return;
      problems_.add(scenario_.where("parallelize"),
                    fmt::format("parallelize cuts along {}, but no mesh dim is that", role),
                    fmt::format("say which of the mesh dims {} it is: \"roles\": {{\"{}\": {}}}",
                                quoted_list(mesh_.names()), role, in_quotes(mesh_.names().back())));
    };
    check(cuts_others, roles_.tp_dim, "tp_dim");
    check(cuts_experts, roles_.ep_dim, "ep_dim");
  }

  [[nodiscard]] std::string kind_of(const ModelPart& part) const {
    if (model_.is_elementwise()) return "parameter";
    return std::string(part.group < 0
                           ? name_of(model_.modules[static_cast<std::size_t>(part.first)].type)
                           : name_of(model_.groups[static_cast<std::size_t>(part.group)].kind));
  }

  /// Empty for parts that keep the layout of their input.
  [[nodiscard]] Styles styles_taken(const ModelPart& part) const {
    if (model_.is_elementwise()) return {Style::Colwise, Style::Rowwise, Style::Replicate};
    if (part.group >= 0) {
      const ModuleGroup::Kind kind = model_.groups[static_cast<std::size_t>(part.group)].kind;
      if (kind == ModuleGroup::Kind::Moe) return {Style::Expert, Style::Replicate};
      if (kind != ModuleGroup::Kind::Attention && kind != ModuleGroup::Kind::Mlp) return {};
      return {Style::Colwise, Style::RowwiseSp, Style::Replicate};
    }
    switch (model_.modules[static_cast<std::size_t>(part.first)].type) {
      case ModuleType::Linear:
      case ModuleType::Embedding:
        return {Style::Colwise, Style::Rowwise, Style::RowwiseSp, Style::Replicate};
      case ModuleType::LayerNorm:
      case ModuleType::RmsNorm:
        return {Style::SequenceParallel, Style::Replicate};
      case ModuleType::Experts:
        return {Style::Expert, Style::Replicate};
      default:
        return {};
    }
  }

  /// One entry of `parallelize`. Of several parts with the same mistake the first is told.
  void read_one(const JsonCursor& at, const std::vector<int>& matched) {
    const auto& written = at.string();
    const std::optional<Style> style = style_of(written);
    bool takes_style = matched.empty() || style == Style::Replicate;
    bool is_told = false;
    for (const int index : matched) {
      const ModelPart& part = parts_[static_cast<std::size_t>(index)];
      StyleChoice& choice = of_parts_[static_cast<std::size_t>(index)];
      const Styles taken = styles_taken(part);
      if (!style) choice.is_bad = true;
      if (taken.empty() || !style) continue;
      takes_style = true;
      const bool is_taken = std::find(taken.begin(), taken.end(), *style) != taken.end();
      const bool is_clear = !choice.at || choice.style == *style;
      if (is_taken && is_clear) {
        choice.style = *style;
        choice.at = at;
        continue;
      }
      if (!is_taken) choice.is_bad = true;
      if (!is_told) {
        is_told = true;
        if (is_taken) {
          tell_conflict(at, part, *style, choice);
        } else {
          tell_not_taken(at, part, *style, taken);
        }
      }
    }
    if (style && !takes_style) tell_no_style(at, parts_[static_cast<std::size_t>(matched.front())]);
    const bool is_applied = takes_style && !is_told && !matched.empty();
    if (style && cuts_sequence(*style) && is_applied) check_sequence(at, *style);
  }

  void tell_conflict(const JsonCursor& at, const ModelPart& part, Style style,
                     const StyleChoice& choice) {
    problems_.add(at,
                  fmt::format("{} is {} here, but {} at {}", in_quotes(part.name), name_of(style),
                              name_of(choice.style), choice.at->pointer),
                  "keep one of the two");
  }

  void tell_not_taken(const JsonCursor& at, const ModelPart& part, Style style,
                      const Styles& taken) {
    problems_.add(at,
                  fmt::format("{} {} takes {}, not {}", kind_of(part), in_quotes(part.name),
                              listed(taken), name_of(style)),
                  "write one of these, or a pattern that does not match it");
  }

  void tell_no_style(const JsonCursor& at, const ModelPart& part) {
    problems_.add(at,
                  fmt::format("{} takes no style: {} keeps the layout of its input",
                              in_quotes(part.name), kind_of(part)),
                  part.group < 0 ? "leave it out, or write \"replicate\""
                                 : "name the modules in it, or leave it out");
  }

  /// Whether it is known how long samples are; else that is told already.
  [[nodiscard]] bool knows_positions() const {
    const ObjectReader data = scenario_.object("data", "Data");
    if (data.has("sample_shape")) return !data.is_bad("sample_shape");
    const ModuleSpec& first = model_.modules.front();
    return first.type == ModuleType::Linear && first.name.find('.') == std::string::npos;
  }

  void check_sequence(const JsonCursor& at, Style style) {
    if (!roles_.tp_dim || model_.is_elementwise() || !knows_positions()) return;
    const std::int64_t num_ranks = mesh_.size(*roles_.tp_dim);
    if (model_.positions.empty()) {
      problems_.add(at,
                    fmt::format("{} cuts the sequence, but samples are vectors of {} features",
                                name_of(style), features_along(model_).front()),
                    fmt::format("give them one, such as \"data\": {{\"sample_shape\": [16, {}]}}",
                                features_along(model_).front()));
    } else if (num_positions(model_) < num_ranks) {
      problems_.add(
          at,
          fmt::format("{} cuts the sequence over {} ranks along {}, but it has {} position{}",
                      name_of(style), num_ranks, in_quotes(mesh_.name(*roles_.tp_dim)),
                      num_positions(model_), num_positions(model_) == 1 ? "" : "s"),
          fmt::format("make it at least {} long, or the mesh dim smaller", num_ranks));
    }
  }

  void apply(const ModelPart& part, const StyleChoice& choice) {
    for (int m = part.first; m < part.end; ++m) {
      StyleChoice& target = choices_[static_cast<std::size_t>(m)];
      if (choice.is_bad) target.is_bad = true;
      const std::optional<int>& dim = choice.style == Style::Expert ? roles_.ep_dim : roles_.tp_dim;
      if (!choice.at || !dim) continue;
      const bool is_moe =
          part.group >= 0 &&
          model_.groups[static_cast<std::size_t>(part.group)].kind == ModuleGroup::Kind::Moe;
      if (part.group < 0) {
        target = choice;
      } else if (is_moe) {
        const ModuleType type = model_.modules[static_cast<std::size_t>(m)].type;
        if (type == ModuleType::Experts || choice.style == Style::Replicate) target = choice;
      } else if (model_.modules[static_cast<std::size_t>(m)].type == ModuleType::Linear) {
        target = choice;
        const bool is_last = m + 1 == part.end;
        if (choice.style == Style::Colwise && is_last) target.style = Style::Rowwise;
        if (choice.style == Style::RowwiseSp && !is_last) target.style = Style::Colwise;
      }
    }
  }

  const ObjectReader& scenario_;
  Problems& problems_;
  const Mesh& mesh_;
  const Roles& roles_;
  const ModelSpec& model_;
  std::vector<ModelPart> parts_;
  std::vector<StyleChoice> of_parts_;  ///< like parts_: what the file says by their names
  std::vector<StyleChoice> choices_;
};

}  // namespace

std::vector<StyleChoice> read_styles(const ObjectReader& scenario, const Mesh& mesh,
                                     const Roles& roles, const ModelSpec& model) {
  return StyleReader(scenario, mesh, roles, model).read();
}

std::optional<int> dim_cut_by(ParallelStyle style, ParameterSpec::Kind kind) {
  if (style == Style::Expert) return 0;
  const bool is_colwise = style == Style::Colwise;
  if (!is_colwise && style != Style::Rowwise && style != Style::RowwiseSp) return std::nullopt;
  switch (kind) {
    case ParameterSpec::Kind::Elementwise:
    case ParameterSpec::Kind::LinearWeight:
      return is_colwise ? 0 : 1;
    case ParameterSpec::Kind::EmbeddingWeight:
      return is_colwise ? 1 : 0;
    case ParameterSpec::Kind::LinearBias:
      return is_colwise ? std::optional<int>(0) : std::nullopt;
    case ParameterSpec::Kind::ExpertWeight:  // style expert, along ep_dim
    case ParameterSpec::Kind::NormWeight:
    case ParameterSpec::Kind::NormBias:
      return std::nullopt;
  }
  HPSIM_CHECK(false, "unknown kind of parameter {}", static_cast<int>(kind));
  return std::nullopt;
}

}  // namespace hpsim
