// GradScaler by itself: options and their limits, and how the scale grows and backs off.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using amp::GradScaler;
using amp::GradScalerOptions;
using test::expect_says;
using test::gradient_of;
using test::message_of;
using Driver = test::ScalerDriver;

constexpr double kFloatMax = std::numeric_limits<float>::max();

using State = std::pair<double, int64_t>;

// Options.

TEST(GradScaler, defaults_are_pytorchs_and_a_floor) {
  const GradScaler scaler;
  EXPECT_EQ(scaler.get_scale(), 65536.0);
  EXPECT_EQ(scaler.growth_factor(), 2.0);
  EXPECT_EQ(scaler.backoff_factor(), 0.5);
  EXPECT_EQ(scaler.growth_interval(), 2000);
  EXPECT_EQ(scaler.min_scale(), 1.0);
  EXPECT_EQ(scaler.max_scale(), kFloatMax);
  EXPECT_TRUE(scaler.is_enabled());
  EXPECT_EQ(scaler.growth_tracker(), 0);
  EXPECT_EQ(scaler.consecutive_skips(), 0);
  EXPECT_FALSE(scaler.at_floor());
}

TEST(GradScaler, every_option_outside_its_range_is_refused) {
  const auto refused = [](const GradScalerOptions& options, std::string_view what) {
    expect_says(message_of<ArgumentError>([&] { GradScaler(Device::cpu(), options); }), {what});
  };
  for (const double bad : {0.0, -1.0, std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    refused({.init_scale = bad}, "scale");
    refused({.min_scale = bad}, "min_scale");
    refused({.max_scale = bad}, "max_scale");
  }
  for (const double bad : {1.0, 0.5, 0.0, -2.0, std::nan(""), HUGE_VAL}) {
    refused({.growth_factor = bad}, "growth_factor");
  }
  for (const double bad : {1.0, 2.0, 0.0, -0.5, std::nan(""), HUGE_VAL}) {
    refused({.backoff_factor = bad}, "backoff_factor");
  }
  for (const int64_t bad : {int64_t{0}, int64_t{-1}}) {
    refused({.growth_interval = bad}, "growth_interval");
  }
  refused({.min_scale = 0x1p-127}, "min_scale");
  refused({.init_scale = 0.5}, "scale");
  refused({.init_scale = 8.0, .max_scale = 4.0}, "scale");
  refused({.init_scale = 4.0, .min_scale = 8.0, .max_scale = 2.0}, "scale");
  refused({.max_scale = 2.0 * kFloatMax}, "max_scale");
  EXPECT_NO_THROW(GradScaler(Device::cpu(), {.init_scale = 0x1p-126, .min_scale = 0x1p-126}));
  EXPECT_NO_THROW(GradScaler(Device::cpu(), {.init_scale = kFloatMax}));
}

TEST(GradScaler, options_are_validated_when_disabled_too) {
  message_of<ArgumentError>(
      [] { GradScaler(Device::cpu(), {.growth_factor = 1.0, .enabled = false}); });
}

TEST(GradScaler, a_device_that_is_not_there_is_an_error) {
  if (is_available(Device::cuda())) GTEST_SKIP() << "this machine has the device";
  message_of<DeviceError>([] { GradScaler scaler(Device::cuda()); });
  EXPECT_NO_THROW(GradScaler(Device::cuda(), {.enabled = false}));
}

TEST(GradScaler, setters_check_and_take_effect_at_once) {
  Driver d({.init_scale = 1024.0});
  GradScaler& s = d.scaler;
  message_of<ArgumentError>([&] { s.set_growth_factor(1.0); });
  message_of<ArgumentError>([&] { s.set_backoff_factor(1.0); });
  message_of<ArgumentError>([&] { s.set_growth_interval(0); });
  message_of<ArgumentError>([&] { s.set_scale_limits(2048.0, 4096.0); });
  message_of<ArgumentError>([&] { s.set_scale_limits(0.0, 4096.0); });
  EXPECT_EQ(s.growth_factor(), 2.0);
  EXPECT_EQ(s.min_scale(), 1.0);
  d.good(5);
  s.set_growth_interval(3);  // already passed
  s.set_growth_factor(4.0);
  d.good();
  EXPECT_EQ(d.state(), State(4096.0, 0));
  s.set_backoff_factor(0.125);
  s.set_scale_limits(1024.0, 8192.0);
  EXPECT_EQ(s.max_scale(), 8192.0);
  d.bad();
  EXPECT_EQ(d.state(), State(1024.0, 0)) << "512 is below the floor";
  EXPECT_TRUE(s.at_floor());
}

// Scaling and unscaling.

TEST(GradScaler, scale_multiplies_any_shape_and_widens_halves_first) {
  GradScaler scaler(Device::cpu(), {.init_scale = 65536.0});
  for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64}) {
    const Tensor scaled = scaler.scale(Tensor::full({2, 3}, 4.0, dtype));
    EXPECT_EQ(scaled.dtype(), promote(dtype, DType::F32));
    EXPECT_EQ(scaled.shape(), (Shape{2, 3}));
    EXPECT_EQ(scaled.to_vector<float>(), std::vector(6, 262144.0f)) << "beyond float16";
  }
  const auto both = scaler.scale(std::vector{Tensor::ones({}), Tensor::ones({2})});
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0].item(), 65536.0);
  EXPECT_EQ(both[1].to_vector<float>(), std::vector(2, 65536.0f));
}

