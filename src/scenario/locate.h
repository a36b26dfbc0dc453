#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "scenario/json_text.h"
#include "scenario/scenario.h"

namespace hpsim {

/// Where the deepest value begins that each JSON pointer (RFC 6901) reaches in the text. In
///
///   {
///     "mesh": {"shape": [2, 4]},
///     "a/b": {"": null}
///   }
///
///   ""               1:1                  "/mesh/shape/1"       2:25
///   "/mesh/shape"    2:21                 "/mesh/shape/01"      2:21, no index of RFC 6901
///   "/mesh/names/0"  2:11, of "mesh"      "/mesh/shape/1/0"     2:25, a number holds nothing
///   "/a~1b/"         3:15                 "mesh"                1:1, not even a pointer
/// \pre `text` is what parse_scenario takes
[[nodiscard]] std::vector<SourcePosition> locate(std::string_view text,
                                                 const std::vector<std::string>& pointers);

/// Pointer to the module of the file that a module of the model came from.
///
///   l0             "/model/0"
///   res.attn.wq    "/model/1/modules/0", the attention
///   res.add        "/model/1"
///   blocks.7.l1    "/model/2/module/modules/1"
[[nodiscard]] std::string module_pointer(const ModelSpec& model, int module);

/// Pointer to what the file says of a parameter of the scenario: its entry of `parameters`, or its
/// module in `model`.
///
///   weight -> "/parameters/weight"    a/b -> "/parameters/a~1b"    l0.bias -> "/model/0"
[[nodiscard]] std::string parameter_pointer(const Scenario& scenario,
                                            const ParameterSpec& parameter);

}  // namespace hpsim
