// The training loop of amp_demo.
#include "halfstep/demo/run.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>

#include "halfstep/amp/csv_log.h"
#include "halfstep/core/error.h"
#include "halfstep/core/file.h"
#include "halfstep/demo/checkpoint.h"
#include "halfstep/demo/interrupt.h"
#include "halfstep/demo/parse.h"
#include "halfstep/demo/plot.h"
#include "halfstep/demo/progress.h"
#include "halfstep/demo/run_card.h"
#include "halfstep/demo/session.h"

namespace halfstep::demo {
namespace {

/// What is written must not replace what is read, or something else that is written; but for a
/// checkpoint, which may take the place of the one that the run goes on from.
void check_paths(const DemoOptions& options) {
  struct File {
    std::string_view name;
    const std::string& path;
    bool written;
  };
  const File files[] = {
      {"config", options.config_path, false},        {"data", options.data_path, false},
      {"resume", options.resume_path, false},        {"csv", options.csv_path, true},
      {"checkpoint", options.checkpoint_path, true}, {"plot", options.plot_path, true},
      {"run-card", options.run_card_path, true},
  };
  const auto is_same = [](const File& a, const File& b) {
    if (a.path.empty() || b.path.empty()) return false;
    std::error_code error;
    if (std::filesystem::equivalent(a.path, b.path, error) && !error) return true;
    const std::filesystem::path one =
        std::filesystem::weakly_canonical(follow_links("amp_demo", a.path), error);
    if (error) return false;
    return one == std::filesystem::weakly_canonical(follow_links("amp_demo", b.path), error) &&
           !error;
  };
  for (const File& file : files) {
    for (const File& other : files) {
      if (&file == &other) break;  // each pair once
      const bool goes_on = other.name == "resume" && file.name == "checkpoint";
      if (!file.written || goes_on || !is_same(file, other)) continue;
      throw UsageError(cat("--", file.name, " ", quote(file.path),
                           " given, which is the file of --", other.name,
                           "; it must be another one, because it is replaced"));
    }
  }
}

/// The log must not be the file that standard output or error go to: both would write to the same
/// places.
void check_not_printed_to(const std::string& path) {
  struct stat log {};
  if (path.empty() || ::stat(path.c_str(), &log) != 0 || !S_ISREG(log.st_mode)) return;
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat printed {};
    if (::fstat(stream, &printed) == 0 && printed.st_dev == log.st_dev &&
        printed.st_ino == log.st_ino) {
      throw UsageError(
          cat("--csv ", quote(path),
              " given, which is the file that the output goes to; it must be another"));
    }
  }
}

/// What is written at the end must not fail then: the folder must be there, and writable, and what
/// the name stands for a file.
void check_target(const std::string& path) {
  if (path.empty()) return;
  constexpr size_t kLongestName = 255 - 24;  // with what is put behind it for a while
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const auto refuse = [&](int reason) {
    throw FileError(cat("cannot write ", path, ": ", system_message(reason)));
  };
  if (::access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0) refuse(errno);
  if (std::filesystem::path(path).filename().string().size() > kLongestName) refuse(ENAMETOOLONG);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) refuse(EISDIR);
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
    throw FileError(cat("cannot write ", path, ": it is not a regular file"));
  }
}

/// Its folder is made when it is written.
void check_run_card(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty() || std::filesystem::exists(folder, ignored)) check_target(path);
}

/// A file beside `path` for the time of a run, if path is not empty.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& path)
      : path_(path.empty() ? "" : cat(path, ".", ::getpid(), ".csv")) {}
  ~ScratchFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

double drawn_threshold(const DemoOptions& options) {
  const bool clips = options.belts && options.clip == amp::Clip::kNorm;
  return clips && std::isfinite(options.max_norm) ? options.max_norm : 0.0;
}

/// The loop, and what it writes as it goes.
class Run {
 public:
  Run(Session& session, const std::string& csv_path, Output& output)
      : session_(session),
        options_(session.options()),
        output_(output),
        progress_(session.total_steps()) {
    if (!csv_path.empty()) csv_.emplace(csv_path, session.next_step());
  }

  /// A reader that has gone away ends the run, but its state is saved.
  RunEnd loop() {
    try {
      return print_and_step();
    } catch (const OutputError&) {
      if (session_.next_step() > 0) save_at_end();
      throw;
    }
  }

