// Norms at the ends of the floating-point range, of non-finite and of low-precision gradients, of
// gradients that still carry a loss scale, and the reuse of sweep records.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>

#include "halfstep/optim/grad_sweep.h"
#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using optim::clip_global_l2_norm;
using optim::clip_grad_norm_;
using optim::compute_global_l2_norm;
using test::bits;
using test::gradient_of;
using test::kInfinity;
using test::kNan;
using test::make_parameter;
using test::message_of;

Parameter filled(int64_t n, double value, DType dtype = DType::F32) {
  Parameter parameter = make_parameter("w", Tensor::zeros({n}, dtype));
  parameter.value.set_grad(Tensor::full({n}, value, dtype));
  return parameter;
}

Parameter with_gradient(std::string name, std::initializer_list<float> gradient) {
  Parameter parameter =
      make_parameter(std::move(name), Tensor::zeros({static_cast<int64_t>(gradient.size())}));
  test::give_gradient(parameter, gradient);
  return parameter;
}

/// Clips n gradients of `value` and expects the norm and the clipped elements (to float32's last
/// bit and the rounding of `value` itself to float32).
void expect_clip(int64_t n, double value, double max_norm, double norm, double element) {
  const std::vector<Parameter> parameters = {filled(n, value)};
  EXPECT_NEAR(clip_grad_norm_(parameters, max_norm, true), norm, norm * 0x1p-23);
  for (const float g : gradient_of(parameters[0])) {
    EXPECT_NEAR(static_cast<double>(g), element, element * 0x1p-22);
  }
}

TEST(ClipRange, squares_beyond_float32_are_clipped_not_zeroed) {
  expect_clip(100, 1e20, 1.0, 1e21, 0.1);
  expect_clip(128, 1e19, 2.0, 1e19 * std::sqrt(128.0), 2.0 / std::sqrt(128.0));
  expect_clip(1, static_cast<double>(FLT_MAX), 1.0, static_cast<double>(FLT_MAX), 1.0);
  expect_clip(10, 2e22, 1.0, 2e22 * std::sqrt(10.0), 1.0 / std::sqrt(10.0));
}

TEST(ClipRange, squares_below_float32_are_counted) {
  EXPECT_NEAR(compute_global_l2_norm(std::vector{filled(4, 1e-25)}), 2e-25, 2e-25 * 0x1p-23);
  expect_clip(4, 1e-25, 1e-13, 2e-25, 1e-25);  // within the limit
}

TEST(ClipRange, subnormal_gradients_are_counted_and_clipped) {
  const double tiny = 0x1p-149 * 8.0;  // exact
  const std::vector<Parameter> parameters = {filled(4, tiny)};
  EXPECT_EQ(compute_global_l2_norm(parameters), 2.0 * tiny);
  const auto [pre, post] = clip_global_l2_norm(parameters, tiny);
  EXPECT_EQ(pre, 2.0 * tiny);
  // 1e-12 in the factor's denominator dwarfs such norms; the product is rounded to a subnormal.
  EXPECT_EQ(post, pre * (tiny / (pre + 1e-12)));
  const auto expected = static_cast<float>(tiny * (tiny / (pre + 1e-12)));
  EXPECT_EQ(gradient_of(parameters[0])[0], expected);
}

TEST(ClipRange, float64_gradients_have_a_norm_too) {
  EXPECT_EQ(compute_global_l2_norm(std::vector{filled(4, 1e100, DType::F64)}), 2e100);
}

TEST(ClipRange, half_gradients_are_squared_in_float64_and_rounded_once) {
  for (const DType dtype : {DType::F16, DType::BF16}) {
    const std::vector<Parameter> one = {filled(1, 300.0, dtype)};
    EXPECT_EQ(clip_global_l2_norm(one, 1.0).pre, 300.0);
    EXPECT_EQ(gradient_of(one[0]), std::vector{1.0f});
    EXPECT_EQ(one[0].value.grad().dtype(), dtype);
    EXPECT_EQ(compute_global_l2_norm(std::vector{filled(4096, 100.0, dtype)}), 6400.0);
  }
}

TEST(ClipRange, dtypes_mix_in_one_norm) {
  const std::vector<Parameter> parameters = {filled(1, 2.0, DType::F32), filled(1, 3.0, DType::F16),
                                             filled(1, 6.0, DType::BF16),
                                             filled(1, 24.0, DType::F64)};
  EXPECT_EQ(compute_global_l2_norm(parameters), 25.0);
}

