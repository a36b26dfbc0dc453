#pragma once

#include "scenario/json_text.h"
#include "scenario/problems.h"

namespace hpsim {

/// Checks a whole file against the key table: unknown and missing keys, wrong types, values out of
/// range, and keys and values that this version does not support yet. Marks every value in which
/// something is wrong as bad.
///
///   "stpes": 3               unknown key, did you mean "steps"?
///   "steps": 0               expected an integer of at least 1, found 0
///   "micro_batches": 1       fine: a key that is not supported yet may have its default
///   "micro_batches": 2       not supported yet
///   "dtype": "float16"       not supported yet
void check_types(const JsonCursor& root, Problems& problems);

}  // namespace hpsim
