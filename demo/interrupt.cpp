// Signal handlers.
#include "halfstep/demo/interrupt.h"

#include <unistd.h>

#include <csignal>

namespace halfstep::demo {
namespace {

volatile std::sig_atomic_t pending = 0;

// Others than Ctrl-C often come twice, to the process and to its group: from timeout, or when a
// terminal is closed.
extern "C" void note_signal(int signal) {
  if (pending == SIGINT && signal == SIGINT) ::_exit(128 + signal);
  if (pending == 0) pending = signal;
}

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  struct sigaction before {};
  ::sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &action, nullptr);  // nohup ignores it
}

int pending_interrupt() { return pending; }

}  // namespace halfstep::demo