struct NonFinite {
  const char* name;
  std::initializer_list<float> gradient;
  bool is_nan;
};
const NonFinite kNonFinite[] = {{"inf", {1.0f, kInfinity}, false},
                                {"minus inf", {-kInfinity, 1.0f}, false},
                                {"nan", {1.0f, kNan}, true},
                                {"inf and nan", {kInfinity, kNan}, true},
                                {"inf and minus inf", {kInfinity, -kInfinity}, false}};

TEST(ClipRange, non_finite_norms_are_returned_and_nothing_is_changed) {
  for (const NonFinite& example : kNonFinite) {
    SCOPED_TRACE(example.name);
    const std::vector<Parameter> parameters = {with_gradient("a", {1.0f, 2.0f}),
                                               with_gradient("b", example.gradient)};
    const std::string a = bits(parameters[0].value.grad()), b = bits(parameters[1].value.grad());
    const auto expect_norm = [&](double norm) {
      EXPECT_EQ(std::isnan(norm), example.is_nan);
      EXPECT_TRUE(example.is_nan || norm == HUGE_VAL) << norm;
    };
    expect_norm(compute_global_l2_norm(parameters));
    expect_norm(clip_global_l2_norm(parameters, 1.0).pre);
    expect_norm(clip_global_l2_norm(parameters, 1.0).post);
    expect_norm(clip_grad_norm_(parameters, 1.0));
    test::expect_says(message_of<NonFiniteError>([&] { clip_grad_norm_(parameters, 1.0, true); }),
                      {"clip_grad_norm_", example.is_nan ? "nan" : "inf"});
    EXPECT_EQ(bits(parameters[0].value.grad()), a);
    EXPECT_EQ(bits(parameters[1].value.grad()), b);
  }
}

TEST(ClipRange, the_error_flag_lets_large_finite_gradients_pass) {
  for (const bool has_another : {false, true}) {
    for (const double value : {2e22, -2e22}) {
      std::vector<Parameter> parameters = {filled(10, value)};
      if (has_another) parameters.insert(parameters.begin(), filled(10, 1.0));
      EXPECT_NO_THROW(clip_grad_norm_(parameters, 1.0, true));
    }
  }
}

TEST(ClipRange, the_first_non_finite_element_is_named) {
  const std::vector<Parameter> parameters = {with_gradient("a", {1.0f}),
                                             with_gradient("b", {0.0f, 1.0f, -kInfinity, kNan}),
                                             with_gradient("c", {kNan})};
  const auto found = optim::find_non_finite_grad(parameters);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->parameter, 1u);
  EXPECT_EQ(found->index, 2);
  EXPECT_EQ(found->value, -kInfinity);
  EXPECT_TRUE(optim::has_non_finite_grad(parameters));
  EXPECT_FALSE(optim::has_non_finite_grad(std::vector{parameters[0]}));
}

TEST(ClipRange, an_optimizer_does_not_step_on_gradients_known_to_be_non_finite) {
  const Parameter w = with_gradient("layer.w", {1.0f, kNan});
  optim::AdamW optimizer({w});
  clip_global_l2_norm(optimizer.parameters(), 1.0);
  const auto before = test::snapshot(optimizer);
  test::expect_says(message_of<NonFiniteError>([&] { optimizer.step(); }),
                    {"layer.w", "nan", "index 1"});
  EXPECT_EQ(test::snapshot(optimizer), before);
}

// Scaled gradients, by the name that says so.

struct ScaledClip : ::testing::Test {
  Parameter w = make_parameter("w", {0.0f, 0.0f});
  optim::SGD optimizer{{w}, {.lr = 1.0}};
  amp::GradScaler scaler{Device::cpu(), {.init_scale = 4096.0}};
  void backward() {
    optimizer.zero_grad();
    scaler.scale(test::loss_with_gradient(w, {3.0f, 4.0f})).backward();
  }
};

TEST_F(ScaledClip, clipping_before_or_after_unscale_gives_the_same_step) {
  backward();
  EXPECT_EQ(optim::clip_scaled_grad_norm_(optimizer.parameters(), 0.2, scaler.get_scale()), 5.0);
  scaler.unscale_(optimizer);
  const auto first = gradient_of(w);
  scaler.update();
  backward();
  scaler.unscale_(optimizer);
  clip_global_l2_norm(optimizer.parameters(), 0.2);
  // 1e-12 counts 4,096 times less beside a scaled norm; both products are rounded once.
  for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(first[i], gradient_of(w)[i], 0x1p-24 * first[i]);
}

