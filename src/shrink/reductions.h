#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace hpsim {

/// One way to make a scenario smaller: fewer or smaller numbers, keys, modules. What it makes may
/// be no valid scenario.
struct Reduction {
  std::string what;  ///< "/mesh/shape/1: 4 -> 2"
  std::function<void(nlohmann::ordered_json&)> apply;
};

/// Reductions of one kind, of a scenario as it is.
struct ReductionKind {
  std::string_view name;
  std::vector<Reduction> (*of)(const nlohmann::ordered_json& scenario) = nullptr;
};

/// In the order in which they are tried; those first that leave out most.
///
///   texts        name, description, $schema
///   expect       `expect` as a whole
///   mesh         mesh dims left out, sizes
///   passes       steps, micro_batches, global_batch
///   modules      modules left out, halves of lists first; residual, sequential and repeat replaced
///                by what is in them, once, or of a repeat of two twice; attention, mlp and moe by
///                a linear
///   parameters   elementwise parameters left out, halves first
///   features     a number of features, wherever the model has it
///   sections     fully_shard, training, ... as a whole, but for the seed
///   keys         every other key that need not be there
///   elements     of lists: units, data_dims, ranks of faults, sizes of a parameter's shape, ...
///   numbers      every other integer; neither the seed nor what `expect` says
[[nodiscard]] const std::vector<ReductionKind>& reduction_kinds();

/// Smaller numbers to try, smallest first: the least, 2, half of it, one less.
///
///   16, at least 1    1, 2, 8, 15          3, at least 1    1, 2
///   2, at least 0     0, 1                 1, at least 1    none
[[nodiscard]] std::vector<std::int64_t> smaller_numbers(std::int64_t number, std::int64_t least);

/// The parts [begin, end) of a list of `size` elements to leave out: its halves, quarters, and so
/// on to single elements, from the back.
///
///   4    [2, 4) [0, 2) [3, 4) [2, 3) [1, 2) [0, 1)          1    [0, 1)
[[nodiscard]] std::vector<std::pair<std::size_t, std::size_t>> parts_of(std::size_t size);

// What reduction_kinds lists.

[[nodiscard]] std::vector<Reduction> mesh_reductions(const nlohmann::ordered_json& scenario);
[[nodiscard]] std::vector<Reduction> module_reductions(const nlohmann::ordered_json& scenario);
[[nodiscard]] std::vector<Reduction> feature_reductions(const nlohmann::ordered_json& scenario);
[[nodiscard]] std::vector<Reduction> key_reductions(const nlohmann::ordered_json& scenario);
[[nodiscard]] std::vector<Reduction> element_reductions(const nlohmann::ordered_json& scenario);
[[nodiscard]] std::vector<Reduction> number_reductions(const nlohmann::ordered_json& scenario);

}  // namespace hpsim