 private:
  RunEnd print_and_step() {
    print_header();
    RunEnd end = session_.unmet() != nullptr ? unmet() : RunEnd{};
    while (!session_.is_finished()) {
      const amp::StepOrSkipLog log = session_.step();
      if (csv_) csv_->append(log);
      print_step(log);
      if (session_.steps_per_epoch() > 0 &&
          session_.next_step() % session_.steps_per_epoch() == 0) {
        finish_epoch();
      }
      progress_.show(session_, log);
      if (end.status == kOk && session_.unmet() != nullptr) end = unmet();
      if (options_.checkpoint_every > 0 && session_.next_step() % options_.checkpoint_every == 0) {
        save();
      }
      if (session_.monitor().alarm()) {
        end = {kAlarm, session_.monitor().describe()};
        break;
      }
      if (const int signal = pending_interrupt(); signal != 0) {
        end = {kSignal + signal, cat("interrupted after step ", session_.next_step() - 1)};
        break;
      }
    }
    if (end.status == kOk && session_.monitor().alarm()) {  // it has ended so before
      end = {kAlarm, session_.monitor().describe()};
    }
    progress_.clear();
    save_at_end();
    output_.line(summary(session_));
    return end;
  }

  void print_header() {
    output_.line(describe(session_));
    if (!options_.quiet) {
      output_.line(session_.steps_per_epoch() > 0 ? epoch_header(session_.task().score())
                                                  : step_header());
    }
  }

  void print_step(const amp::StepOrSkipLog& log) {
    if (options_.quiet || session_.steps_per_epoch() > 0) return;
    const bool due = (session_.next_step() - 1) % options_.log_every == 0;
    if (!due && !session_.is_finished() && std::holds_alternative<amp::StepLog>(log)) return;
    progress_.clear();
    output_.line(step_row(log));
  }

  void finish_epoch() {
    session_.end_epoch();
    const int64_t epoch = session_.next_step() / session_.steps_per_epoch() - 1;
    if (options_.quiet || (epoch % options_.log_every != 0 && !session_.is_finished())) return;
    progress_.clear();
    output_.line(epoch_row(epoch, session_));
  }

  RunEnd unmet() const {
    const int64_t step = session_.unmet_step();
    const Injection& injection = *session_.unmet();
    const bool wanted_skip = injection.expected == Injection::Expected::kSkip;
    return {kUnexpected, cat("--inject ", injection.str(), ": step ", step,
                             wanted_skip ? " was taken; it was expected to be skipped"
                                         : " was skipped; it was expected to be taken")};
  }

  // The rows first: a checkpoint must not be ahead of them.
  void save() {
    if (csv_) csv_->sync();
    write_checkpoint(options_.checkpoint_path, session_);
    saved_at_ = session_.next_step();
  }

  void save_at_end() {
    if (!options_.checkpoint_path.empty() && saved_at_ != session_.next_step()) save();
  }

  Session& session_;
  const DemoOptions& options_;
  Output& output_;
  Progress progress_;
  std::optional<amp::CsvLog> csv_;
  int64_t saved_at_ = -1;
};

}  // namespace

RunEnd run(const DemoOptions& options, const std::optional<StateDict>& resumed, Output& output) {
  check_paths(options);
  check_target(options.checkpoint_path);
  check_target(options.plot_path);
  check_run_card(options.run_card_path);
  check_not_printed_to(options.csv_path);
  Session session(options);
  if (resumed) {
    const TakeOver take_over = session.prepare_load(*resumed);
    take_over();
    if (session.next_step() > session.total_steps()) {
      throw UsageError(cat("the run in ", options.resume_path, " is at step ", session.next_step(),
                           ", and ", session.total_steps(), " steps are asked for; ask for more"));
    }
  }
  catch_interrupts();
  const ScratchFile plotted(options.csv_path.empty() ? options.plot_path : "");
  const std::string& csv_path = options.csv_path.empty() ? plotted.path() : options.csv_path;
  RunEnd end = Run(session, csv_path, output).loop();
  if (!options.plot_path.empty()) {
    end.warning = draw_plot(options.plot_path, csv_path, drawn_threshold(options));
  }
  if (!options.run_card_path.empty()) write_run_card(options.run_card_path, session, end);
  return end;
}

}  // namespace halfstep::demo
