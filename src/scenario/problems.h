#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "scenario/json_text.h"

namespace hpsim {

/// Collects what is wrong with a file, and knows which values not to rely on. Messages and ways out
/// are shortened after 2000 bytes.
class Problems {
 public:
  /// `text` must outlive this.
  explicit Problems(const JsonText& text) : text_(text) {}

  /// `at` is wrong.
  void add(const JsonCursor& at, std::string message, std::string help);
  /// The key of the member `at` is wrong.
  void add_at_key(const JsonCursor& at, std::string message, std::string help);

  /// Whether as many problems are kept as will be told. What is costly to say need then only be
  /// counted.
  [[nodiscard]] bool is_full() const { return problems_.size() >= kMostKept; }
  void count(const Json& value);

  /// Marks a value as not to be relied on, because something inside it is wrong.
  void mark_bad(const Json& value) { bad_.insert(&value); }
  [[nodiscard]] bool is_bad(const Json& value) const { return bad_.count(&value) != 0; }

  [[nodiscard]] bool empty() const { return problems_.empty(); }

  /// In file order; of those beyond the first 1000 only the number is told.
  /// \throws Error (InvalidScenario) unless empty
  void throw_if_any() const;

 private:
  static constexpr std::size_t kMostKept = 1000;

  struct Problem {
    JsonCursor at;
    bool is_key = false;
    std::string message;
    std::string help;
  };

  void add(Problem problem);

  const JsonText& text_;
  std::vector<Problem> problems_;
  std::size_t num_not_kept_ = 0;
  std::unordered_set<const Json*> bad_;
};

}  // namespace hpsim
