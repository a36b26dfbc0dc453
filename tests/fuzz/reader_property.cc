#include "fuzz/reader_property.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/error.h"
#include "scenario/json_scan.h"
#include "scenario/json_text.h"
#include "scenario/parse.h"

namespace hpsim {
namespace {

constexpr const char* kFile = "dir/fuzzed.json";
constexpr std::size_t kMostDiagnostics = 1002;
constexpr std::size_t kLongestPrinted = 8192;

std::int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !is_utf8_continuation(c); });
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (true) {
    const std::size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return lines;
    text.remove_prefix(end + 1);
  }
}

/// Diagnostics on the whole file have no place: line and column 0.
bool lies_inside(const Diagnostic& diagnostic, const std::vector<std::string_view>& lines) {
  if (diagnostic.line == 0) return diagnostic.column == 0;
  if (diagnostic.line < 1 || diagnostic.line > static_cast<std::int64_t>(lines.size())) {
    return false;
  }
  const std::string_view line = lines[static_cast<std::size_t>(diagnostic.line - 1)];
  return diagnostic.column >= 1 && diagnostic.column <= count_characters(line) + 1;
}

bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(Json(text).dump());
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
}

/// What diagnostics must not hold, unless they quote it.
constexpr std::string_view kLibraryText = "json.exception";

std::string fault_of(const Diagnostic& diagnostic, const std::vector<std::string_view>& lines,
                     bool may_quote_library) {
  const auto fault = [&](const char* what) {
    return fmt::format("{}: {}", what, to_string(diagnostic));
  };
  if (diagnostic.message.empty()) return fault("no message");
  if (diagnostic.help.empty()) return fault("no help");
  if (!lies_inside(diagnostic, lines)) return fault("a place outside of the text");
  Diagnostic without_help = diagnostic;
  without_help.help.clear();
  for (const std::string& part : {to_string(without_help), diagnostic.help}) {
    if (!is_utf8(part)) return fault("no UTF-8");
    if (std::any_of(part.begin(), part.end(), is_control)) return fault("control characters");
    if (part.size() > kLongestPrinted) return fault("too long");
    if (!may_quote_library && part.find(kLibraryText) != std::string::npos) {
      return fault("text of the JSON library");
    }
  }
  return {};
}

std::string fault_of(const Error& error, std::string_view text) {
  if (error.kind() != ErrorKind::InvalidScenario) {
    return fmt::format("an error of another kind: {}", error.what());
  }
  if (error.diagnostics().empty()) return "refused without a diagnostic";
  if (error.diagnostics().size() > kMostDiagnostics) {
    return fmt::format("{} diagnostics", error.diagnostics().size());
  }
  const std::vector<std::string_view> lines = lines_of(text);
  const bool may_quote_library = text.find(kLibraryText) != std::string_view::npos;
  for (const Diagnostic& diagnostic : error.diagnostics()) {
    std::string fault = fault_of(diagnostic, lines, may_quote_library);
    if (!fault.empty()) return fault;
  }
  return {};
}

bool is_ascending_below(const std::vector<std::int64_t>& numbers, std::int64_t end) {
  return !numbers.empty() && numbers.front() >= 0 && numbers.back() < end &&
         std::adjacent_find(numbers.begin(), numbers.end(), std::greater_equal<>()) ==
             numbers.end();
}

std::string fault_of(const TrainingSpec& training, std::size_t num_parameters) {
  if (training.micro_batches < 1) return "no micro-batch";
  const auto size = static_cast<std::size_t>(training.micro_batches);
  for (const std::vector<bool>& syncs : {training.gradient_syncs, training.all_reduces}) {
    if (syncs.empty()) continue;
    if (syncs.size() != size) return "not one sync per micro-batch";
    if (!syncs.back()) return "gradients that are never reduced";
  }
  const std::vector<std::int64_t>& from = training.trained_from;
  if (!from.empty()) {
    if (from.size() != num_parameters) return "not one first step per parameter";
    const auto [first, last] = std::minmax_element(from.begin(), from.end());
    if (*first != 0) return "no parameter that is trained from the first step on";
    if (*last > training.steps) return "a first step behind the steps";
  }
  if (const auto& clip = training.clip_grad_norm) {
    if (!(clip->max_norm > 0) || !(clip->norm_type >= 1)) return "a norm that is none";
  }
  return {};
}

