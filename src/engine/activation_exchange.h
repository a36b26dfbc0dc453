#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/rank_memory.h"
#include "plan/activation_part.h"
#include "tensor/buffer.h"

namespace hpsim {

/// What one rank holds of an activation, or of the gradient of one.
template <class T>
struct LocalActivation {
  Buffer<T> data;
  std::int64_t elems = 0;
  DType dtype = DType::Float32;
};

/// to += from, element by element; both of one size. What rounding to its dtype leaves to do is the
/// caller's business, here as in all of the arithmetic.
template <class T>
void add_activation(const LocalActivation<T>& from, LocalActivation<T>& to);

/// Takes memory for an activation, and gives it back.
template <class T>
[[nodiscard]] LocalActivation<T> take_activation(RankMemory<T>& memory, DType dtype,
                                                 std::int64_t elems);
template <class T>
void give_back(RankMemory<T>& memory, LocalActivation<T>& activation);

/// Copies `block` from one part of an activation to another; both hold it.
template <class T>
void copy_block(std::int64_t batch, const ActivationPart& block, const T* from,
                const ActivationPart& from_part, T* to, const ActivationPart& to_part);

/// One change of the layout of an activation on one rank: copies into and out of slots around the
/// collective, or the local change where nothing is sent (see RedistributionSizes).
template <class T>
class ActivationExchange {
 public:
  /// `memory` must outlive the object.
  ActivationExchange(const Plan& plan, const Redistribution& redistribution,
                     const Coordinate& coordinate, RankMemory<T>& memory);

  struct Ends {
    const T* input = nullptr;
    T* output = nullptr;
  };

  /// Ends of the collective; none for local changes. Where `from` is of no more use afterwards, an
  /// all_reduce works in its place; the recomputation has uses of its own.
  [[nodiscard]] Ends begin(LocalActivation<T>& from, bool is_recomputed = false);
  /// Frees `from` where it is of no more use, and puts what arrived into `to`, or adds it to that;
  /// sums are rounded to the dtype of the activation, casts to that of `to`. Returns whether a
  /// value changed by rounding.
  bool finish(LocalActivation<T>& from, LocalActivation<T>& to);

 private:
  [[nodiscard]] bool is_of_parts() const {
    return communicates(op_) && op_ != RedistributeOp::AllReduce;
  }
  [[nodiscard]] LocalActivation<T> changed_locally(const LocalActivation<T>& from);
  [[nodiscard]] LocalActivation<T> take_result(LocalActivation<T>& from);
  [[nodiscard]] LocalActivation<T> copy_of(const LocalActivation<T>& from);
  void pack(const T* activation);
  void unpack(const T* slots, T* activation) const;

  RankMemory<T>& memory_;
  std::int64_t batch_;
  RedistributeOp op_;
  RedistributionSizes sizes_;
  bool is_first_ = false;                   ///< along the mesh dims of the change
  std::array<bool, 2> frees_from_in_ = {};  ///< for the first time, and recomputed
  bool frees_from_ = false;                 ///< the one at hand
  bool is_added_ = false;
  DType from_dtype_ = DType::Float32;
  DType to_dtype_ = DType::Float32;
  ActivationPart before_;
  ActivationPart after_;
  std::vector<ActivationPart> before_of_;  ///< per member of the group
  std::vector<ActivationPart> after_of_;
  LocalActivation<T> summed_;  ///< by an all_reduce
  Buffer<T> sent_;
  Buffer<T> arrived_;
};

}  // namespace hpsim
