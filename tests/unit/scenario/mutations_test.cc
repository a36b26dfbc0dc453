#include <algorithm>
#include <filesystem>
#include <random>

#include "fuzz/reader_property.h"
#include "fuzz/scenario_mutator.h"
#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

#ifdef __SANITIZE_THREAD__
constexpr int kMutationsPerText = 10;  // the reader has one thread: nothing to find, but slowly
#else
constexpr int kMutationsPerText = 100;
#endif

/// All scenarios of the tree, also those that are refused, in the order of their names.
std::vector<std::string> shipped_texts() {
  const std::filesystem::path root = HPSIM_SOURCE_DIR;
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "scenarios")) {
    if (entry.path().extension() != ".json") continue;
    if (entry.path().filename() == "scenario.schema.json") continue;
    files.push_back(entry.path().lexically_relative(root).string());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> texts;
  for (const std::string& file : files)
    texts.push_back(read_file(file));
  return texts;
}

bool is_read(const std::string& text) {
  try {
    static_cast<void>(parsed(text));
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST_CASE("a damaged scenario is read or refused, and nothing else happens") {
  ScenarioMutator mutator(20240607);
  Dice dice(20240608);
  int num_read = 0;
  int num_refused = 0;
  const std::vector<std::string> texts = shipped_texts();
  for (const std::string& text : texts) {
    if (const std::string fault = broken_promise(text); !fault.empty()) FAIL(fault << "\n" << text);
    for (int i = 0; i < kMutationsPerText; ++i) {
      const std::string damaged =
          i % 10 == 0 ? mutator.cross(text, texts[dice.below(texts.size())]) : mutator.mutate(text);
      const std::string fault = broken_promise(damaged);
      if (!fault.empty()) FAIL(fault << "\n" << damaged);
      ++(is_read(damaged) ? num_read : num_refused);
    }
  }
  // Both ends are reached often enough to mean something.
  const int num_damaged = num_read + num_refused;
  CHECK(num_read > num_damaged / 40);
  CHECK(num_refused > num_damaged / 3);
}

TEST_CASE("random bytes are refused") {
  constexpr std::string_view kBytes = "{}[]\",:\\/*0123456789.eE-+ntfalsrue \n\xC3\xFF\x01";
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    const std::size_t length = random() % 40;
    for (std::size_t j = 0; j < length; ++j)
      text += kBytes[random() % kBytes.size()];
    if (is_read(text)) FAIL("read: " << text);
    if (const std::string fault = broken_promise(text); !fault.empty()) FAIL(fault << "\n" << text);
  }
}

}  // namespace
}  // namespace hpsim
