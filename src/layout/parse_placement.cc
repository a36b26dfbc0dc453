#include "layout/parse_placement.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <optional>
#include <stdexcept>

#include "base/suggest.h"

namespace hpsim {
namespace {

constexpr std::array<std::string_view, 7> kNames = {
    "Replicate",   "Partial",           "Shard", "StridedShard", "_StridedShard",
    "RaggedShard", "RaggedStridedShard"};
constexpr std::string_view kForms =
    "write Replicate, Partial(sum), Shard(0), StridedShard(0, 2), RaggedShard((0,), (2, 1)) or "
    "RaggedStridedShard((0,), (2, 1), 2)";

/// Ends the parse; caught in parse_placement.
class Malformed : public std::runtime_error {
 public:
  explicit Malformed(const std::string& message, std::string help = std::string(kForms))
      : std::runtime_error(message), help_(std::move(help)) {}
  [[nodiscard]] const std::string& help() const { return help_; }

 private:
  std::string help_;
};

/// An argument: a number, `value * count`, a word, or a tuple of arguments.
struct Argument {
  enum class Kind { Number, Run, Word, Tuple };
  Kind kind = Kind::Number;
  std::int64_t number = 0;
  std::int64_t count = 1;
  std::string_view word;
  std::vector<Argument> items;
};

/// Reads `Name` or `Name(argument, ...)`.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  std::string_view name() {
    const std::string_view word = take_word();
    if (word.empty()) throw Malformed("no name of a placement");
    return word;
  }

  std::vector<Argument> arguments() {
    std::vector<Argument> arguments;
    if (peek() == '(') arguments = tuple().items;
    if (peek() != '\0') throw Malformed(fmt::format("unexpected \"{}\" at the end", rest_));
    return arguments;
  }

 private:
  char peek() {
    const std::size_t start = rest_.find_first_not_of(" \t");
    rest_ = start == std::string_view::npos ? std::string_view() : rest_.substr(start);
    return rest_.empty() ? '\0' : rest_.front();
  }

  bool take(char wanted) {
    if (peek() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }

  std::string_view take_word() {
    peek();
    std::size_t length = 0;
    while (length < rest_.size() &&
           (std::isalnum(static_cast<unsigned char>(rest_[length])) || rest_[length] == '_')) {
      ++length;
    }
    const std::string_view word = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return word;
  }

  std::int64_t number() {
    peek();
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error == std::errc::result_out_of_range) {
      throw Malformed("a number is beyond 64 bits", "write a smaller one");
    }
    if (error != std::errc()) throw Malformed(fmt::format("no number at \"{}\"", rest_));
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }

  Argument argument(int depth) {
    const char next = peek();
    if (next == '(') return tuple(depth + 1);
    Argument argument;
    if (next == '-' || std::isdigit(static_cast<unsigned char>(next))) {
      argument.number = number();
      if (take('*')) {
        argument.kind = Argument::Kind::Run;
        argument.count = number();
      }
      return argument;
    }
    argument.kind = Argument::Kind::Word;
    argument.word = take_word();
    if (argument.word.empty()) throw Malformed(fmt::format("no argument at \"{}\"", rest_));
    return argument;
  }

  Argument tuple(int depth = 0) {
    constexpr int kDeepest = 3;
    if (depth > kDeepest) throw Malformed("tuples are nested too deeply");
    Argument result;
    result.kind = Argument::Kind::Tuple;
    take('(');
    while (!take(')')) {
      result.items.push_back(argument(depth));
      if (take(',')) continue;
      if (peek() != ')') throw Malformed("a closing parenthesis is missing");
    }
    return result;
  }

  std::string_view rest_;
};

void expect_count(std::string_view name, const std::vector<Argument>& arguments, std::size_t least,
                  std::size_t most) {
  if (arguments.size() >= least && arguments.size() <= most) return;
  throw Malformed(fmt::format("{} takes {}{} arguments, {} given", name, least,
                              most > least ? fmt::format(" to {}", most) : std::string(),
                              arguments.size()));
}

std::int64_t number_of(const Argument& argument, std::string_view what) {
  if (argument.kind != Argument::Kind::Number)
    throw Malformed(fmt::format("{} is no number", what));
  return argument.number;
}

int dim_of(const Argument& argument) {
  constexpr std::int64_t kMost = 1 << 20;
  const std::int64_t dim = number_of(argument, "the tensor dim");
  if (dim < 0 || dim > kMost) {
    throw Malformed(fmt::format("tensor dim {} is below 0 or too large", dim), "dims count from 0");
  }
  return static_cast<int>(dim);
}

std::int64_t factor_of(const Argument& argument) {
  const std::int64_t factor = number_of(argument, "split_factor");
  if (factor < 1) {
    throw Malformed(fmt::format("split_factor is {}", factor),
                    "it is the product of the sizes of the mesh dims that cut before, at least 1");
  }
  return factor;
}

bool uneven_of(const std::vector<Argument>& arguments, std::size_t at) {
  if (arguments.size() <= at) return false;
  const Argument& argument = arguments[at];
  if (argument.kind == Argument::Kind::Word && argument.word == "uneven") return true;
  throw Malformed("the last argument is not \"uneven\"");
}

