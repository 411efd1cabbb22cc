// Progress: when to show it, and what it says.
#include "halfstep/demo/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "halfstep/core/warning.h"
#include "halfstep/demo/report.h"
#include "halfstep/demo/session.h"

namespace halfstep::demo {
namespace {

constexpr std::chrono::milliseconds kInterval{200};

void write_to_terminal(std::string_view text) {
  // Nothing depends on this line, so nobody needs to know if it could not be written.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

/// Columns that a line may take without being broken.
size_t terminal_width() {
  winsize size{};
  const bool is_known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size_t{size.ws_col} - 1 : std::string::npos;
}

std::string duration(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  if (whole >= 3600)
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(int64_t total_steps)
    : total_steps_(total_steps),
      is_terminal_(::isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      next_(start_ + kInterval) {
  if (!is_terminal_) return;
  set_warning_handler([this](std::string_view message) {
    clear();
    write_to_terminal(fmt::format("halfstep: warning: {}\n", message));
  });
}

Progress::~Progress() {
  if (!is_terminal_) return;
  clear();
  set_warning_handler({});
}

void Progress::show(const Session& session, const amp::StepOrSkipLog& log) {
  if (!is_terminal_) return;
  ++steps_;
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  next_ = now + kInterval;
  is_shown_ = true;

  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double speed = static_cast<double>(steps_) / seconds;
  const int64_t done = session.next_step();
  const double loss =
      std::visit([](const auto& row) { return static_cast<double>(row.loss); }, log);
  const std::string line = fmt::format(
      "step {}/{} ({}), {:.0f} steps/s, {} left, loss {}, scale {}, skips {}", done, total_steps_,
      percent(static_cast<double>(done) / static_cast<double>(total_steps_)), speed,
      duration(static_cast<double>(total_steps_ - done) / speed), number(loss),
      scale_text(session.scale()), session.run().skips);
  write_to_terminal("\r\033[K" + line.substr(0, terminal_width()));
}

void Progress::clear() {
  if (is_shown_) write_to_terminal("\r\033[K");
  is_shown_ = false;
}

}  // namespace halfstep::demo
