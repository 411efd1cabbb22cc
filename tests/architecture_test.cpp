// The house rules that a compiler does not check, read off the source tree: which folder may
// include which, how includes are written, where third-party kernels may appear, how long a file
// may be, and that no build file asks for -ffast-math.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const fs::path kRoot = HALFSTEP_SOURCE_DIR;

// Each folder, and the folders that its files may include. Folders not named here (demo, bench,
// tests) may include everything; nothing named here may include them.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"core", {"core"}},
    {"backends", {"core", "backends"}},
    {"autograd", {"core", "autograd"}},
    {"nn", {"core", "autograd", "nn"}},
    {"optim", {"core", "autograd", "optim"}},
    {"amp", {"core", "autograd", "nn", "optim", "amp"}},
};
constexpr size_t kMostLines = 350;

struct Source {
  fs::path path;       // from the root
  std::string folder;  // the first component; empty for a file of the root itself
  std::vector<std::string> lines;
};

bool is_source(const fs::path& path) {
  static const std::set<std::string> kSuffixes = {".h", ".cpp", ".def", ".cu", ".cuh"};
  return kSuffixes.count(path.extension().string()) != 0;
}

Source read(const fs::path& file) {
  Source source{fs::relative(file, kRoot), {}, {}};
  if (source.path.has_parent_path()) source.folder = source.path.begin()->string();
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) source.lines.push_back(line);
  return source;
}

/// All sources of the library, the demo, the tests and the benchmarks.
const std::vector<Source>& sources() {
  static const std::vector<Source> all = [] {
    std::vector<Source> found;
    for (const auto& entry : fs::directory_iterator(kRoot)) {
      if (entry.is_regular_file() && is_source(entry.path())) found.push_back(read(entry.path()));
    }
    for (const char* folder :
         {"core", "backends", "autograd", "nn", "optim", "amp", "demo", "tests", "bench"}) {
      if (!fs::exists(kRoot / folder)) continue;
      for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
        if (entry.is_regular_file() && is_source(entry.path())) found.push_back(read(entry.path()));
      }
    }
    return found;
  }();
  return all;
}

/// Calls fn(source, line number, the included name, whether in quotes) for every include.
template <class Fn>
void for_each_include(Fn&& fn) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"])re");
  for (const Source& source : sources()) {
    for (size_t i = 0; i < source.lines.size(); ++i) {
      std::smatch match;
      if (!std::regex_search(source.lines[i], match, kInclude)) continue;
      fn(source, i + 1, match[2].str(), match[1].str() == "\"");
    }
  }
}

std::string place(const Source& source, size_t line) {
  return source.path.string() + ":" + std::to_string(line) + ": ";
}

TEST(Architecture, the_source_tree_is_found) {
  std::set<std::string> folders;
  for (const Source& source : sources()) folders.insert(source.folder);
  for (const auto& [folder, allowed] : kMayInclude) EXPECT_TRUE(folders.count(folder)) << folder;
  EXPECT_GT(sources().size(), 60u);
}

TEST(Architecture, includes_go_one_way) {
  size_t checked = 0;
  for_each_include([&](const Source& source, size_t line, const std::string& name, bool) {
    const auto rule = kMayInclude.find(source.folder);
    if (rule == kMayInclude.end() || name.rfind("halfstep/", 0) != 0) return;
    const std::string rest = name.substr(std::string("halfstep/").size());
    const std::string target = rest.substr(0, rest.find('/'));
    EXPECT_TRUE(rule->second.count(target)) << place(source, line) << name;
    ++checked;
  });
  EXPECT_GT(checked, 100u);
}

