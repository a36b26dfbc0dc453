#pragma once

#include <string>
#include <vector>

#include "verify/suspect.h"

namespace hpsim {

// What a shard that is not what it should be holds instead. Each of these tries one kind of
// explanation and returns sentences, best first, that continue "it ...": none where no
// such explanation fits. One fits only if every element of the shard is within bounds of what it
// predicts (or equal, where recorded numbers are compared with recorded numbers).

/// "equals the gradient of "w2"": another tensor of the same kind and shape has these numbers
/// there.
[[nodiscard]] std::vector<std::string> other_parameter(const Suspect& suspect);

/// "equals the gradient of step 0, bit by bit: it is stale"; of a parameter "equals what it was
/// before the step, bit by bit: it was not updated".
[[nodiscard]] std::vector<std::string> previous_step(const Suspect& suspect);

/// "is the gradient of step 0 added to that of step 1: it was not cleared".
[[nodiscard]] std::vector<std::string> added_to_previous(const Suspect& suspect);

/// "has the rows of rank 3 and rank 4 exchanged", or "equals the rows of rank 4", of shards of the
/// same size; "shards" where they are not rows.
[[nodiscard]] std::vector<std::string> rows_of_another_rank(const Suspect& suspect);

/// "has rows shifted by 2: row 0 holds what belongs to row 2", of shards of whole rows.
[[nodiscard]] std::vector<std::string> shifted_rows(const Suspect& suspect);

/// "is transposed": element (i, j) of the tensor, as if it were stored column by column.
[[nodiscard]] std::vector<std::string> transposed(const Suspect& suspect);

/// "has 0 in all elements that are off (8 of 16, the last ones): never filled, as padding is", or
/// what the step before had there, bit by bit.
[[nodiscard]] std::vector<std::string> partly_something_else(const Suspect& suspect);

/// Of parameters that sgd updates: "is what the gradient of this step, as recorded, makes of it".
[[nodiscard]] std::vector<std::string> follows_from_gradient(const Suspect& suspect);

/// Of parameters: "is updated by 2 times what is due: M=2".
[[nodiscard]] std::vector<std::string> scaled_update(const Suspect& suspect);

/// Of gradients that are no multiple of what they should be: "is off by 0.1 times the parameter
/// itself".
[[nodiscard]] std::vector<std::string> off_by_parameter(const Suspect& suspect);

/// All of the above, those that say most first.
[[nodiscard]] std::vector<std::string> shard_causes(const Suspect& suspect);

}  // namespace hpsim
