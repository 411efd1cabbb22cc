// A saved SkipMonitor: one that is loaded at any time goes on exactly as the saved one, over the
// end of its window too; a state that no monitor can have is refused and changes nothing.
#include <gtest/gtest.h>

#include <cmath>

#include "halfstep/tests/file_testing.h"
#include "halfstep/tests/run_testing.h"

namespace halfstep {
namespace {

using amp::SkipLog;
using amp::SkipMonitor;
using amp::SkipReason;
using amp::StepLog;
using test::bits;
using test::expect_says;
using test::message_of;

/// Adds the step that the generator draws: mostly taken ones, some clipped, some of each skip.
void add_any(SkipMonitor& monitor, uint32_t word) {
  if (word % 10 < 5) {
    monitor.add(StepLog{0, 0.1, 1.0, 1.0, 1.0f, 8.0}, 8.0);
  } else if (word % 10 < 8) {
    monitor.add(StepLog{0, 0.1, 2.0, 1.0, 1.0f, 8.0}, 8.0);
  } else {
    const SkipReason reason =
        word % 10 == 8 ? SkipReason::kNonFiniteLoss : SkipReason::kNonFiniteGrad;
    monitor.add(SkipLog{0, 0.1, HUGE_VAL, 1.0f, reason, 8.0, "w", 0, HUGE_VALF}, 4.0);
  }
}

void add_calibration(SkipMonitor& monitor) {
  monitor.add(SkipLog{0, 0.1, HUGE_VAL, 1.0f, SkipReason::kNonFiniteGrad, 8.0, "w", 0, HUGE_VALF},
              4.0);
}

/// All that a monitor tells.
std::string told(const SkipMonitor& monitor) {
  return cat(monitor.describe(), " window ", monitor.window(), " alarm ", monitor.alarm() ? 1 : 0,
             " calibration ", monitor.calibration_skips(), " in a row ", monitor.skips_in_a_row());
}

TEST(SkipMonitorState, a_loaded_monitor_goes_on_as_the_saved_one) {
  const test::WarningCollector warnings;
  std::vector<uint32_t> words(2500);
  Generator(4).fill_bits(words);
  const amp::SkipMonitorOptions options{.max_skip_rate = 0.2, .alert_after = 5};
  const test::TemporaryFolder folder;
  for (const size_t stop : {0u, 1u, 99u, 100u, 999u, 1000u, 1001u, 1400u, 2000u, 2499u}) {
    SCOPED_TRACE(stop);
    SkipMonitor saved(options), loaded(options), by_file(options);
    for (size_t i = 0; i < 3; ++i) add_calibration(saved);
    for (size_t i = 0; i < 7; ++i) add_any(loaded, words[100 + i]);
    for (size_t i = 0; i < stop; ++i) add_any(saved, words[i]);
    loaded.prepare_load(saved.state_dict())();
    save(saved, folder / "monitor");
    load(by_file, folder / "monitor");
    for (size_t i = stop; i < words.size(); ++i) {
      ASSERT_EQ(told(loaded), told(saved)) << i;
      ASSERT_EQ(told(by_file), told(saved)) << i;
      for (SkipMonitor* monitor : {&saved, &loaded, &by_file}) add_any(*monitor, words[i]);
    }
    EXPECT_EQ(bits(loaded.state_dict()), bits(saved.state_dict()));
    EXPECT_EQ(saved.calibration_skips(), 3);
  }
}

TEST(SkipMonitorState, calibration_goes_on_where_it_was) {
  SkipMonitor saved, loaded;
  loaded.add(StepLog{0, 0.1, 1.0, 1.0, 1.0f, 8.0}, 8.0);
  add_calibration(saved);
  loaded.prepare_load(saved.state_dict())();
  add_calibration(loaded);
  EXPECT_EQ(loaded.calibration_skips(), 2);
  EXPECT_EQ(loaded.window(), 0);
  loaded.add(StepLog{0, 0.1, 1.0, 1.0, 1.0f, 8.0}, 8.0);
  saved.prepare_load(loaded.state_dict())();
  add_calibration(saved);
  EXPECT_EQ(saved.calibration_skips(), 2);
  EXPECT_EQ(saved.rate(), 0.5);
}

TEST(SkipMonitorState, the_options_stay_the_constructors) {
  SkipMonitor saved({.max_skip_rate = 0.0, .alert_after = 2}), loaded({.alert_after = 7});
  saved.prepare_load(saved.state_dict())();
  loaded.prepare_load(saved.state_dict())();
  EXPECT_EQ(saved.options().alert_after, 2);
  EXPECT_EQ(loaded.options().alert_after, 7);
  EXPECT_EQ(loaded.options().max_skip_rate, 0.05);
}

TEST(SkipMonitorState, a_bad_state_is_refused_and_changes_nothing) {
  SkipMonitor monitor, other;
  for (const uint32_t word : {0u, 6u, 8u, 9u}) add_any(monitor, word);
  for (const uint32_t word : {0u, 9u, 9u}) add_any(other, word);
  const std::string before = bits(monitor.state_dict()) + told(monitor);
  const auto refused = [&](const StateDict& state, std::string_view what) {
    StateDict run;
    run.add("monitor", state);
    run.source = "run.safetensors";
    expect_says(message_of<Error>([&] { monitor.prepare_load(run.part("monitor")); }),
                {"[SkipMonitor.load run.safetensors] ", cat("monitor.", what)});
    EXPECT_EQ(bits(monitor.state_dict()) + told(monitor), before);
  };
  const StateDict good = other.state_dict();
  const auto with_number = [&](const std::string& key, double value) {
    StateDict state = good;
    state.numbers[key] = value;
    return state;
  };
  const auto with_outcome = [&](size_t i, float value) {
    std::vector<float> outcomes = good.tensors.at("outcomes").to_vector<float>();
    outcomes[i] = value;
    StateDict state = good;
    state.tensors["outcomes"] = Tensor::from(outcomes, {SkipMonitor::kWindow});
    return state;
  };
  const auto with_tensor = [&](const std::string& key, const Tensor& value) {
    StateDict state = good;
    state.tensors[key] = value;
    return state;
  };
  for (const auto& [key, value] : good.numbers) {
    StateDict state = good;
    state.numbers.erase(key);
    refused(state, cat(key, " is missing"));
    for (const double bad : {-1.0, 0.5, std::nan("")}) refused(with_number(key, bad), key);
  }
  StateDict without = good;
  without.tensors.clear();
  refused(without, "outcomes is missing");
  refused(with_tensor("outcomes", Tensor::zeros({999})), "outcomes");
  refused(with_tensor("outcomes", Tensor::zeros({1000}, DType::F64)), "outcomes");
  refused(with_tensor("more", Tensor::zeros({1})), "more is unknown");
  refused(with_number("more", 1.0), "more is unknown");
  refused(with_number("calibrating", 2.0), "calibrating = 2");
  for (const float bad : {-1.0f, 0.5f, 4.0f, 256.0f, test::kNan, test::kInfinity}) {
    refused(with_outcome(1, bad), "outcomes has ");
  }
  refused(with_outcome(3, 1.0f), "outcomes has 1 at 3");
  refused(with_outcome(999, 3.0f), "outcomes has 3 at 999");
  refused(with_number("steps", 2.0), "outcomes has 3 at 2");
  refused(with_number("steps_above", 4.0), "steps_above = 4");
  refused(with_number("skips_in_a_row", 4.0), "skips_in_a_row = 4");
  EXPECT_NO_THROW(monitor.prepare_load(good)());
  EXPECT_EQ(told(monitor), told(other));
}

}  // namespace
}  // namespace halfstep
