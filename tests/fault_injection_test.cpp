// Whatever fails in a run of amp_demo, and whenever: each piece of memory that it asks for and each
// call that opens, reads, writes or renames a file fails once, in a run of its own. It must end in
// one clear line and status 1, or go on as if nothing had happened; the log holds complete rows,
// the checkpoint is a complete one and not ahead of the log, and nothing else stays behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "halfstep/backends/cpu/targets.h"
#include "halfstep/core/error.h"
#include "halfstep/core/safetensors.h"
#include "halfstep/demo/program.h"
#include "halfstep/tests/faults.h"

#if defined(__SANITIZE_ADDRESS__)
#define HS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HS_ASAN 1
#endif
#endif
#if defined(HS_ASAN)
#include <sanitizer/lsan_interface.h>
#endif

namespace halfstep::test {
namespace {

using Words = std::vector<std::string>;

constexpr size_t kFaults = kFaultNames.size();
constexpr int kLeak = 99;
// Sanitized and unoptimised programs are slow, and looking for leaks is: there only some of the
// calls.
#if defined(NDEBUG) && !defined(HS_ASAN) && !defined(__SANITIZE_THREAD__)
constexpr int64_t kMemoryStride = 1, kFileStride = 1;
#else
constexpr int64_t kMemoryStride = 20, kFileStride = 5;
#endif

std::optional<std::string> read_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::string contents(1 << 17, '\0');
  const ssize_t size = ::read(file, contents.data(), contents.size());
  ::close(file);
  EXPECT_TRUE(size >= 0 && size < 1 << 17) << path;
  contents.resize(static_cast<size_t>(size));
  return contents;
}

void write_file(const std::string& path, const std::optional<std::string>& contents) {
  ::unlink(path.c_str());
  if (!contents) return;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  EXPECT_EQ(::write(file, contents->data(), contents->size()), std::ssize(*contents)) << path;
  ::close(file);
}

/// What a run left behind.
struct Outcome {
  int status = -1;  // -1: ended by a signal
  FaultRecord record;
  std::string out, err;
  std::optional<std::string> csv, checkpoint;
};

/// The last step in a log + 1.
int64_t rows_of(const std::string& csv) {
  return std::max<int64_t>(0, std::ranges::count(csv, '\n') - 1);
}

int64_t step_of(const std::string& checkpoint) {
  return static_cast<int64_t>(read_safetensors(checkpoint).tensors.at("run.steps").item());
}

class FaultInjection : public testing::Test {
 protected:
  FaultInjection() {
    ::setenv("HALFSTEP_NUM_THREADS", "1", 1);
    supported_targets();  // found out once, and not by every child
    // In memory, if there is a file system for that.
    std::string pattern = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm/" : testing::TempDir();
    pattern += "fault_test.XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    shared_ = static_cast<FaultRecord*>(::mmap(nullptr, sizeof(FaultRecord), PROT_READ | PROT_WRITE,
                                               MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  }
  ~FaultInjection() override {
    ::munmap(shared_, sizeof(FaultRecord));
    std::filesystem::remove_all(folder_);
  }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  /// Runs amp_demo in a child of this process, with what lies in the files before.
  Outcome run(const Words& words, const FaultPlan& plan) const {
    write_file(path("csv"), csv_before_);
    write_file(path("checkpoint"), checkpoint_before_);
    *shared_ = {};
    const pid_t child = ::fork();
    if (child == 0) run_here(words, plan);
    int status = 0;
    ::waitpid(child, &status, 0);
    return {.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            .record = *shared_,
            .out = read_file(path("out")).value_or(""),
            .err = read_file(path("err")).value_or(""),
            .csv = read_file(path("csv")),
            .checkpoint = read_file(path("checkpoint"))};
  }

  /// The run without a fault.
  void expect_success(const Words& words) {
    whole_ = run(words, {});
    ASSERT_EQ(whole_.status, 0) << whole_.err;
    ASSERT_EQ(whole_.err, "");
    ASSERT_TRUE(whole_.csv && whole_.checkpoint);
    complete_[*whole_.checkpoint] = rows_of(*whole_.csv);
    if (checkpoint_before_) complete_.emplace(*checkpoint_before_, 0);
  }

