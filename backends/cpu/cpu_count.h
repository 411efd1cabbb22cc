// How many CPUs this process may really use: affinity mask and cgroup quota (a container with two
// CPUs on a host of 128 must not start 128 threads). Linux; elsewhere the hardware's count.
#pragma once

#include <string>

namespace halfstep {

/// At least 1. The paths are those of the running system except in tests.
int usable_cpu_count(const std::string& cgroup_root = "/sys/fs/cgroup",
                     const std::string& own_cgroup = "/proc/self/cgroup");

}  // namespace halfstep