TEST(Architecture, project_includes_start_with_halfstep_and_exist) {
  for_each_include([&](const Source& source, size_t line, const std::string& name, bool in_quotes) {
    const bool is_project = name.rfind("halfstep/", 0) == 0;
    const bool is_highway = source.folder == "backends" && name.rfind("hwy/", 0) == 0;
    EXPECT_TRUE(!in_quotes || is_project || is_highway) << place(source, line) << name;
    if (!is_project) return;
    EXPECT_TRUE(in_quotes) << place(source, line) << name;
    EXPECT_TRUE(fs::exists(kRoot / name.substr(std::string("halfstep/").size())))
        << place(source, line) << name << " does not exist";
  });
}

TEST(Architecture, third_party_kernels_stay_in_the_backends) {
  static const std::regex kKernels(R"(^(hwy/|cblas|openblas|cuda|cublas|mma\.h))");
  bool seen = false;
  for_each_include([&](const Source& source, size_t line, const std::string& name, bool) {
    const bool is_kernel_header = std::regex_search(name, kKernels);
    seen = seen || is_kernel_header;
    EXPECT_TRUE(!is_kernel_header || source.folder == "backends") << place(source, line) << name;
  });
  EXPECT_TRUE(seen);
}

TEST(Architecture, backends_are_reached_through_the_kernel_tables_only) {
  for_each_include([&](const Source& source, size_t line, const std::string& name, bool) {
    const bool may =
        source.folder == "backends" || source.folder == "tests" || source.folder == "bench";
    if (may || source.folder == "demo") return;
    EXPECT_NE(name.rfind("halfstep/backends/", 0), 0u) << place(source, line) << name;
  });
}

TEST(Architecture, no_source_file_is_longer_than_350_lines) {
  for (const Source& source : sources()) {
    EXPECT_LE(source.lines.size(), kMostLines) << source.path;
  }
}

TEST(Architecture, every_header_is_included_once) {
  for (const Source& source : sources()) {
    // A -inl.h is compiled once per SIMD target and has guards of its own.
    const std::string name = source.path.filename().string();
    if (source.path.extension() != ".h" || name.find("-inl.h") != std::string::npos) continue;
    EXPECT_TRUE(std::any_of(source.lines.begin(), source.lines.end(), [](const std::string& line) {
      return line == "#pragma once";
    })) << source.path;
  }
}

TEST(Architecture, every_file_opens_with_a_comment) {
  for (const Source& source : sources()) {
    ASSERT_FALSE(source.lines.empty()) << source.path;
    EXPECT_EQ(source.lines[0].rfind("//", 0), 0u) << source.path << " begins: " << source.lines[0];
  }
}

TEST(Architecture, nothing_is_built_with_fast_math) {
  // It makes isfinite(inf) true, and the whole subject of this project is finding infinities.
  const std::regex flags(
      "-f(fast|unsafe|finite|associative)-math|-Ofast|finite-math-only|fast_math");
  std::vector<fs::path> files = {kRoot / "CMakeLists.txt", kRoot / "CMakePresets.json"};
  for (const auto& entry : fs::recursive_directory_iterator(kRoot)) {
    const std::string name = entry.path().filename().string();
    const bool in_build_tree =
        fs::relative(entry.path(), kRoot).begin()->string().rfind("build", 0) == 0;
    const bool is_build_file = name == "CMakeLists.txt" || entry.path().extension() == ".cmake";
    if (is_build_file && !in_build_tree) files.push_back(entry.path());
  }
  for (const fs::path& file : files) {
    const Source source = read(file);
    ASSERT_FALSE(source.lines.empty()) << file;
    for (size_t i = 0; i < source.lines.size(); ++i) {
      const std::string code = source.lines[i].substr(0, source.lines[i].find('#'));
      EXPECT_FALSE(std::regex_search(code, flags)) << place(source, i + 1) << source.lines[i];
    }
  }
  const std::regex pragma(R"(#\s*pragma\s+(GCC\s+optimize|clang\s+fp|float_control))");
  for (const Source& source : sources()) {
    for (size_t i = 0; i < source.lines.size(); ++i) {
      EXPECT_FALSE(std::regex_search(source.lines[i], pragma)) << place(source, i + 1);
    }
  }
}

}  // namespace
