#pragma once

#include <string>
#include <string_view>

namespace hpsim {

/// What reading `text` as a scenario does that no text may do; empty if all is well. Either it is
/// read:
///   - the scenario is complete;
///   - reading it again, and reading its values without comments and blanks, give the same hash;
/// or it is refused as invalid:
///   - there are diagnostics, not more than 1002, each with a message and a way out;
///   - places lie inside the text;
///   - what is printed is short, valid UTF-8 without control characters, and no text of the JSON
///     library.
///
/// Exceptions other than that refusal are named too; crashes and endless loops are for whoever
/// calls.
[[nodiscard]] std::string broken_promise(std::string_view text);

}  // namespace hpsim
