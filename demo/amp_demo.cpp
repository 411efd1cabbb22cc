// amp_demo: the safe mixed-precision training step as a program. Parses, runs, and turns every
// failure into one line on standard error and an exit status: 0 all went well, 1 the run failed,
// 2 the command line was not understood.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <new>
#include <string>

#include "halfstep/demo/command_line.h"
#include "halfstep/demo/parse.h"
#include "halfstep/demo/run.h"

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

}  // namespace

int main(int argc, char** argv) {
  using namespace halfstep::demo;
  occupy_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is a full disk: an error, not an end
  try {
    const CommandLine command = parse_command_line(argc, argv);
    Output output;
    if (!command.text.empty()) {
      output.text(command.text);
    } else {
      run(command.options, output);
    }
    return 0;
  } catch (const UsageError& error) {
    return report(error.what(), 2);
  } catch (const std::bad_alloc&) {
    return report("out of memory; a smaller batch, hidden layer or data file needs less", 1);
  } catch (const std::exception& error) {
    return report(error.what(), 1);
  }
}
