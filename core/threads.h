// The number of threads that kernels may use. Results do not depend on it.
#pragma once

namespace halfstep {

/// Threads that one kernel may use, the calling one included. The default is the environment's
/// HALFSTEP_NUM_THREADS, else the CPUs that affinity and the cgroup's quota leave to this process.
int num_threads();
/// Takes effect with the next kernel. 1 means no pool at all. ArgumentError outside 1..256.
void set_num_threads(int count);

}  // namespace halfstep
