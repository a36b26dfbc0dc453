#pragma once

#include <cfenv>
#include <cstdint>

#include "base/dtype.h"
#include "trace/run_result.h"

namespace hpsim {

/// Whether floating-point operations between construction and `was_inexact` rounded: the INEXACT
/// flag of this thread, which hardware raises for scalar and vector operations alike.
class InexactWatch {
 public:
  InexactWatch() { std::feclearexcept(FE_INEXACT); }
  [[nodiscard]] bool was_inexact() const { return std::fetestexcept(FE_INEXACT) != 0; }
};

/// Runs the arithmetic of one rank that exact mode demands to be exact, and records if it was not.
class ExactArithmetic {
 public:
  ExactArithmetic(bool is_demanded, Rank rank, RunResult& result)
      : is_demanded_(is_demanded), rank_(rank), result_(result) {}

  void enter_step(std::int64_t step) { step_ = step; }

  template <class Arithmetic>
  void run(const Arithmetic& arithmetic) {
    const InexactWatch watch;
    arithmetic();
    note(watch.was_inexact());
  }

  /// Rounds numbers to a dtype that is emulated, which raises no flag.
  template <class T>
  void round(DType dtype, T* values, std::int64_t count) {
    note(round_to(dtype, values, count));
  }

  /// An operation rounded, or not.
  void note(bool has_rounded) {
    if (is_demanded_ && has_rounded) result_.step_record(rank_, step_).inexact = 1;
  }

 private:
  bool is_demanded_;
  Rank rank_;
  RunResult& result_;
  std::int64_t step_ = 0;
};

}  // namespace hpsim