std::string fault_of(const DataSpec& data, const Scenario& scenario) {
  const auto num_data_ranks = static_cast<std::size_t>(scenario.num_data_ranks());
  const auto num_passes = static_cast<std::size_t>(scenario.training.micro_batches);
  if (!data.tokens.empty() && data.tokens.size() != num_data_ranks) return "tokens of other ranks";
  for (const std::vector<std::int64_t>& of_rank : data.tokens) {
    if (of_rank.size() != num_passes) return "tokens of other micro-batches";
    const std::int64_t most = scenario.micro_batch_size() * num_positions(scenario.model);
    const auto [least, largest] = std::minmax_element(of_rank.begin(), of_rank.end());
    if (*least < 0 || *largest > most) return "more valid positions than there are";
  }
  const std::size_t num_modules = scenario.model.is_elementwise()
                                      ? scenario.model.elementwise.size()
                                      : scenario.model.modules.size();
  for (const InactiveSpec& part : data.inactive) {
    if (part.first < 0 || part.first >= part.end ||
        static_cast<std::size_t>(part.end) > num_modules) {
      return "an inactive part that is no part";
    }
    if (!is_ascending_below(part.data_ranks, scenario.num_data_ranks()) ||
        !is_ascending_below(part.steps, scenario.training.steps) ||
        !is_ascending_below(part.micro_batches, scenario.training.micro_batches)) {
      return "an inactive part on ranks, or in passes, that there are not";
    }
  }
  return {};
}

std::string fault_of(const FullyShardSpec& spec, const Scenario& scenario) {
  const std::int64_t kept = spec.post_forward_size;
  if (kept == 0) return {};
  const std::optional<int> dim = scenario.roles.fsdp_shard_dim;
  if (!spec.shards_parameters || !spec.reshard_after_forward || !dim) return "parts of no shards";
  const std::int64_t size = scenario.mesh.size(*dim);
  if (kept <= 1 || kept >= size || size % kept != 0) return "parts that do not divide the shards";
  return {};
}

std::string fault_of(const Scenario& scenario, std::string_view text) {
  if (scenario.units.empty() || scenario.parameters.empty()) return "no units or no parameters";
  if (scenario.local_batch() < 1 || scenario.micro_batch_size() < 1)
    return "a rank without samples";
  if (scenario.micro_batch_size() * scenario.training.micro_batches * scenario.num_data_ranks() !=
      scenario.training.global_batch) {
    return "samples that no micro-batch takes";
  }
  const std::size_t num_dtypes = scenario.numerics.parameter_dtypes.size();
  if (num_dtypes != 0 && num_dtypes != scenario.parameters.size()) {
    return "not one dtype per parameter";
  }
  for (const std::string& fault :
       {fault_of(scenario.training, scenario.parameters.size()), fault_of(scenario.data, scenario),
        fault_of(scenario.fully_shard, scenario)}) {
    if (!fault.empty()) return fault;
  }
  if (scenario.hash.size() != 16) return fmt::format("a hash \"{}\"", scenario.hash);
  const std::string values = Json::parse(text, nullptr, true, /*ignore_comments=*/true).dump();
  for (const std::string_view same : {text, std::string_view(values)}) {
    const std::string hash = parse_scenario(same, kFile).hash;
    if (hash != scenario.hash) {
      return fmt::format("hash {}, and {} of {}", scenario.hash, hash, same);
    }
  }
  return {};
}

}  // namespace

std::string broken_promise(std::string_view text) {
  try {
    std::optional<Scenario> scenario;
    try {
      scenario = parse_scenario(text, kFile);
    } catch (const Error& error) {
      return fault_of(error, text);
    }
    return fault_of(*scenario, text);
  } catch (const std::exception& exception) {
    return fmt::format("an exception: {}", exception.what());
  }
}

}  // namespace hpsim
