#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <vector>

#include "exec/gloo/rank_session.h"
#include "mesh/group.h"
#include "plan/plan.h"

namespace hpsim::bench {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// The collectives of one optimizer step as one rank sends them, from buffers of their own.
class BareCollectives {
 public:
  BareCollectives(const Plan& plan, RankSession& session) : session_(session) {
    const Mesh& mesh = plan.mesh();
    const Coordinate coordinate = mesh.coordinate_of(session.rank());
    for (const Step& step : plan.steps) {
      if (step.step > 0) break;
      if (!step.collective) continue;
      const CollectiveSpec& spec = *step.collective;
      Call& call = calls_.emplace_back();
      call.op = spec.op;
      call.group.members = group_of(mesh, spec.dims, session.rank());
      call.group.id = 1000 + static_cast<std::uint64_t>(call.group.members[0].value) +
                      100 * static_cast<std::uint64_t>(spec.dims[0]);
      call.input.assign(static_cast<std::size_t>(spec.elems_in.at(mesh, coordinate)), 0.01F);
      call.output.assign(static_cast<std::size_t>(spec.elems_out.at(mesh, coordinate)), 0.01F);
    }
  }

  void run() {
    for (Call& call : calls_) {
      const bool in_place = call.op == CollectiveOp::AllReduce;
      float* const output = in_place ? call.input.data() : call.output.data();
      (void)session_.communicate({0, call.op, DType::Float32, call.input.data(), output,
                                  static_cast<std::int64_t>(call.input.size()),
                                  static_cast<std::int64_t>(call.output.size())},
                                 call.group, ++tag_);
    }
  }

 private:
  struct Call {
    CollectiveOp op = CollectiveOp::AllGather;
    RankGroup group;
    std::vector<float> input, output;
  };

  RankSession& session_;
  std::vector<Call> calls_;
  std::uint64_t tag_ = 1 << 20;
};

/// The products of one linear on one rank, forward and backward.
class BareLinear {
 public:
  BareLinear(std::int64_t rows, std::int64_t in, std::int64_t out, bool has_input_gradient = true)
      : input_(Matrix::Constant(rows, in, 0.01F)),
        weight_(Matrix::Constant(out, in, 0.01F)),
        output_(rows, out),
        output_gradient_(Matrix::Constant(rows, out, 0.01F)),
        input_gradient_(rows, in),
        weight_gradient_(out, in),
        has_input_gradient_(has_input_gradient) {}

  void run() {
    output_.noalias() = input_ * weight_.transpose();
    weight_gradient_.noalias() = output_gradient_.transpose() * input_;
    if (has_input_gradient_) input_gradient_.noalias() = output_gradient_ * weight_;
  }

 private:
  Matrix input_, weight_, output_;
  Matrix output_gradient_, input_gradient_, weight_gradient_;
  bool has_input_gradient_;
};

/// The products of attention on one rank, forward and backward: scores and their use for every
/// head of every sample, without masks, maxima and exponentials.
class BareAttention {
 public:
  BareAttention(std::int64_t heads_of_samples, std::int64_t seq, std::int64_t head_dim)
      : num_heads_(heads_of_samples),
        q_(Matrix::Constant(seq, head_dim, 0.01F)),
        k_(q_),
        v_(q_),
        output_(q_),
        gradient_(q_),
        scores_(seq, seq),
        scores_gradient_(seq, seq) {}

  void run() {
    for (std::int64_t head = 0; head < num_heads_; ++head) {
      scores_.noalias() = q_ * k_.transpose();
      output_.noalias() = scores_ * v_;
      gradient_.noalias() = scores_.transpose() * output_;  // of values
      scores_gradient_.noalias() = output_ * v_.transpose();
      gradient_.noalias() = scores_gradient_ * k_;              // of queries
      gradient_.noalias() = scores_gradient_.transpose() * q_;  // of keys
    }
  }

 private:
  std::int64_t num_heads_;
  Matrix q_, k_, v_, output_, gradient_, scores_, scores_gradient_;
};

}  // namespace hpsim::bench
