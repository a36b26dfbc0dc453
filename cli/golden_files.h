#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "report/report.h"

namespace hpsim {

/// Where the goldens of scenarios are. A golden folder mirrors a directory of scenarios. Going up
/// from a scenario, to the root of the repository, the first of these has its golden:
///
///   scenarios/fsdp/a.json -> golden/fsdp/a.json      a directory "scenarios": golden beside it
///   mine/tp/b.json -> mine/golden/tp/b.json          a directory with "golden", no "scenarios"
///
/// and if there is none, "golden" in the argument, or in a directory below it if the argument has
/// "scenarios". A scenario beside "scenarios" has none. A folder that the caller names mirrors the
/// nearest directory "scenarios"; if there is none, the directory that the folder is in, else the
/// working directory, else the argument, whichever the scenario is below.
class GoldenFiles {
 public:
  /// `files` are what find_scenario_files makes of the arguments `paths`; `folder` is empty if the
  /// caller names none.
  /// \throws Error (Usage) if two scenarios have the same golden, or `folder` is a file
  GoldenFiles(std::vector<std::string> paths, const std::vector<std::string>& files,
              std::string folder);

  /// The golden of a scenario file among `files`, as it would be typed.
  [[nodiscard]] const std::string& golden_of(const std::string& file) const;

  /// Sets Report::golden of a run that passed.
  void compare(Report& report) const;

  /// Goldens below the directories among the arguments that mirror no scenario any more, sorted.
  /// Files that are no goldens do not count.
  [[nodiscard]] std::vector<std::string> obsolete() const;

  /// Makes the golden say what the run did. \pre report.golden
  /// \throws Error (Environment) if it cannot be written, (Usage) if a link leads out of the
  /// folder,
  ///         or something else is in its place
  void write(const Report& report) const;

  /// Removes an obsolete golden, and directories that it leaves empty.
  void remove(const std::string& golden) const;

 private:
  /// A golden folder and the directory of scenarios that it mirrors, both absolute.
  struct Mirror {
    std::filesystem::path folder;
    std::filesystem::path scenarios;
    bool operator<(const Mirror& other) const {
      return std::tie(folder, scenarios) < std::tie(other.folder, other.scenarios);
    }
  };
  struct Place {
    std::string golden;
    Mirror mirror;
  };

  [[nodiscard]] Mirror mirror_of(const std::filesystem::path& directory,
                                 const std::filesystem::path& argument) const;
  [[nodiscard]] std::vector<Mirror> mirrors_below(const std::filesystem::path& directory) const;
  void collect_obsolete(const std::filesystem::path& part, std::set<std::string>& found) const;
  /// \throws Error (Usage) if there is JSON that is no golden in its place
  void require_no_foreign_file(const std::string& scenario, const std::string& golden) const;
  void require_inside(const std::string& golden, const std::filesystem::path& folder) const;

  std::vector<std::string> paths_;
  std::string folder_;
  std::map<std::string, Place> places_;  ///< by scenario file
  std::set<std::string> expected_;       ///< absolute
};

}  // namespace hpsim
