#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "report/text.h"
#include "trace/run_result.h"

namespace hpsim {

/// Up to so many ranks are listed with what they received.
inline constexpr std::int64_t kMaxRoutedRanks = 1024;

/// The load of an experts module in every optimizer step; of a run without numbers that of balanced
/// routing in the first.
[[nodiscard]] std::vector<RoutingReport> routing_reports(const Plan& plan, const RunResult& run);

/// [{"module", "step", "is_assumed", "tokens", "imbalance", "received", "rank_imbalance"}]
[[nodiscard]] nlohmann::ordered_json routing_json(const std::vector<RoutingReport>& routing);

/// A line per experts module and step: positions per expert and per rank, and how uneven they are.
/// Starts with an empty line; empty where nothing is routed.
[[nodiscard]] std::string routing_section(const Report& report, const TextStyle& style);

}  // namespace hpsim
