// Ctrl-C, SIGTERM and a terminal that is closed (unless nohup says to ignore that): the first
// signal is noted, so that a run can end well; a second Ctrl-C ends the process at once.
#pragma once

namespace halfstep::demo {

/// From now on.
void catch_interrupts();
/// The signal that came, or 0.
int pending_interrupt();

}  // namespace halfstep::demo
