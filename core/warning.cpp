// Warnings: the handler and the set of kinds already reported.
#include "halfstep/core/warning.h"

#include <cstdio>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace halfstep {
namespace {

struct State {
  std::mutex mutex;
  WarningHandler handler;
  std::set<std::string, std::less<>> reported;
};

State& state() {
  static State instance;
  return instance;
}

}  // namespace

WarningHandler set_warning_handler(WarningHandler handler) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.reported.clear();
  return std::exchange(s.handler, std::move(handler));
}

void warn_once(std::string_view kind, std::string_view message) {
  State& s = state();
  WarningHandler handler;
  {
    const std::lock_guard lock(s.mutex);
    if (s.reported.find(kind) != s.reported.end()) return;
    s.reported.emplace(kind);
    handler = s.handler;
  }
  if (handler) {
    handler(message);
  } else {
    std::fprintf(stderr, "halfstep: warning: %.*s\n", static_cast<int>(message.size()),
                 message.data());
  }
}

}  // namespace halfstep