TEST_F(ScaledClip, the_scale_must_be_the_gradients_own) {
  backward();
  const auto before = test::snapshot(optimizer, scaler);
  const auto clip = [&](double scale) {
    return [&, scale] { optim::clip_scaled_grad_norm_(optimizer.parameters(), 1.0, scale); };
  };
  test::expect_says(message_of<OrderError>(clip(1024.0)), {"w", "1024"});
  for (const double bad : {0.0, -1.0, HUGE_VAL, std::nan("")}) message_of<ArgumentError>(clip(bad));
  EXPECT_EQ(test::snapshot(optimizer, scaler), before);
  scaler.unscale_(optimizer);
  test::expect_says(message_of<OrderError>(clip(4096.0)), {"w", "clip_grad_norm_"});
  test::give_gradient(w, {1.0f, 1.0f});
  message_of<OrderError>(clip(4096.0));
}

TEST_F(ScaledClip, a_zeroed_gradient_is_right_at_any_scale) {
  const Parameter unused = make_parameter("unused", {1.0f});
  test::give_gradient(unused, {1.0f});
  Tensor(unused.value).zero_grad(false);
  backward();
  EXPECT_EQ(optim::clip_scaled_grad_norm_(std::vector{w, unused}, 1.0, 4096.0), 5.0);
}

// Records of the last sweep. That a fresh one is used and a stale one is not, is seen by spoiling
// it.

double norm_with_record_spoiled(const Parameter& parameter, double sum_squares) {
  parameter.value.leaf_state().record.sweep.sum_squares = sum_squares;
  return compute_global_l2_norm(std::vector{parameter});
}

TEST_F(ScaledClip, a_fresh_record_is_used) {
  backward();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(optim::is_record_fresh(w.value.leaf_state(), true));
  EXPECT_EQ(norm_with_record_spoiled(w, 49.0), 7.0) << "the gradients were swept again";
}

TEST_F(ScaledClip, a_record_is_stale_after_any_change_of_the_gradient) {
  const std::vector<std::pair<const char*, std::function<void()>>> changes = {
      {"fill_", [&] { w.value.grad().fill_(2.0); }},
      {"mul_", [&] { w.value.grad().mul_(2.0); }},
      {"a pointer", [&] { w.value.grad().mutable_data<float>(); }},
      {"through a view",
       [&] {
         reshape(w.value.grad(), {1, 2}).fill_(1.0);
       }},
      {"set_grad",
       [&] {
         test::give_gradient(w, {1.0f, 2.0f});
       }},
      {"clip", [&] { clip_global_l2_norm(std::vector{w}, 0.5); }},
      {"value clip", [&] { optim::clip_grad_value_(std::vector{w}, 0.5); }}};
  for (const auto& [name, change] : changes) {
    SCOPED_TRACE(name);
    test::give_gradient(w, {3.0f, 4.0f});
    compute_global_l2_norm(std::vector{w});
    ASSERT_TRUE(optim::is_record_fresh(w.value.leaf_state(), true));
    change();
    EXPECT_FALSE(optim::is_record_fresh(w.value.leaf_state(), true));
    const auto g = gradient_of(w);
    const double norm = std::hypot(static_cast<double>(g[0]), static_cast<double>(g[1]));
    EXPECT_NEAR(norm_with_record_spoiled(w, 49.0), norm, norm * 0x1p-50);
  }
}

TEST_F(ScaledClip, a_backward_makes_the_record_stale) {
  // Writes before measuring: new memory must not pass as the old because their versions are equal.
  for (int writes = 0; writes < 4; ++writes) {
    for (const bool old_is_held : {false, true}) {
      Tensor(w.value).zero_grad();
      test::loss_with_gradient(w, {3.0f, 4.0f}).backward();
      for (int i = 0; i < writes; ++i) w.value.grad().mul_(1.0);
      EXPECT_EQ(compute_global_l2_norm(std::vector{w}), 5.0);
      const Tensor held = old_is_held ? w.value.grad() : Tensor();
      test::loss_with_gradient(w, {3.0f, 4.0f}).backward();
      EXPECT_EQ(compute_global_l2_norm(std::vector{w}), 10.0);
    }
  }
}

TEST_F(ScaledClip, clipping_never_touches_the_scaler) {
  backward();
  scaler.unscale_(optimizer);
  clip_global_l2_norm(optimizer.parameters(), 1.0);
  clip_global_l2_norm(std::vector{w}, 0.5);  // again, a part of them
  EXPECT_NEAR(compute_global_l2_norm(std::vector{w}), 0.5, 0x1p-24);
  EXPECT_TRUE(scaler.step(optimizer).stepped());
  scaler.update();
  EXPECT_EQ(scaler.growth_tracker(), 1);
}

}  // namespace
}  // namespace halfstep
