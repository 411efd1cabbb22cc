// amp_demo: the safe mixed-precision training step as a program. Parses, runs, and turns every
// failure into one line on standard error and an exit status (see run.h).
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <new>
#include <string>

#include "halfstep/demo/checkpoint.h"
#include "halfstep/demo/command_line.h"
#include "halfstep/demo/config.h"
#include "halfstep/demo/explain.h"
#include "halfstep/demo/parse.h"
#include "halfstep/demo/run.h"
#include "halfstep/demo/sweep.h"

using namespace halfstep;
using namespace halfstep::demo;

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

int report(std::string_view message, int status) {
  const std::string line = "amp_demo: " + halfstep::demo::one_line(message) + "\n";
  // Where a failure to write this could be told, it has just failed.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  return status;
}

int run_command(const CommandLine& command) {
  Output output;
  if (!command.text.empty()) {
    output.text(command.text);
    return kOk;
  }
  GivenSettings given = command.given;
  if (!command.config_path.empty()) given = merged(read_config(command.config_path), given);
  if (!command.sweep.empty() && given.contains("resume")) {
    throw UsageError("--sweep and --resume given; a sweep starts each run anew");
  }
  std::optional<StateDict> resumed;
  if (const auto found = given.find("resume"); found != given.end() && !command.print_config) {
    const std::string path = make_options({{"resume", found->second}}).resume_path;
    Checkpoint checkpoint = read_checkpoint(path);
    given = resumed_settings(checkpoint.settings, given, path);
    resumed = std::move(checkpoint.state);
  }
  const DemoOptions options = make_options(given);
  if (command.print_config) {
    output.text(config_text(given_settings(options)));
    return kOk;
  }
  if (command.explain) {
    Session session(options);
    output.text(explain(session));
    return kOk;
  }
  if (!command.sweep.empty()) {
    sweep(command.sweep, given, output);
    return kOk;
  }
  const RunEnd end = run(options, resumed, output);
  if (!end.warning.empty()) report("warning: " + end.warning, kOk);
  return end.status == kOk ? kOk : report(end.message, end.status);
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is a full disk: an error, not an end
  try {
    return run_command(parse_command_line(argc, argv));
  } catch (const UsageError& error) {
    return report(error.what(), kUsage);
  } catch (const std::bad_alloc&) {
    return report("out of memory; a smaller batch, hidden layer or data file needs less", kFailure);
  } catch (const std::exception& error) {
    return report(error.what(), kFailure);
  }
}
