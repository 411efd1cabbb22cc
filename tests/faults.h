// Faults: makes the calls by which a program gets memory and writes files fail, one of them or all
// from one on. faults.cpp replaces operator new and delete, and takes the place of the system's
// functions by the linker's --wrap (see CMakeLists.txt), so it must be linked into a test of its
// own. What shared libraries do by other means than operator new stays unseen: OpenBLAS's buffers,
// the memory of exceptions, the files of iostreams and of std::filesystem.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace halfstep::test {

enum class Fault : uint8_t {
  kNew,         ///< operator new throws std::bad_alloc
  kMemory,      ///< aligned_alloc, behind the caching allocator, returns null
  kOpen,        ///< and so on: EIO
  kFopen,       ///< and so on
  kRead,        ///< pread
  kWrite,       ///< nothing is written
  kShortWrite,  ///< half is written, and the next write fails
  kFsync,
  kTruncate,
  kRename,
  kClose,           ///< the file is closed all the same
  kInterruptRead,   ///< pread returns EINTR: to be tried again
  kInterruptWrite,  ///< so does write
};
inline constexpr std::array<std::string_view, 13> kFaultNames = {"new",
                                                                 "aligned_alloc",
                                                                 "open",
                                                                 "fopen",
                                                                 "pread",
                                                                 "write",
                                                                 "short write",
                                                                 "fsync",
                                                                 "ftruncate",
                                                                 "rename",
                                                                 "close",
                                                                 "interrupted read",
                                                                 "interrupted write"};

struct FaultPlan {
  Fault fault = Fault::kNew;
  int64_t at = -1;     ///< the call that fails, counted from 0; -1: none
  bool stays = false;  ///< and so do all after it
};

struct FaultRecord {
  bool failed = false;                              ///< the planned call has come
  std::array<int64_t, kFaultNames.size()> calls{};  ///< of each kind
  std::array<int64_t, 4> news_at_open{};  ///< of operator new, when the n-th file is opened

  int64_t count(Fault fault) const { return calls[static_cast<size_t>(fault)]; }
};

/// From now on calls are counted in `record`, and fail as planned.
void start_faults(const FaultPlan& plan, FaultRecord& record);
void stop_faults();

}  // namespace halfstep::test