std::vector<int> prefix_dims_of(const Argument& argument) {
  if (argument.kind != Argument::Kind::Tuple) throw Malformed("dims are no tuple, such as (0,)");
  std::vector<int> dims;
  for (const Argument& item : argument.items)
    dims.push_back(dim_of(item));
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == static_cast<int>(i)) continue;
    throw Malformed(
        fmt::format("the dims of a ragged shard are not the leading ones: {} at {}", dims[i], i),
        "write (0,), (0, 1), (0, 1, 2), ...");
  }
  if (dims.empty()) throw Malformed("a ragged shard has no dims", "write (0,)");
  return dims;
}

LocalUnits units_of(const Argument& argument) {
  if (argument.kind != Argument::Kind::Tuple || argument.items.empty()) {
    throw Malformed("local_units are no tuple, such as (2, 1)");
  }
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  LocalUnits units;
  for (const Argument& item : argument.items) {
    if (item.kind != Argument::Kind::Number && item.kind != Argument::Kind::Run) {
      throw Malformed("local_units are no numbers");
    }
    if (item.number < 0 || item.count < 1) {
      throw Malformed(fmt::format("{} units for {} ranks", item.number, item.count),
                      "units are 0 or more, for 1 rank or more");
    }
    std::int64_t total = 0;
    if (item.count > kMost || __builtin_mul_overflow(item.number, item.count, &total) ||
        total > kMost - units.sum() || item.count > kMost - units.size()) {
      throw Malformed("local_units sum to more than 2^53", "make them smaller");
    }
    units.append(item.count, item.number);
  }
  return units;
}

/// At least one of them must hold something.
void expect_positive(const std::vector<LocalUnits>& units) {
  for (const LocalUnits& each : units) {
    if (each.size() != units[0].size()) {
      throw Malformed(fmt::format("tuples of {} and {} units", units[0].size(), each.size()),
                      "give each coordinate as many units");
    }
  }
  for (const LocalUnits& each : units) {
    if (each.sum() > 0) return;
  }
  throw Malformed("the units sum to 0", "at least one rank holds something");
}

Placement ragged_strided(const std::vector<Argument>& arguments) {
  RaggedStridedShard ragged{.dims = prefix_dims_of(arguments[0]),
                            .local_units = {},
                            .split_factor = factor_of(arguments[2])};
  const Argument& units = arguments[1];
  const bool is_nested = units.kind == Argument::Kind::Tuple && !units.items.empty() &&
                         units.items[0].kind == Argument::Kind::Tuple;
  if (is_nested) {
    for (const Argument& item : units.items)
      ragged.local_units.push_back(units_of(item));
  } else {
    ragged.local_units.push_back(units_of(units));
  }
  expect_positive(ragged.local_units);
  const auto count = static_cast<std::int64_t>(ragged.local_units.size());
  if (count != 1 && count != ragged.split_factor) {
    throw Malformed(
        fmt::format("{} tuples of units, but split_factor is {}", count, ragged.split_factor),
        "give one tuple, or one per coordinate");
  }
  return ragged;
}

Placement read(std::string_view name, const std::vector<Argument>& arguments) {
  if (name == "Replicate") {
    expect_count(name, arguments, 0, 0);
    return Replicate{};
  }
  if (name == "Partial") {
    expect_count(name, arguments, 0, 1);
    if (arguments.empty() || arguments[0].word == "sum") return Partial{};
    if (arguments[0].word == "avg") return Partial{ReduceOp::Avg};
    throw Malformed("unknown reduction", "Partial(sum) and Partial(avg) are known");
  }
  if (name == "Shard") {
    expect_count(name, arguments, 1, 2);
    return Shard{dim_of(arguments[0]), uneven_of(arguments, 1)};
  }
  if (name == "StridedShard" || name == "_StridedShard") {
    expect_count(name, arguments, 2, 3);
    return StridedShard{dim_of(arguments[0]), factor_of(arguments[1]), uneven_of(arguments, 2)};
  }
  if (name == "RaggedShard") {
    expect_count(name, arguments, 2, 2);
    RaggedShard ragged{prefix_dims_of(arguments[0]), units_of(arguments[1])};
    expect_positive({ragged.local_units});
    return ragged;
  }
  if (name == "RaggedStridedShard") {
    expect_count(name, arguments, 3, 3);
    return ragged_strided(arguments);
  }
  const auto meant = suggest(name, {kNames.begin(), kNames.end()});
  throw Malformed(fmt::format("unknown placement \"{}\"", name),
                  meant ? fmt::format("did you mean \"{}\"?", *meant) : std::string(kForms));
}

}  // namespace

std::variant<Placement, PlacementProblem> parse_placement(std::string_view text) {
  try {
    Reader reader(text);
    const std::string_view name = reader.name();
    return read(name, reader.arguments());
  } catch (const Malformed& malformed) {
    return PlacementProblem{malformed.what(), malformed.help()};
  }
}

}  // namespace hpsim