  /// A run with one fault, against the whole run.
  void expect_sound(const Words& words, const FaultPlan& plan) {
    const Outcome got = run(words, plan);
    SCOPED_TRACE(cat(kFaultNames[static_cast<size_t>(plan.fault)], " ", plan.at,
                     plan.stays ? " and all after it: " : ": ", got.err));
    EXPECT_TRUE(got.record.failed) << "the fault did not come";
    EXPECT_NE(got.status, kLeak) << "leaks";
    if (plan.fault >= Fault::kInterruptRead) {
      EXPECT_EQ(got.status, 0) << "it is no failure";
    }
    if (got.status == 0) {
      ++harmless_;
      EXPECT_EQ(got.err, "");
      EXPECT_EQ(got.out, whole_.out);
      EXPECT_EQ(got.csv, whole_.csv);
      EXPECT_TRUE(got.checkpoint == whole_.checkpoint);  // not printed: it is long
    } else {
      ++told_;
      EXPECT_EQ(got.status, 1);
      EXPECT_TRUE(got.err.starts_with("amp_demo: ")) << got.err;
      EXPECT_EQ(got.err.find('\n'), got.err.size() - 1) << got.err;
      const bool is_memory = plan.fault == Fault::kNew || plan.fault == Fault::kMemory;
      const char* reason = is_memory                          ? "out of memory"
                           : plan.fault == Fault::kShortWrite ? "No space left on device"
                                                              : "Input/output error";
      EXPECT_NE(got.err.find(reason), std::string::npos) << got.err;
      EXPECT_TRUE(whole_.out.starts_with(got.out)) << got.out;
    }
    int64_t rows = 0;
    if (got.csv) {
      rows = rows_of(*got.csv);
      EXPECT_TRUE(whole_.csv->starts_with(*got.csv)) << *got.csv;
      EXPECT_TRUE(got.csv->empty() || got.csv->ends_with('\n')) << *got.csv;
    }
    if (got.checkpoint) {
      const auto found = complete_.find(*got.checkpoint);
      if (found != complete_.end()) {
        EXPECT_LE(found->second, rows) << "the checkpoint is ahead of the log";
      } else {  // a run that cannot print saves where it is
        EXPECT_NE(got.err.find("standard output"), std::string::npos) << "a torn checkpoint";
        EXPECT_EQ(step_of(path("checkpoint")), rows);
      }
    } else {
      EXPECT_FALSE(checkpoint_before_) << "the checkpoint is gone";
    }
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      EXPECT_TRUE(files_.contains(name)) << name << " was left behind";
    }
  }

  /// Each fault at every call; but before the log is opened, by the `log_open`-th call, only every
  /// fourth piece of memory. Only every `sparse`-th of the calls that get memory.
  void expect_all_sound(const Words& words, size_t log_open, int64_t sparse = 1) {
    for (size_t f = 0; f < kFaults; ++f) {
      const auto fault = static_cast<Fault>(f);
      const int64_t early = fault == Fault::kNew ? whole_.record.news_at_open[log_open] : 0;
      const bool is_memory = fault == Fault::kNew || fault == Fault::kMemory;
      for (int64_t at = 0; at < whole_.record.calls[f]; ++at) {
        const int64_t stride =
            (at < early ? 4 : 1) * (is_memory ? sparse * kMemoryStride : kFileStride);
        if (at % stride == 0) expect_sound(words, {fault, at, false});
        if (HasFailure()) return;
      }
      RecordProperty(std::string(kFaultNames[f]), cat(whole_.record.calls[f]));
    }
    RecordProperty("new before the log", cat(whole_.record.news_at_open[log_open]));
    record_counts();
  }

  void record_counts() {
    RecordProperty("told", cat(told_));
    RecordProperty("harmless", cat(harmless_));
    EXPECT_GT(told_, 10);
  }

  std::optional<std::string> csv_before_, checkpoint_before_;
  std::map<std::string, int64_t> complete_;  // checkpoints, with the rows that belong to them
  std::set<std::string> files_{"csv", "checkpoint", "out", "err"};
  Outcome whole_;

