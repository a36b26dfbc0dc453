#pragma once

#include <string>
#include <vector>

#include "model/model_spec.h"

namespace hpsim {

/// A trainable tensor of the model.
struct ParameterSpec {
  enum class Kind {
    Elementwise,
    LinearWeight,
    LinearBias,
    NormWeight,
    NormBias,
    EmbeddingWeight,
    ExpertWeight,  ///< w1, w2 or w3 of all experts
  };

  std::string name;  ///< fully qualified: "l0.weight"
  Shape shape;
  Kind kind = Kind::Elementwise;
  int module = 0;  ///< index into ModelSpec::modules, or into ModelSpec::elementwise
};

[[nodiscard]] std::vector<std::string> names_of(const std::vector<ParameterSpec>& parameters);

/// All parameters: in the order of modules, then weight before bias, w1 before w2 before w3. A
/// module that is tied to another has no weight of its own, and no bias if that is tied too.
[[nodiscard]] std::vector<ParameterSpec> list_parameters(const ModelSpec& model);

}  // namespace hpsim
