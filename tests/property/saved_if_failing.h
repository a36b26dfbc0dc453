#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <string>
#include <utility>

#include "support/catch.h"

namespace hpsim::test {

inline std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// HPSIM_PROPERTY_SEED, or a fixed one.
inline std::uint64_t property_seed() {
  return number_from_environment("HPSIM_PROPERTY_SEED", 20240607);
}

/// HPSIM_PROPERTY_COUNT, or `otherwise`.
inline int property_count(int otherwise) {
  return static_cast<int>(
      number_from_environment("HPSIM_PROPERTY_COUNT", static_cast<std::uint64_t>(otherwise)));
}

/// A drawn scenario, written to a file while it is tested: the file stays if the test fails there,
/// by `expect` or by an exception, so that `hpsim run` can take it.
class SavedIfFailing {
 public:
  SavedIfFailing(std::string json, int number, std::uint64_t seed)
      : json_(std::move(json)), exceptions_(std::uncaught_exceptions()) {
    const char* directory = std::getenv("TMPDIR");
    file_ = std::string(directory == nullptr ? "/tmp" : directory) + "/hpsim_property_" +
            std::to_string(seed) + "_" + std::to_string(number) + ".json";
    std::ofstream(file_) << json_ << "\n";
  }
  ~SavedIfFailing() {
    if (has_failed_ || std::uncaught_exceptions() > exceptions_) {
      std::cerr << "failing scenario saved as " << file_ << "\n";
    } else {
      std::remove(file_.c_str());
    }
  }
  SavedIfFailing(const SavedIfFailing&) = delete;
  SavedIfFailing& operator=(const SavedIfFailing&) = delete;

  void expect(bool holds) {
    has_failed_ = has_failed_ || !holds;
    CHECK(holds);
  }

  [[nodiscard]] const std::string& json() const { return json_; }
  [[nodiscard]] const std::string& file() const { return file_; }

 private:
  std::string json_;
  std::string file_;
  int exceptions_;
  bool has_failed_ = false;
};

}  // namespace hpsim::test
