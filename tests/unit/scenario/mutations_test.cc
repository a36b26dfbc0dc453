#include <random>

#include "base/check.h"
#include "scenario/json_scan.h"
#include "scenario/parse.h"
#include "scenario_text.h"
#include "support/catch.h"

namespace hpsim {
namespace {

constexpr int kMutationsPerText = 4000;

std::vector<std::string> seeds() {
  std::vector<std::string> texts;
  for (const char* path :
       {"scenarios/fsdp/exact_linear_relu.json", "scenarios/fsdp/adam_silu.json",
        "scenarios/hsdp/sum_and_factors.json", "scenarios/fsdp/units_by_pattern.json",
        "scenarios/fsdp/permuted_ranks.json"}) {
    texts.push_back(read_file(path));
  }
  texts.push_back(chain_with(
      R"("roles": {"fsdp_shard_dim": "fsdp", "tp_dim": null}, "faults": [], "data": {"seed": 3,)"
      R"("init": {"kind": "integer", "max": 2, "scale": 0.5}, "sample_shape": [8],)"
      R"("data_dims": ["fsdp"]}, "fully_shard": {"replicate_params": ["**.bias"], "mp_policy": {}})"));
  return texts;
}

/// Words that mean something, and numbers at the edges.
constexpr const char* kWords[] = {"{",
                                  "}",
                                  "[",
                                  "]",
                                  ",",
                                  ":",
                                  "null",
                                  "true",
                                  "0",
                                  "-1",
                                  "1e400",
                                  "9223372036854775808",
                                  "9223372036854775807",
                                  "4294967296",
                                  "0.5",
                                  "1e308",
                                  "\"\"",
                                  "\"fsdp\"",
                                  "\"tp\"",
                                  "\"**\"",
                                  "\"exact\"",
                                  "\"linear\"",
                                  "\"type\"",
                                  "\"name\"",
                                  "\"shape\"",
                                  "\"model\"",
                                  "\"parameters\"",
                                  "\"\\ud800\"",
                                  "\"\\u0000\"",
                                  "\xff",
                                  "//",
                                  "/*",
                                  "\"",
                                  "\\",
                                  "[]",
                                  "{}",
                                  "1.0",
                                  "NaN"};

class Mutator {
 public:
  explicit Mutator(std::uint32_t seed) : random_(seed) {}

  std::string mutate(std::string text) {
    const int num_changes = 1 + below(3);
    for (int i = 0; i < num_changes && !text.empty(); ++i) {
      if (below(3) == 0) {
        change_byte(text);
      } else {
        change_token(text);
      }
    }
    return text;
  }

 private:
  int below(std::size_t end) { return static_cast<int>(random_() % end); }

  void change_byte(std::string& text) {
    const auto at = static_cast<std::size_t>(below(text.size()));
    switch (below(3)) {
      case 0:
        text.erase(at, 1);
        break;
      case 1:
        text.insert(at, 1, text[at]);
        break;
      default:
        text[at] = static_cast<char>(below(256));
    }
  }

  void change_token(std::string& text) {
    std::vector<ScannedToken> tokens;
    scan_tokens(text, [&](const ScannedToken& token) { tokens.push_back(token); });
    if (tokens.empty()) return;
    const ScannedToken& token = tokens[static_cast<std::size_t>(below(tokens.size()))];
    const ScannedToken& other = tokens[static_cast<std::size_t>(below(tokens.size()))];
    const std::string copy = text.substr(other.begin, other.end - other.begin);
    switch (below(4)) {
      case 0:
        text.erase(token.begin, token.end - token.begin);
        break;
      case 1:
        text.replace(token.begin, token.end - token.begin, copy);
        break;
      case 2:
        text.insert(token.begin, copy);
        break;
      default:
        text.replace(token.begin, token.end - token.begin,
                     kWords[static_cast<std::size_t>(below(std::size(kWords)))]);
    }
  }

  std::mt19937 random_;
};

TEST_CASE("a damaged scenario is read or refused, and nothing else happens") {
  Mutator mutator(20240607);
  int num_read = 0;
  int num_refused = 0;
  for (const std::string& seed : seeds()) {
    REQUIRE_NOTHROW(parsed(seed));
    for (int i = 0; i < kMutationsPerText; ++i) {
      const std::string text = mutator.mutate(seed);
      try {
        const Scenario scenario = parsed(text);
        ++num_read;
        if (scenario.units.empty() || scenario.local_batch() < 1) FAIL("incomplete: " << text);
      } catch (const Error& error) {
        ++num_refused;
        for (const Diagnostic& diagnostic : error.diagnostics()) {
          if (diagnostic.help.empty()) FAIL("no help: " << to_string(diagnostic));
        }
      } catch (const std::exception& exception) {
        FAIL(exception.what() << " for " << text);
      }
    }
  }
  // Both ends are reached often enough to mean something.
  CHECK(num_read > 1000);
  CHECK(num_refused > 10000);
}

TEST_CASE("random bytes are refused") {
  constexpr std::string_view kBytes = "{}[]\",:\\/*0123456789.eE-+ntfalsrue \n\xC3\xFF\x01";
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    const std::size_t length = random() % 40;
    for (std::size_t j = 0; j < length; ++j)
      text += kBytes[random() % kBytes.size()];
    try {
      static_cast<void>(parsed(text));
      FAIL("read: " << text);
    } catch (const Error& error) {
      if (error.diagnostics().empty()) FAIL("no diagnostic");
    }
  }
}

}  // namespace
}  // namespace hpsim
