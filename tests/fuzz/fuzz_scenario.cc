// libFuzzer's view of the scenario reader.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "fuzz/reader_property.h"
#include "fuzz/scenario_mutator.h"

namespace {

std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

std::size_t put(const std::string& text, std::uint8_t* data, std::size_t max_size) {
  const std::size_t size = std::min(text.size(), max_size);
  std::memcpy(data, text.data(), size);
  return size;
}

}  // namespace

extern "C" {

std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string fault = hpsim::broken_promise(text_of(data, size));
  if (fault.empty()) return 0;
  std::fprintf(stderr, "broken promise: %s\n", fault.c_str());
  std::abort();
}

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                    unsigned int seed) {
  // Its own mutations know no JSON: they try what nobody thought of.
  if (seed % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
  hpsim::ScenarioMutator mutator(seed);
  return put(mutator.mutate(std::string(text_of(data, size))), data, max_size);
}

std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* data, std::size_t size,
                                      const std::uint8_t* other, std::size_t other_size,
                                      std::uint8_t* out, std::size_t max_size, unsigned int seed) {
  hpsim::ScenarioMutator mutator(seed);
  return put(mutator.cross(text_of(data, size), text_of(other, other_size)), out, max_size);
}

}  // extern "C"
