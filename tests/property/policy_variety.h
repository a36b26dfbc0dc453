#pragma once

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <string>

#include "plan/plan.h"
#include "support/catch.h"

namespace hpsim::test {

/// How often scenarios had each policy: a generator that never draws it tests nothing.
class PolicyVariety {
 public:
  void add(const Plan& plan) {
    add_dtypes(plan);
    add_training(plan.scenario);
    add_inactive(plan.scenario);
    const FullyShardSpec& spec = plan.scenario.fully_shard;
    note("single parameters are sent", !spec.fuses_collectives);
    note("parameters are kept after backward",
         !spec.reshard_after_backward && plan.scenario.training.micro_batches > 1);
    note("parts are computed again",
         std::any_of(plan.steps.begin(), plan.steps.end(),
                     [](const Step& step) { return step.is_recomputed; }));
    note("parts are computed again, and send again",
         std::any_of(plan.steps.begin(), plan.steps.end(),
                     [](const Step& step) { return step.is_recomputed && step.collective; }));
    note("a part is kept after forward",
         std::any_of(plan.buckets.begin(), plan.buckets.end(),
                     [](const Bucket& bucket) { return bucket.post_forward_size > 0; }));
  }

  /// Whether each came at least `least` times.
  void check(int least) const {
    for (const auto& [what, count] : counts_) {
      std::cout << "  " << what << ": " << count << "\n";
      CAPTURE(what, count);
      CHECK(count >= least);
    }
    CHECK(counts_.size() == 30);
  }

 private:
  void note(const std::string& what, bool holds) { counts_[what] += holds ? 1 : 0; }

  void add_dtypes(const Plan& plan) {
    const auto some = [&](auto&& holds) {
      return std::any_of(plan.buckets.begin(), plan.buckets.end(), holds);
    };
    const auto bytes = [](DType dtype) { return size_bytes(dtype); };
    for (const DType dtype : {DType::BFloat16, DType::Float16}) {
      const std::string name(name_of(dtype));
      note("compute in " + name, some([&](const Bucket& b) { return b.dtype == dtype; }));
      note("parameters of " + name,
           std::any_of(plan.parameters.begin(), plan.parameters.end(),
                       [&](const PlannedParameter& p) { return p.dtype == dtype; }));
    }
    note("what is gathered is cast", some([](const Bucket& b) { return b.casts; }));
    note("reduction in more bits",
         some([&](const Bucket& b) { return bytes(b.reduce_dtype) > bytes(b.dtype); }));
    note("reduction in fewer bits",
         some([&](const Bucket& b) { return bytes(b.reduce_dtype) < bytes(b.dtype); }));
    const MixedPrecision& policy = plan.scenario.fully_shard.mp_policy;
    note("units give another dtype", policy.output_dtype.has_value());
    note("inputs are not cast", policy.param_dtype && !policy.cast_forward_inputs);
    note("parameters of several dtypes", !plan.scenario.numerics.parameter_dtypes.empty());
  }

  void add_training(const Scenario& scenario) {
    const TrainingSpec& training = scenario.training;
    note("micro-batches", training.micro_batches > 1);
    note("passes that reduce nothing", !training.gradient_syncs.empty());
    note("passes that all-reduce nothing",
         !training.all_reduces.empty() && scenario.roles.dp_replicate_dim.has_value());
    const auto& from = training.trained_from;
    note("frozen parameters", !from.empty());
    note("parameters are unfrozen", std::any_of(from.begin(), from.end(), [&](std::int64_t step) {
           return step > 0 && step < training.steps;
         }));
    note("global_tokens", training.loss_normalization == LossNormalization::GlobalTokens);
    if (const auto& clip = training.clip_grad_norm) {
      note("clipping by the largest", std::isinf(clip->norm_type));
      note("clipping by the 2-norm", clip->norm_type == 2);
      note("clipping by another norm", !std::isinf(clip->norm_type) && clip->norm_type != 2);
    }
    note("reduce_unused", training.reduce_unused);
    note("parameters on meta", training.init_device == InitDevice::Meta);
  }

  void add_inactive(const Scenario& scenario) {
    bool is_on_some = false;
    bool is_in_some = false;
    for (const InactiveSpec& part : scenario.data.inactive) {
      const auto size = [](const auto& list) { return static_cast<std::int64_t>(list.size()); };
      is_on_some = is_on_some || size(part.data_ranks) < scenario.num_data_ranks();
      is_in_some = is_in_some || size(part.micro_batches) < scenario.training.micro_batches;
    }
    note("parts are left out", !scenario.data.inactive.empty());
    note("some ranks leave parts out", is_on_some);
    note("some ranks leave parts out, and reduce what they use",
         is_on_some && !scenario.training.reduce_unused);
    note("parts are left out of some micro-batches", is_in_some);
  }

  std::map<std::string, int> counts_;
};

}  // namespace hpsim::test
