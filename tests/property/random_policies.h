#pragma once

#include <nlohmann/json.hpp>

#include "random_scenario.h"

namespace hpsim::test {

/// Adds to a valid scenario what else a training step may be made of, and keeps it valid:
/// micro-batches that reduce, or all-reduce, at the end or now and then; what ranks keep between
/// passes; units that are gathered ahead; collectives of single parameters; clipping; frozen
/// parameters that are unfrozen or not; parts that some ranks leave out of some passes; parts that
/// backward computes again; parameters made on meta; valid positions by rank; dtypes of parameters,
/// of compute, of reduction and of what units give. At least one parameter has a gradient in every
/// pass. \param is_narrow some dtype has 16 bits: for small models, or bounds say nothing; not with
///                  averaged weights
void draw_policies(Dice& dice, nlohmann::ordered_json& scenario, bool is_narrow);

}  // namespace hpsim::test