TEST(GradScaler, the_seed_of_a_scaled_backward_stays_the_callers) {
  GradScaler scaler(Device::cpu(), {.init_scale = 4.0});
  const Parameter w = test::make_parameter("w", {1.0f, 2.0f});
  const Tensor seed = Tensor::from({10.0f, 20.0f}, {2});
  const Tensor y = scaler.scale(w.value * 1.0);
  y.backward(seed, /*retain_graph=*/true);
  y.backward(seed);
  EXPECT_EQ(seed.to_vector<float>(), (std::vector<float>{10, 20}));
  EXPECT_EQ(gradient_of(w), (std::vector<float>{80, 160}));
}

TEST(GradScaler, unscaling_multiplies_by_a_reciprocal_taken_in_double) {
  Driver d({.init_scale = 3.0});
  Generator generator(2);
  for (const float g : generator.normal({100}).to_vector<float>()) {
    d.optimizer.zero_grad();
    d.scaler.scale(test::loss_with_gradient(d.w, {g})).backward();
    const float scaled = gradient_of(d.w)[0];
    EXPECT_EQ(scaled, g * 3.0f);
    d.scaler.unscale_(d.optimizer);
    EXPECT_EQ(gradient_of(d.w)[0], scaled * static_cast<float>(1.0 / 3.0));
    d.scaler.update();
  }
}

TEST(GradScaler, unscaling_is_a_write_to_the_gradient) {
  Driver d({});
  d.scaler.scale(test::loss_with_gradient(d.w, {1.0f})).backward();
  const Tensor doubled = mul(Tensor::ones({1}).set_requires_grad(), d.w.value.grad());
  d.scaler.unscale_(d.optimizer);
  // A graph that saved the gradient notices.
  message_of<GraphError>([&] { sum(doubled).backward(); });
}

TEST(GradScaler, a_scale_of_1_changes_no_bit) {
  Driver d({.init_scale = 1.0});
  for (const float g : {0x1p-149f, -0.0f, 1.0f / 3.0f, std::numeric_limits<float>::max()}) {
    d.optimizer.zero_grad();
    d.scaler.scale(test::loss_with_gradient(d.w, {g})).backward();
    d.scaler.unscale_(d.optimizer);
    EXPECT_EQ(std::bit_cast<uint32_t>(gradient_of(d.w)[0]), std::bit_cast<uint32_t>(g));
    d.scaler.update();
  }
}

TEST(GradScaler, gradients_are_checked_after_they_were_added_up) {
  Driver d({.init_scale = 2.0});
  for (int i = 0; i < 2; ++i) d.scaler.scale(test::loss_with_gradient(d.w, {1e38f})).backward();
  EXPECT_FALSE(d.scaler.step(d.optimizer).stepped()) << "each was finite, the sum is not";
}

// Growth and backoff.

TEST(GradScaler, grows_after_the_interval_and_backs_off_at_once) {
  Driver d({.init_scale = 4.0, .growth_factor = 2.0, .backoff_factor = 0.25, .growth_interval = 2});
  d.good();
  EXPECT_EQ(d.state(), State(4.0, 1));
  d.good();
  EXPECT_EQ(d.state(), State(8.0, 0));
  d.bad();
  EXPECT_EQ(d.state(), State(2.0, 0));
}

