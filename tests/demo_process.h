// amp_demo while it runs: output taken write by write, so that a test knows where the program is,
// and signals that are known to have arrived.
#pragma once

#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include <sstream>

#include "halfstep/tests/demo_testing.h"

namespace halfstep::demo {

class Running {
 public:
  /// Starts amp_demo with standard error going to `errors`, or, if that is empty, to a terminal.
  Running(const Words& arguments, const std::string& errors) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_DIRECT), 0);  // a read returns what one write wrote
    ::fcntl(ends[1], F_SETPIPE_SZ, ::getpagesize());    // room for a single write
    output_ = ends[0];
    if (errors.empty()) open_terminal();
    const std::string error_path = errors.empty() ? ::ptsname(terminal_) : errors;

    Words words{AMP_DEMO_PATH};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    process_ = ::fork();
    if (process_ == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::dup2(::open(error_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOCTTY, 0600),
             STDERR_FILENO);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(ends[1]);
  }
  ~Running() {
    if (process_ > 0) {
      ::kill(process_, SIGKILL);
      wait();
    }
    close_output();
    if (terminal_ >= 0) ::close(terminal_);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  static bool can_open_terminal() {
    const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    return terminal >= 0 && ::close(terminal) == 0;
  }

  /// Waits until there is something to read, or the program has closed its output. What was written
  /// after that the program has to wait for: it does not get beyond its next write.
  void await_output() const {
    pollfd ready{.fd = output_, .events = POLLIN, .revents = 0};
    while (::poll(&ready, 1, -1) < 0) {
    }
  }
  /// What one write wrote; empty when the program has ended.
  std::string read_write() const { return read_from(output_); }
  std::string read_rest() const {
    std::string text;
    for (std::string part; !(part = read_write()).empty();) text += part;
    return text;
  }
  /// What the terminal was sent since the last call; empty when the program has ended.
  std::string read_terminal() const { return read_from(terminal_); }
  void set_terminal_width(unsigned short columns) const {
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    EXPECT_EQ(::ioctl(terminal_, TIOCSWINSZ, &size), 0);
  }
  bool has_terminal_output() const {
    pollfd ready{.fd = terminal_, .events = POLLIN, .revents = 0};
    return ::poll(&ready, 1, 0) == 1 && (ready.revents & POLLIN) != 0;
  }
  void close_output() {
    if (output_ >= 0) ::close(output_);
    output_ = -1;
  }

  void send(int signal) const { ::kill(process_, signal); }
  /// Sends a signal and waits until its handler has been entered, or the process is no more.
  void deliver(int signal) const {
    send(signal);
    while (is_pending(signal)) ::usleep(100);
  }

  /// The exit status; minus the signal, if one ended it.
  int wait() {
    int status = 0;
    while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
    process_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  static std::string read_from(int file) {
    std::string text(8192, '\0');
    ssize_t count = 0;
    while ((count = ::read(file, text.data(), text.size())) < 0 && errno == EINTR) {
    }
    text.resize(count > 0 ? static_cast<size_t>(count) : 0);  // a terminal that is closed: EIO
    return text;
  }

  void open_terminal() {
    terminal_ = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    EXPECT_GE(terminal_, 0);
    EXPECT_EQ(::grantpt(terminal_), 0);
    EXPECT_EQ(::unlockpt(terminal_), 0);
  }

  bool is_pending(int signal) const {
    std::istringstream lines(read_file("/proc/" + std::to_string(process_) + "/status"));
    for (std::string name, value; lines >> name;) {
      if (name != "SigPnd:" && name != "ShdPnd:") continue;
      lines >> value;
      if ((std::stoull(value, nullptr, 16) >> (signal - 1) & 1) != 0) return true;
    }
    return false;
  }

  pid_t process_ = -1;
  int output_ = -1;
  int terminal_ = -1;
};

}  // namespace halfstep::demo
