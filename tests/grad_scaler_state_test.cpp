// GradScaler's saved state, which a load takes over whole or not at all, and the disabled mode.
#include <gtest/gtest.h>

#include <cmath>

#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using test::expect_says;
using test::gradient_of;
using test::loss_with_gradient;
using test::message_of;
using test::snapshot;
using Driver = test::ScalerDriver;
using State = std::pair<double, int64_t>;

StateDict state_of(double scale, double growth, double backoff, double interval, double tracker) {
  return {{},
          {{"scale", scale},
           {"growth_factor", growth},
           {"backoff_factor", backoff},
           {"growth_interval", interval},
           {"_growth_tracker", tracker}}};
}

TEST(GradScalerState, a_load_replaces_all_five_values) {
  Driver d({.init_scale = 6.0, .growth_factor = 7.0, .backoff_factor = 0.8, .growth_interval = 9});
  d.good(7);
  EXPECT_EQ(d.scaler.state_dict().numbers, state_of(6.0, 7.0, 0.8, 9.0, 7.0).numbers);
  const StateDict state = state_of(3.0, 4.0, 0.5, 2.0, 0.0);
  d.scaler.load_state_dict(state);
  EXPECT_EQ(d.scaler.state_dict().numbers, state.numbers);
  EXPECT_EQ(d.scaler.scale(Tensor::full({2}, 4.0)).to_vector<float>(), (std::vector{12.0f, 12.0f}));
  EXPECT_EQ(d.scaler.min_scale(), 1.0) << "not a part of the state";
}

TEST(GradScalerState, a_loaded_scaler_goes_on_as_the_saved_one) {
  Driver a({.init_scale = 1024.0, .growth_interval = 5}), b({});
  a.good(7);
  b.scaler.load_state_dict(a.scaler.state_dict());
  for (int i = 0; i < 4; ++i) {
    a.good();
    b.good();
    EXPECT_EQ(a.state(), b.state());
  }
  EXPECT_EQ(b.state(), State(4096.0, 1));
}

TEST(GradScalerState, a_bad_state_is_refused_whole) {
  Driver d({});
  d.good(3);
  const auto before = snapshot(d.scaler);
  const auto refused = [&](const StateDict& state, std::string_view what) {
    expect_says(message_of<ArgumentError>([&] { d.scaler.load_state_dict(state); }), {what});
    EXPECT_EQ(snapshot(d.scaler), before);
  };
  refused({}, "disabled");
  for (const double bad : {0.0, 0.5, -1.0, std::nan(""), HUGE_VAL, 1e39}) {
    refused(state_of(bad, 4.0, 0.25, 2.0, 1.0), "scale");
  }
  refused(state_of(8.0, 1.0, 0.25, 2.0, 1.0), "growth_factor");
  refused(state_of(8.0, 4.0, 1.0, 2.0, 1.0), "backoff_factor");
  for (const double bad : {0.0, 1.5, std::nan(""), HUGE_VAL}) {
    refused(state_of(8.0, 4.0, 0.25, bad, 1.0), "growth_interval");
  }
  for (const double bad : {-1.0, 0.5, std::nan("")}) {
    refused(state_of(8.0, 4.0, 0.25, 2.0, bad), "_growth_tracker");
  }
  for (const auto& [key, value] : state_of(8.0, 4.0, 0.25, 2.0, 1.0).numbers) {
    StateDict incomplete = state_of(8.0, 4.0, 0.25, 2.0, 1.0);
    incomplete.numbers.erase(key);
    refused(incomplete, key);
  }
  StateDict more = state_of(8.0, 4.0, 0.25, 2.0, 1.0);
  more.numbers["hysteresis"] = 1.0;
  refused(more, "hysteresis");
}

// Disabled.

TEST(GradScalerState, disabled_passes_everything_through_and_checks_no_order) {
  Driver d({.init_scale = 1.0, .enabled = false});
  amp::GradScaler& s = d.scaler;
  const Tensor loss = loss_with_gradient(d.w, {3.0f});
  EXPECT_EQ(s.scale(loss).ref(), loss.ref()) << "the very same tensor";
  EXPECT_EQ(s.get_scale(), 1.0);
  EXPECT_FALSE(s.is_enabled());
  EXPECT_FALSE(s.at_floor());
  EXPECT_TRUE(s.state_dict().numbers.empty());
  s.load_state_dict(state_of(8.0, 4.0, 0.25, 2.0, 1.0));
  s.load_state_dict({});
  EXPECT_EQ(s.growth_factor(), 2.0);
  s.update();
  s.update(8.0);
  loss.backward();
  s.unscale_(d.optimizer);
  s.unscale_(d.optimizer);
  EXPECT_EQ(gradient_of(d.w), std::vector{3.0f});
  EXPECT_TRUE(s.step(d.optimizer).stepped());
  EXPECT_TRUE(s.step(d.optimizer).stepped());
  EXPECT_FLOAT_EQ(d.w.value.to_vector<float>()[0], 1.0f - 2 * 3.0f * 1e-3f);
  EXPECT_EQ(s.get_scale(), 1.0);
}

}  // namespace
}  // namespace halfstep
