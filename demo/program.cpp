// What amp_demo does with its arguments, and how failures are told. Telling them must work when
// memory has run out.
#include "halfstep/demo/program.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <new>
#include <string>

#include "halfstep/demo/checkpoint.h"
#include "halfstep/demo/command_line.h"
#include "halfstep/demo/config.h"
#include "halfstep/demo/explain.h"
#include "halfstep/demo/parse.h"
#include "halfstep/demo/run.h"
#include "halfstep/demo/sweep.h"

namespace halfstep::demo {
namespace {

/// Standard streams that the caller closed must not become the numbers of files that are opened
/// later: a message would end up in the CSV file.
void occupy_standard_streams() {
  int file = 0;
  do {
    file = ::open("/dev/null", O_RDONLY);  // writing to it fails, as to a closed one
  } while (file >= 0 && file <= STDERR_FILENO);
  if (file >= 0) ::close(file);
}

/// Writes "amp_demo: " and the message as one line, and returns `status`.
int report(std::string_view message, int status) noexcept {
  std::string readable;
  try {
    readable = one_line(message);
    message = readable;
  } catch (const std::bad_alloc&) {  // then as it is
  }
  constexpr std::string_view kName = "amp_demo: ";
  const iovec parts[] = {{const_cast<char*>(kName.data()), kName.size()},
                         {const_cast<char*>(message.data()), message.size()},
                         {const_cast<char*>("\n"), 1}};
  // Where a failure to write this could be told, it has just failed.
  [[maybe_unused]] const ssize_t written = ::writev(STDERR_FILENO, parts, std::size(parts));
  return status;
}

constexpr std::string_view kOutOfMemory =
    "out of memory; a smaller batch, hidden layer or data file needs less";

/// CLI11 and nlohmann-json allocate in functions that must not throw. All files are complete then.
[[noreturn]] void end_without_memory() {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    ::_exit(report(kOutOfMemory, kFailure));
  } catch (...) {
  }
  std::abort();
}

int run_command(const CommandLine& command) {
  Output output;
  if (!command.text.empty()) {
    output.text(command.text);
    return kOk;
  }
  GivenSettings given = command.given;
  for (const char* name : {"csv", "plot", "run-card", "checkpoint"}) {
    if (command.sweep.empty() || !given.contains(name)) continue;
    throw UsageError(cat("--sweep and --", name, " given; a sweep writes no files"));
  }
  if (!command.config_path.empty()) given = merged(read_config(command.config_path), given);
  if (!command.sweep.empty() && given.contains("resume")) {
    throw UsageError("--sweep and --resume given; a sweep starts each run anew");
  }
  std::optional<StateDict> resumed;
  if (const auto found = given.find("resume"); found != given.end()) {
    const std::string path = make_options({{"resume", found->second}}).resume_path;
    Checkpoint checkpoint = read_checkpoint(path);
    given = resumed_settings(checkpoint.settings, given, path);
    resumed = std::move(checkpoint.state);
  }
  DemoOptions options = make_options(given);
  options.config_path = command.config_path;
  if (command.print_config) {
    output.text(config_text(given_settings(options)));
    return kOk;
  }
  if (command.explain) {
    Session session(options);
    output.text(explain(session));
    return kOk;
  }
  const RunEnd end =
      command.sweep.empty() ? run(options, resumed, output) : sweep(command.sweep, given, output);
  if (!end.warning.empty()) report("warning: " + end.warning, kOk);
  return end.status == kOk ? kOk : report(end.message, end.status);
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  occupy_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is a full disk: an error, not an end
  std::signal(SIGPIPE, SIG_IGN);  // likewise a reader of the output that has gone away
  std::set_terminate(end_without_memory);
  try {
    return run_command(parse_command_line(argc, argv));
  } catch (const UsageError& error) {
    return report(error.what(), kUsage);
  } catch (const std::bad_alloc&) {
    return report(kOutOfMemory, kFailure);
  } catch (const std::exception& error) {
    return report(error.what(), kFailure);
  }
}

}  // namespace halfstep::demo
