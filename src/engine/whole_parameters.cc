#include "engine/whole_parameters.h"

#include "tensor/fill.h"

namespace hpsim {

template <class T>
const T* WholeParameters<T>::draw(int parameter) {
  Buffer<T>& tensor = drawn_.at(keeps_ ? static_cast<std::size_t>(parameter) : 0);
  if (keeps_ && tensor.data() != nullptr) return tensor.data();
  const std::int64_t elems = num_elems(plan_.parameter(parameter).shape);
  if (tensor.elems() < elems) {
    tensor = {};
    tensor = Buffer<T>(elems);
  }
  fill_parameter(plan_, parameter, 0, elems, tensor.data());
  return tensor.data();
}

template <class T>
void fill_parameter(const Plan& plan, int parameter, std::int64_t first, std::int64_t count,
                    T* out) {
  const Scenario& scenario = plan.scenario;
  const ParameterSpec& spec = scenario.parameters.at(static_cast<std::size_t>(parameter));
  fill(out, count, fill_key(spec.name, scenario.data.seed), first,
       parameter_fill(scenario.data, spec), plan.parameter(parameter).dtype);
}

#define HPSIM_INSTANTIATE(T)                       \
  template const T* WholeParameters<T>::draw(int); \
  template void fill_parameter(const Plan&, int, std::int64_t, std::int64_t, T*);
HPSIM_INSTANTIATE(float)
HPSIM_INSTANTIATE(double)
#undef HPSIM_INSTANTIATE

}  // namespace hpsim
