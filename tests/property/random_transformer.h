#pragma once

#include <string>

#include "random_scenario.h"

namespace hpsim::test {

/// The JSON text of a small transformer that is valid: embedding or not, one or two blocks of
/// residual attention and mlp with either norm, an output layer or not, tied or not, mse or cross
/// entropy, on 1 to 8 ranks of up to 4 mesh dims; styles with and without sequence parallelism
/// where there is a tp dim, uneven sequences, vocabularies and hidden sizes, any data dims and
/// units, and policies as draw_policies adds them.
[[nodiscard]] std::string random_transformer(Dice& dice);

}  // namespace hpsim::test