 private:
  [[noreturn]] void run_here(const Words& words, const FaultPlan& plan) const {
    const int flags = O_WRONLY | O_CREAT | O_TRUNC;
    ::dup2(::open(path("out").c_str(), flags, 0600), STDOUT_FILENO);
    ::dup2(::open(path("err").c_str(), flags, 0600), STDERR_FILENO);
    std::vector<const char*> argv{"amp_demo"};
    for (const std::string& word : words) argv.push_back(word.c_str());
    start_faults(plan, *shared_);
    int status = demo::run_program(static_cast<int>(argv.size()), argv.data());
    stop_faults();
#if defined(HS_ASAN)
    if (__lsan_do_recoverable_leak_check() != 0) status = kLeak;
#endif
    ::_exit(status);
  }

  std::string folder_;
  FaultRecord* shared_;  // with the children
  int64_t told_ = 0, harmless_ = 0;
};

class FaultsOfARun : public FaultInjection {
 protected:
  FaultsOfARun()
      : words_{"--precision",
               "fp16",
               "--steps",
               "4",
               "--csv",
               path("csv"),
               "--checkpoint",
               path("checkpoint"),
               "--checkpoint-every",
               "2"} {}

  void SetUp() override {
    Words other = words_;
    other.insert(other.end(), {"--seed", "7"});
    checkpoint_before_ = run(other, {}).checkpoint;
    ASSERT_TRUE(checkpoint_before_);
    expect_success(words_);
    // The checkpoint of step 2 is what the second one fails to replace.
    ASSERT_EQ(whole_.record.count(Fault::kRename), 2);
    middle_ = run(words_, {Fault::kRename, 1}).checkpoint;
    ASSERT_TRUE(middle_);
    ASSERT_TRUE(complete_.emplace(*middle_, 2).second);
  }

  Words words_;
  std::optional<std::string> middle_;
};

TEST_F(FaultsOfARun, from_the_start) {
  for (const Fault fault : {Fault::kNew, Fault::kMemory, Fault::kOpen, Fault::kWrite,
                            Fault::kShortWrite, Fault::kFsync, Fault::kTruncate, Fault::kClose}) {
    EXPECT_GT(whole_.record.count(fault), 0);  // that they are seen at all
  }
  expect_all_sound(words_, 1);  // the first is /dev/null
}

TEST_F(FaultsOfARun, resumed) {
  const Outcome from_the_start = whole_;
  csv_before_ = whole_.csv;
  checkpoint_before_ = middle_;
  const Words words{"--resume", path("checkpoint")};
  expect_success(words);
  EXPECT_EQ(whole_.csv, from_the_start.csv);
  EXPECT_TRUE(whole_.checkpoint == from_the_start.checkpoint);
  complete_[*middle_] = 2;
  EXPECT_GT(whole_.record.count(Fault::kRead), 0);
  expect_all_sound(words, 2);  // after the checkpoint
}

TEST_F(FaultInjection, of_a_run_on_data) {
  std::string data = "a,b,class\n";
  for (int row = 0; row < 10; ++row) data += cat(row, ",", row % 3, ",", row % 2, "\n");
  write_file(path("data"), data);
  files_.insert("data");
  const Words words{"--data",   path("data"), "--epochs",     "1",
                    "--hidden", "4",          "--batch",      "4",
                    "--csv",    path("csv"),  "--checkpoint", path("checkpoint")};
  expect_success(words);
  EXPECT_EQ(whole_.record.count(Fault::kFopen), 1);
  expect_all_sound(words, 1, 7);
}

// Not one call fails, but all from one on: there is no memory even to say so.
TEST_F(FaultsOfARun, without_memory_to_the_end) {
  for (int64_t at = 0; at < whole_.record.count(Fault::kNew) && !HasFailure();
       at += 10 * kMemoryStride) {
    expect_sound(words_, {Fault::kNew, at, true});
  }
  record_counts();
}

}  // namespace
}  // namespace halfstep::test
