// Affinity mask and cgroup CPU quota, versions 1 and 2. Serves the thread pool of parallel.cpp; a
// quota of 2.5 CPUs counts as 2, so that no thread is throttled in the middle of a piece.
#include "halfstep/backends/cpu/cpu_count.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <thread>

#ifdef __linux__
#include <sched.h>
#endif

namespace halfstep {
namespace {

int affinity_count() {
#ifdef __linux__
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// CPUs that one cgroup directory allows; infinity if it sets no limit. Version 2 has one file
/// "quota period" (quota may be "max"), version 1 has two files (quota may be -1).
double quota_of(const std::string& directory) {
  double quota = -1.0;
  double period = 0.0;
  if (std::ifstream v2(directory + "/cpu.max"); v2) {
    v2 >> quota >> period;
  } else {
    std::ifstream(directory + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(directory + "/cpu.cfs_period_us") >> period;
  }
  return quota > 0.0 && period > 0.0 ? quota / period : INFINITY;
}

/// The least quota on the way from `path` (as "/a/b") up to the root of one hierarchy.
double least_quota(const std::string& root, std::string path) {
  double least = quota_of(root);
  while (path.size() > 1) {
    least = std::min(least, quota_of(root + path));
    path.resize(path.rfind('/'));
  }
  return least;
}

}  // namespace

int usable_cpu_count(const std::string& cgroup_root, const std::string& own_cgroup) {
  double cpus = affinity_count();
  cpus = std::min(cpus, least_quota(cgroup_root, ""));
  // Lines read "id:controllers:/path"; version 2 has no controllers there. A container may see its
  // own group mounted as the root, which least_quota covers in both versions.
  std::ifstream file(own_cgroup);
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string id, controllers, path;
    std::getline(fields, id, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, path);
    if (path.empty() || path.front() != '/') continue;
    std::string root = cgroup_root;
    if (!controllers.empty()) {
      if (("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
      root += "/cpu";
    }
    cpus = std::min(cpus, least_quota(root, path));
  }
  return std::max(1, static_cast<int>(cpus));
}

}  // namespace halfstep
