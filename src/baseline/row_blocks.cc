#include "baseline/row_blocks.h"

#include <algorithm>

#include "scenario/gradients.h"

namespace hpsim {
namespace {

void add_row(LossRows& all, double divisor, std::int64_t row) {
  all.divisors[static_cast<std::size_t>(row)] = divisor;
  auto group = std::find_if(all.groups.begin(), all.groups.end(),
                            [&](const LossGroup& g) { return g.divisor == divisor; });
  if (group == all.groups.end()) group = all.groups.insert(group, {divisor, {}});
  group->rows.push_back(row);
}

}  // namespace

std::vector<RowBlock> row_blocks(const Scenario& scenario, std::int64_t positions) {
  const std::int64_t count = scenario.micro_batch_size() * positions;
  std::vector<RowBlock> blocks;
  for (std::int64_t rank = 0; rank < scenario.num_data_ranks(); ++rank) {
    for (std::int64_t m = 0; m < scenario.training.micro_batches; ++m)
      blocks.push_back({rank, m, static_cast<std::int64_t>(blocks.size()) * count, count});
  }
  return blocks;
}

LossRows loss_rows(const Scenario& scenario, std::int64_t step, std::int64_t terms_per_position,
                   int elementwise) {
  const std::int64_t positions = num_positions(scenario.model);
  LossRows result;
  result.divisors.resize(static_cast<std::size_t>(scenario.training.global_batch * positions));
  std::int64_t num_valid = 0;
  double divisor = 0;
  for (const RowBlock& block : row_blocks(scenario, positions)) {
    const std::int64_t valid = num_valid_positions(scenario, block.data_rank, block.micro_batch);
    num_valid += valid;
    if (divisor == 0 || !scenario.data.tokens.empty()) {
      divisor = loss_divisor(scenario, block.data_rank, block.micro_batch, terms_per_position);
    }
    if (elementwise >= 0 &&
        !is_active(scenario, elementwise, step, block.micro_batch, block.data_rank)) {
      continue;
    }
    for (std::int64_t i = 0; i < valid; ++i)
      add_row(result, divisor, block.first + i);
  }
  result.all_terms = mean_divisor(scenario, num_valid * terms_per_position);
  if (scenario.training.loss_normalization == LossNormalization::LocalMean) {
    result.num_ranks = mean_divisor(scenario, scenario.num_data_ranks());
  }
  return result;
}

std::vector<Bypass> bypasses(const Scenario& scenario, std::int64_t step) {
  const ModelSpec& model = scenario.model;
  std::vector<Bypass> result;
  if (scenario.data.inactive.empty() || model.is_elementwise()) return result;
  const std::vector<RowBlock> blocks = row_blocks(scenario, num_positions(model));
  for (const InactiveSpec& part : scenario.data.inactive) {
    Bypass bypass{part.first, part.end - 1, 0, {}};
    bypass.source = inputs_of(model, part.first).at(0);  // of a residual, what it adds to
    for (const RowBlock& block : blocks) {
      if (!part.lists_pass(step, block.micro_batch)) continue;
      if (!part.lists_data_rank(block.data_rank)) continue;
      for (std::int64_t i = 0; i < block.count; ++i)
        bypass.rows.push_back(block.first + i);
    }
    if (!bypass.rows.empty()) result.push_back(std::move(bypass));
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const Bypass& a, const Bypass& b) { return a.first > b.first; });
  return result;
}

}  // namespace hpsim