TEST(GradScaler, only_consecutive_clean_updates_lead_to_growth) {
  Driver d({.init_scale = 64.0, .growth_interval = 3});
  d.good(2);
  d.bad();
  d.good(2);
  EXPECT_EQ(d.state(), State(32.0, 2));
  d.good();
  EXPECT_EQ(d.state(), State(64.0, 0));
  Driver defaults({});
  defaults.good(1999);
  EXPECT_EQ(defaults.state(), State(65536.0, 1999));
  defaults.good();
  EXPECT_EQ(defaults.state(), State(131072.0, 0));
}

TEST(GradScaler, growth_beyond_float32_is_refused_and_resets_the_tracker) {
  Driver d({.init_scale = 1e38, .growth_factor = 16.0, .growth_interval = 1});
  d.good();
  EXPECT_EQ(d.state(), State(static_cast<double>(1e38f), 0));
  Driver doubling({.growth_interval = 1});
  doubling.good(112);
  EXPECT_EQ(doubling.state(), State(0x1p127, 0));
  doubling.bad();
  EXPECT_EQ(doubling.state(), State(0x1p126, 0)) << "and it comes back";
}

TEST(GradScaler, growth_above_the_ceiling_is_refused) {
  Driver d({.init_scale = 4.0, .growth_interval = 2, .max_scale = 10.0});
  d.good(2);
  EXPECT_EQ(d.state(), State(8.0, 0));
  d.good(3);
  EXPECT_EQ(d.state(), State(8.0, 1)) << "16 was refused at the second";
}

TEST(GradScaler, backoff_stops_at_the_floor_and_says_so_once) {
  test::WarningCollector warnings;
  Driver d({.min_scale = 0.75});
  const std::string before = test::bits(d.w.value);
  d.bad(1000);
  EXPECT_EQ(d.state(), State(0.75, 0));
  EXPECT_TRUE(d.scaler.at_floor());
  EXPECT_EQ(d.scaler.consecutive_skips(), 1000);
  EXPECT_EQ(test::bits(d.w.value), before);
  ASSERT_EQ(warnings.messages.size(), 1u);
  expect_says(warnings.messages[0], {"floor"});
  d.good();
  EXPECT_EQ(d.scaler.consecutive_skips(), 0);
}

TEST(GradScaler, the_lowest_floor_keeps_the_reciprocal_finite) {
  const test::WarningCollector quiet;
  Driver d({.min_scale = 0x1p-126});
  d.bad(170);
  EXPECT_EQ(d.scaler.get_scale(), 0x1p-126);
  d.step(3.0f);
  EXPECT_EQ(gradient_of(d.w), std::vector{3.0f});
}

TEST(GradScaler, a_short_interval_recovers_from_early_overflows) {
  Driver d({.growth_interval = 100, .min_scale = 0x1p-126});
  d.bad(30);
  EXPECT_EQ(d.scaler.get_scale(), 0x1p-14);
  d.good(500);
  EXPECT_EQ(d.scaler.get_scale(), 0x1p-9);
}

TEST(GradScaler, the_product_with_a_factor_is_taken_in_double_and_narrowed_once) {
  Driver d(
      {.init_scale = 1000.0, .growth_factor = 1.7, .backoff_factor = 0.3, .growth_interval = 1});
  float expected = 1000.0f;
  for (int i = 0; i < 20; ++i) {
    const bool bad = i % 3 == 2;
    bad ? d.bad() : d.good();
    expected = static_cast<float>(static_cast<double>(expected) * (bad ? 0.3 : 1.7));
    EXPECT_EQ(d.scaler.get_scale(), static_cast<double>(expected));
  }
}

TEST(GradScaler, a_new_scale_leaves_the_tracker_and_needs_no_step) {
  Driver d({.growth_interval = 10});
  d.good(3);
  d.scaler.update(3.0);
  EXPECT_EQ(d.state(), State(3.0, 3));
  d.scaler.update(5.0);  // twice in a row is legal, as it judges nothing
  for (const double bad : {0.0, -1.0, 0.5, std::nan(""), HUGE_VAL}) {
    message_of<ArgumentError>([&] { d.scaler.update(bad); });
    EXPECT_EQ(d.state(), State(5.0, 3));
  }
  d.good();
  EXPECT_EQ(d.state(), State(5.0, 4));
}

}  // namespace
}  // namespace halfstep
