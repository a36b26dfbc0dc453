#pragma once

#include <vector>

#include "baseline/row_blocks.h"
#include "scenario/module_layouts.h"
#include "scenario/precision.h"
#include "scenario/scenario.h"

namespace hpsim {

/// Dtypes of the activations of a model, where some numbers are rounded to narrower ones than the
/// carrier; else nothing is.
class PassDTypes {
 public:
  explicit PassDTypes(const Scenario& scenario);

  [[nodiscard]] bool is_emulated() const { return is_emulated_; }
  [[nodiscard]] DType carrier() const { return carrier_; }
  /// \pre is_emulated
  [[nodiscard]] const ModuleDTypes& of_module(std::size_t module) const {
    return modules_.at(module);
  }
  /// In which an activation is handed on.
  [[nodiscard]] DType given(std::size_t activation) const;

  /// Whether ranks hold terms of what a module gives, or of the gradient of what it reads first:
  /// sums that are still to be made, or what experts send back.
  [[nodiscard]] bool has_terms(std::size_t module) const;
  [[nodiscard]] bool has_gradient_terms(std::size_t module) const;

  /// To which numbers that pass by a part may be rounded, and their gradients on the way back.
  [[nodiscard]] std::vector<DType> passing(const Bypass& bypass) const;
  [[nodiscard]] std::vector<DType> passing_back(const Bypass& bypass) const;

 private:
  const Scenario& scenario_;
  DType carrier_;
  bool is_emulated_;
  std::vector<ModuleDTypes> modules_;
  std::vector<ModuleLayout> layouts_;
};

}  // namespace hpsim
