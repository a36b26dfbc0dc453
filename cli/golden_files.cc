#include "golden_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "output_file.h"
#include "report/golden.h"
#include "scenario_files.h"

namespace hpsim {
namespace {

namespace fs = std::filesystem;

/// A golden of thousands of parameters on 64 ranks is longer than any scenario.
constexpr std::size_t kMaxGoldenBytes = std::size_t{1} << 30;

/// With links resolved as far as there are any.
fs::path resolved(const fs::path& path) {
  std::error_code failure;
  fs::path real = fs::weakly_canonical(fs::absolute(path), failure);
  if (failure) real = fs::absolute(path).lexically_normal();
  return real.has_filename() ? real : real.parent_path();
}

bool is_inside(const fs::path& path, const fs::path& directory) {
  const auto [rest, unused] =
      std::mismatch(directory.begin(), directory.end(), path.begin(), path.end());
  return rest == directory.end();
}

/// Relative to the working directory if it is below, else absolute.
std::string as_typed(const fs::path& path) {
  const fs::path here = fs::current_path();
  return is_inside(path, here) ? path.lexically_relative(here).string() : path.string();
}

bool is_a_directory(const fs::path& path) {
  std::error_code failure;
  return fs::is_directory(path, failure);
}

[[noreturn]] void refuse(const std::string& file, std::string message, std::string help = {}) {
  throw Error(ErrorKind::Usage,
              {Diagnostic{.file = file, .message = std::move(message), .help = std::move(help)}});
}

[[noreturn]] void fail(const std::string& file, const std::string& what,
                       const std::error_code& failure) {
  throw Error(ErrorKind::Environment,
              {Diagnostic{.file = file,
                          .message = fmt::format("cannot be {}: {}", what, failure.message())}});
}

/// \throws Error (Environment) if that cannot be told
bool is_there(const fs::path& path) {
  std::error_code failure;
  const fs::file_status status = fs::symlink_status(path, failure);
  if (status.type() == fs::file_type::not_found) return false;
  if (failure) fail(path.string(), "looked at", failure);
  return true;
}

/// The directory and those above it, up to the first that is the root of a repository; not the root
/// of the file system.
std::vector<fs::path> directories_up(fs::path directory) {
  std::vector<fs::path> up;
  while (directory != directory.root_path()) {
    up.push_back(directory);
    std::error_code failure;
    if (fs::exists(directory / ".git", failure)) break;
    directory = directory.parent_path();
  }
  return up;
}

std::optional<fs::path> nearest_named_scenarios(const fs::path& directory) {
  for (const fs::path& above : directories_up(directory)) {
    if (above.filename() == "scenarios") return above;
  }
  return {};
}

/// The argument that the file stands below: itself, or the longest directory.
fs::path argument_of(const std::vector<std::string>& paths, const fs::path& file) {
  fs::path best = file.parent_path();
  std::size_t longest = 0;
  for (const std::string& path : paths) {
    const fs::path argument = resolved(path);
    const std::size_t length = argument.native().size();
    if (!is_a_directory(argument) || !is_inside(file, argument) || length < longest) continue;
    best = argument;
    longest = length;
  }
  return best;
}

bool is_golden(const fs::path& path) {
  return is_golden_text(read_text_file(path.string(), kMaxGoldenBytes));
}

}  // namespace

GoldenFiles::GoldenFiles(std::vector<std::string> paths, const std::vector<std::string>& files,
                         std::string folder)
    : paths_(std::move(paths)), folder_(std::move(folder)) {
  if (!folder_.empty() && is_there(folder_) && !is_a_directory(folder_)) {
    refuse(folder_, "is a file, but goldens are kept in a directory",
           "name a directory with --golden");
  }
  std::map<std::string, std::string> scenario_of;
  std::vector<Diagnostic> problems;
  for (const std::string& file : files) {
    const fs::path path = resolved(file);
    const Mirror mirror = mirror_of(path.parent_path(), argument_of(paths_, path));
    if (folder_.empty() && is_a_directory(mirror.scenarios / "scenarios")) {
      problems.push_back({.file = file,
                          .message = fmt::format("has no place for its golden: {} mirrors {}",
                                                 as_typed(mirror.folder),
                                                 as_typed(mirror.scenarios / "scenarios")),
                          .help = "move it in there, or name a directory with --golden"});
      continue;
    }
    fs::path golden = mirror.folder / path.lexically_relative(mirror.scenarios);
    golden.replace_extension(".json");
    const auto [other, is_new] = scenario_of.emplace(golden.string(), path.string());
    if (!is_new && other->second != path.string()) {
      problems.push_back(
          {.file = file,
           .message = fmt::format("has the same golden as {}: {}", other->second, as_typed(golden)),
           .help = "rename one of the two, or run them apart with --golden"});
    }
    expected_.insert(golden.string());
    places_[file] = {as_typed(golden), mirror};
  }
  if (!problems.empty()) throw Error(ErrorKind::Usage, std::move(problems));
}

GoldenFiles::Mirror GoldenFiles::mirror_of(const fs::path& directory,
                                           const fs::path& argument) const {
  if (!folder_.empty()) {
    const fs::path folder = resolved(folder_);
    if (const auto scenarios = nearest_named_scenarios(directory)) return {folder, *scenarios};
    for (const fs::path& top : {folder.parent_path(), fs::current_path()}) {
      if (top != top.root_path() && is_inside(directory, top)) return {folder, top};
    }
    return {folder, argument};
  }
  for (const fs::path& above : directories_up(directory)) {
    const fs::path beside = above.parent_path() / "golden";
    if (above.filename() == "scenarios") return {beside, above};
    // Where there are scenarios beside it, it is theirs.
    const fs::path within = above / "golden";
    if (is_a_directory(within) && !is_a_directory(above / "scenarios")) return {within, above};
  }
  // As near to the argument as no "scenarios" has a claim to "golden".
  fs::path own = argument;
  for (const fs::path& above : directories_up(directory)) {
    if (!is_inside(above, argument) || is_a_directory(above / "scenarios")) break;
    own = above;
  }
  return {own / "golden", own};
}

const std::string& GoldenFiles::golden_of(const std::string& file) const {
  return places_.at(file).golden;
}

void GoldenFiles::compare(Report& report) const {
  if (report.outcome != Outcome::Pass || !report.has_run) return;
  const std::string& golden = golden_of(report.file);
  if (!is_there(golden)) {
    report.golden = GoldenComparison{.file = golden, .state = GoldenState::Missing};
    return;
  }
  try {
    report.golden = compare_golden(golden, read_text_file(golden, kMaxGoldenBytes), report);
  } catch (const Error& error) {
    report.golden = GoldenComparison{.file = golden, .state = GoldenState::Unreadable};
    report.golden->differences.push_back(
        {.section = "golden", .message = error.diagnostics().front().message});
  }
}

std::vector<GoldenFiles::Mirror> GoldenFiles::mirrors_below(const fs::path& directory) const {
  std::set<Mirror> mirrors = {mirror_of(directory, directory)};
  for (const auto& [file, place] : places_) {
    if (is_inside(resolved(file), directory)) mirrors.insert(place.mirror);
  }
  return {mirrors.begin(), mirrors.end()};
}

void GoldenFiles::collect_obsolete(const fs::path& part, std::set<std::string>& found) const {
  std::error_code failure;
  fs::recursive_directory_iterator it(part, failure);
  for (; !failure && it != fs::recursive_directory_iterator(); it.increment(failure)) {
    const fs::path path = it->path().lexically_normal();
    if (path.extension() == ".json" && it->is_regular_file(failure) &&
        expected_.count(path.string()) == 0 && is_golden(path)) {
      found.insert(as_typed(path));
    }
  }
  if (failure && failure != std::errc::no_such_file_or_directory)
    fail(as_typed(part), "searched", failure);
}

std::vector<std::string> GoldenFiles::obsolete() const {
  std::set<std::string> found;
  for (const std::string& argument : paths_) {
    const fs::path directory = resolved(argument);
    if (!is_a_directory(directory)) continue;
    for (const Mirror& mirror : mirrors_below(directory)) {
      // All of the folder, or what mirrors the argument.
      collect_obsolete(is_inside(mirror.scenarios, directory)
                           ? mirror.folder
                           : mirror.folder / directory.lexically_relative(mirror.scenarios),
                       found);
    }
  }
  return {found.begin(), found.end()};
}

void GoldenFiles::require_inside(const std::string& golden, const fs::path& folder) const {
  const fs::path real = resolved(golden);
  if (!is_inside(real, resolved(folder))) {
    refuse(golden, fmt::format("a link leads out of the golden folder, to {}", real.string()),
           "goldens are written inside their folder only");
  }
}

void GoldenFiles::require_no_foreign_file(const std::string& scenario,
                                          const std::string& golden) const {
  if (!is_there(golden)) return;
  const std::string text = read_text_file(golden, kMaxGoldenBytes);
  if (!is_foreign_json(text)) return;
  refuse(golden, fmt::format("is where the golden of {} belongs, but is no golden", scenario),
         "move it, or name another directory with --golden");
}

void GoldenFiles::write(const Report& report) const {
  const Place& place = places_.at(report.file);
  HPSIM_CHECK(report.golden && report.outcome == Outcome::Pass, "a golden of {}", report.file);
  require_inside(place.golden, place.mirror.folder);
  require_no_foreign_file(report.file, place.golden);
  std::error_code failure;
  fs::create_directories(resolved(place.golden).parent_path(), failure);
  if (failure) fail(place.golden, "written", failure);
  const std::string before =
      is_there(place.golden) ? read_text_file(place.golden, kMaxGoldenBytes) : std::string();
  OutputFile(place.golden).commit(updated_golden(before, report));
}

void GoldenFiles::remove(const std::string& golden) const {
  std::error_code failure;
  fs::remove(golden, failure);
  if (failure) fail(golden, "removed", failure);
  const auto is_below_a_folder = [this](const fs::path& directory) {
    return std::any_of(places_.begin(), places_.end(), [&](const auto& entry) {
      const fs::path& folder = entry.second.mirror.folder;
      return directory != folder && is_inside(directory, folder);
    });
  };
  for (fs::path above = resolved(fs::path(golden).parent_path());
       is_below_a_folder(above) && fs::is_empty(above, failure) && !failure;
       above = above.parent_path()) {
    if (!fs::remove(above, failure)) return;
  }
}

}  // namespace hpsim
