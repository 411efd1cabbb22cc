// Warnings: to standard error or to a handler, each kind once.
#include "halfstep/core/warning.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace halfstep {
namespace {

/// Restores what was there before.
class HandlerScope {
 public:
  explicit HandlerScope(WarningHandler handler)
      : previous_(set_warning_handler(std::move(handler))) {}
  ~HandlerScope() { set_warning_handler(std::move(previous_)); }
  HandlerScope(const HandlerScope&) = delete;
  HandlerScope& operator=(const HandlerScope&) = delete;

 private:
  WarningHandler previous_;
};

TEST(Warning, without_a_handler_is_a_line_on_standard_error) {
  const HandlerScope scope({});
  testing::internal::CaptureStderr();
  warn_once("a kind", "what was noticed");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "halfstep: warning: what was noticed\n");
}

TEST(Warning, comes_once_per_kind_until_the_handler_is_set_again) {
  std::vector<std::string> seen;
  const WarningHandler note = [&](std::string_view message) { seen.emplace_back(message); };
  const HandlerScope scope(note);
  warn_once("a", "first");
  warn_once("a", "second");
  warn_once("b", "third");
  EXPECT_EQ(seen, (std::vector<std::string>{"first", "third"}));
  set_warning_handler(note);
  warn_once("a", "fourth");
  EXPECT_EQ(seen.back(), "fourth");
}

TEST(Warning, a_handler_may_warn_and_may_throw) {
  int calls = 0;
  const HandlerScope scope([&](std::string_view) {
    ++calls;
    if (calls == 1) warn_once("inner", "from within");
    throw std::string("thrown");
  });
  EXPECT_THROW(warn_once("outer", "at first"), std::string);
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace halfstep
