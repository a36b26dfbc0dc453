#include "trace/rank_mean.h"

#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "mesh/group.h"

namespace hpsim {
namespace {

/// Adds up numbers with what each addition loses (Neumaier's sum).
class CompensatedSum {
 public:
  void add(double term) {
    const double next = sum_ + term;
    const bool sum_is_larger = std::abs(sum_) >= std::abs(term);
    lost_ += sum_is_larger ? (sum_ - next) + term : (term - next) + sum_;
    sum_ = next;
  }
  [[nodiscard]] double value() const { return sum_ + lost_; }

 private:
  double sum_ = 0;
  double lost_ = 0;
};

}  // namespace

TensorView as_view(const std::vector<double>& values) {
  return {DType::Float64, reinterpret_cast<const std::byte*>(values.data()),
          static_cast<std::int64_t>(values.size())};
}

RankMean mean_of(const std::vector<TensorView>& views) {
  HPSIM_CHECK(!views.empty(), "the mean of no tensors");
  const auto count = static_cast<double>(views.size());
  RankMean result;
  for (std::int64_t i = 0; i < views[0].elems; ++i) {
    CompensatedSum sum;
    for (const TensorView& view : views)
      sum.add(view.at(i));
    result.mean.push_back(sum.value() / count);
    if (views.size() == 1) continue;
    double squares = 0;
    for (const TensorView& view : views) {
      const double distance = view.at(i) - result.mean.back();
      squares += distance * distance;
    }
    result.scatter.push_back(squares / count);
  }
  return result;
}

RankMean own_mean(const Plan& plan, int p, Rank rank,
                  const std::function<TensorView(Rank)>& view_of) {
  std::vector<TensorView> views;
  for (const Rank member : group_of(plan.mesh(), plan.averaged_dims(p), rank))
    views.push_back(view_of(member));
  return mean_of(views);
}

}  // namespace hpsim
