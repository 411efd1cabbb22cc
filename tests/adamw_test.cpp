// AdamW by hand: the first step's numbers, what counts as a step, decay, groups, and half
// parameters with their float32 masters. (Long runs are compared with PyTorch in the golden tests.)
#include <gtest/gtest.h>

#include <cmath>

#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using optim::AdamW;
using optim::AdamWOptions;
using test::bits;
using test::give_gradient;
using test::make_parameter;

float value_of(const Parameter& parameter) { return parameter.value.to_vector<float>()[0]; }

/// AdamW of one number in float64, as the paper writes it.
struct PlainAdamW {
  AdamWOptions o;
  double p;
  double m = 0.0, v = 0.0, largest_v = 0.0;
  int t = 0;

  void step(double g) {
    ++t;
    if (o.maximize) g = -g;
    p -= o.lr * o.weight_decay * p;
    m = o.beta1 * m + (1.0 - o.beta1) * g;
    v = o.beta2 * v + (1.0 - o.beta2) * g * g;
    largest_v = std::max(largest_v, v);
    const double m_hat = m / (1.0 - std::pow(o.beta1, t));
    const double v_hat = (o.amsgrad ? largest_v : v) / (1.0 - std::pow(o.beta2, t));
    p -= o.lr * m_hat / (std::sqrt(v_hat) + o.eps);
  }
};

TEST(AdamW, first_step_uses_t_1_and_decoupled_decay) {
  const Parameter w = make_parameter("w", {1.0f}, DType::F64);
  AdamW optimizer({w}, {.lr = 1e-3, .weight_decay = 0.01});
  give_gradient(w, {0.5f});
  optimizer.step();
  // 1 - lr wd - lr 0.5 / (0.5 + eps); coupled decay would give 0.999.
  EXPECT_NEAR(w.value.item(), 0.99899000002, 1e-15);
  EXPECT_EQ(optimizer.state(0).step, 1);
}

TEST(AdamW, every_option_does_what_the_paper_says) {
  for (const AdamWOptions& options :
       {AdamWOptions{}, AdamWOptions{.lr = 0.1, .beta1 = 0.5, .beta2 = 0.7, .eps = 1e-2},
        AdamWOptions{.lr = 0.1, .beta1 = 0.0, .beta2 = 0.0}, AdamWOptions{.weight_decay = 0.0},
        AdamWOptions{.lr = 0.1, .beta2 = 0.5, .amsgrad = true},
        AdamWOptions{.lr = 0.1, .weight_decay = 0.1, .maximize = true}}) {
    const Parameter w = make_parameter("w", {1.0f}, DType::F64);
    AdamW optimizer({w}, options);
    PlainAdamW plain{options, 1.0};
    for (const float g : {0.5f, -2.0f, 8.0f, 0.0f, 0.25f, 1e-3f}) {
      give_gradient(w, {g});
      optimizer.step();
      plain.step(static_cast<double>(g));
      EXPECT_NEAR(w.value.item(), plain.p, 1e-13) << "t = " << plain.t;  // some 50 roundings
    }
  }
}

TEST(AdamW, a_parameter_without_a_gradient_is_untouched) {
  const Parameter used = make_parameter("used", {1.0f}), unused = make_parameter("unused", {1.0f});
  AdamW optimizer({used, unused}, {.weight_decay = 0.5});
  const std::string before = bits(unused.value);
  const uint64_t version = unused.value.version();
  give_gradient(used, {1.0f});
  optimizer.step();
  EXPECT_EQ(bits(unused.value), before);
  EXPECT_EQ(unused.value.version(), version);
  EXPECT_EQ(optimizer.state(1).step, 0);
  EXPECT_EQ(optimizer.state(1).exp_avg.item(), 0.0);
}

TEST(AdamW, a_zero_gradient_still_decays) {
  const Parameter w = make_parameter("w", {1.0f}, DType::F64);
  AdamW optimizer({w}, {.lr = 0.1, .weight_decay = 0.5});
  give_gradient(w, {0.0f});
  optimizer.step();
  EXPECT_DOUBLE_EQ(w.value.item(), 1.0 - 0.1 * 0.5);
  EXPECT_EQ(optimizer.state(0).step, 1);
}

TEST(AdamW, step_counts_are_per_parameter) {
  const Parameter early = make_parameter("early", {1.0f}, DType::F64);
  const Parameter late = make_parameter("late", {1.0f}, DType::F64);
  const AdamWOptions options{.lr = 0.1, .weight_decay = 0.0};
  AdamW optimizer({early, late}, options);
  give_gradient(early, {0.5f});
  for (int i = 0; i < 3; ++i) optimizer.step();
  give_gradient(late, {0.5f});
  optimizer.step();
  EXPECT_EQ(optimizer.state(0).step, 4);
  EXPECT_EQ(optimizer.state(1).step, 1);
  PlainAdamW plain{options, 1.0};
  plain.step(0.5);
  EXPECT_DOUBLE_EQ(late.value.item(), plain.p) << "its first step is a first step";
}

TEST(AdamW, groups_have_their_own_options) {
  const Parameter a = make_parameter("a", {1.0f}, DType::F64);
  const Parameter b = make_parameter("b", {1.0f}, DType::F64);
  const Parameter c = make_parameter("c", {1.0f}, DType::F64);
  AdamW optimizer(std::vector<optim::AdamWGroup>{{{a, b}, {.lr = 0.1, .weight_decay = 0.0}},
                                                 {{c}, {.lr = 0.5, .weight_decay = 0.25}}});
  EXPECT_EQ(optimizer.group_count(), 2u);
  ASSERT_EQ(optimizer.parameters().size(), 3u);
  EXPECT_EQ(optimizer.parameters()[2].name, "c");
  EXPECT_EQ(optimizer.lr(1), 0.5);
  for (const Parameter& p : optimizer.parameters()) give_gradient(p, {0.0f});
  optimizer.step();
  EXPECT_EQ(a.value.item(), 1.0);
  EXPECT_EQ(b.value.item(), 1.0);
  EXPECT_DOUBLE_EQ(c.value.item(), 1.0 - 0.5 * 0.25);
}

TEST(AdamW, set_lr_works_for_all_groups_or_one) {
  const Parameter a = make_parameter("a", {1.0f}), b = make_parameter("b", {1.0f});
  AdamW optimizer(std::vector<optim::AdamWGroup>{{{a}, {.lr = 0.1}}, {{b}, {.lr = 0.2}}});
  optimizer.set_lr(1, 0.3);
  EXPECT_EQ(optimizer.lr(0), 0.1);
  EXPECT_EQ(optimizer.lr(1), 0.3);
  optimizer.set_lr(0.0);
  EXPECT_EQ(optimizer.lr(0), 0.0);
  EXPECT_EQ(optimizer.lr(1), 0.0);
  for (const double bad : {-1e-3, std::nan(""), HUGE_VAL}) {
    test::message_of<ArgumentError>([&] { optimizer.set_lr(bad); });
    test::message_of<ArgumentError>([&] { optimizer.set_lr(1, bad); });
  }
  EXPECT_EQ(optimizer.lr(1), 0.0);
}

TEST(AdamW, options_outside_their_range_are_refused) {
  const auto refused = [](const AdamWOptions& options, std::string_view what) {
    test::expect_says(
        test::message_of<ArgumentError>([&] { AdamW({make_parameter("w", {1.0f})}, options); }),
        {"AdamW", what});
  };
  for (const double bad : {-1e-3, std::nan(""), HUGE_VAL}) {
    refused({.lr = bad}, "lr");
    refused({.weight_decay = bad}, "weight_decay");
  }
  for (const double bad : {-0.1, 1.0, 1.5, std::nan("")}) {
    refused({.beta1 = bad}, "beta");
    refused({.beta2 = bad}, "beta");
  }
  for (const double bad : {0.0, -1e-8, 1e-60, std::nan(""), HUGE_VAL}) refused({.eps = bad}, "eps");
}

TEST(AdamW, a_group_with_bad_options_is_refused) {
  test::message_of<ArgumentError>([&] {
    AdamW(std::vector<optim::AdamWGroup>{{{make_parameter("a", {1.0f})}, {}},
                                         {{make_parameter("b", {1.0f})}, {.lr = -1.0}}});
  });
}

TEST(AdamW, amsgrad_keeps_the_largest_second_moment) {
  const Parameter w = make_parameter("w", {1.0f});
  AdamW optimizer({w}, {.beta2 = 0.5, .amsgrad = true});
  give_gradient(w, {4.0f});
  optimizer.step();
  give_gradient(w, {0.0f});
  optimizer.step();
  EXPECT_EQ(optimizer.state(0).exp_avg_sq.to_vector<float>()[0], 4.0f);
  EXPECT_EQ(optimizer.state(0).max_exp_avg_sq.to_vector<float>()[0], 8.0f);
  AdamW plain({make_parameter("v", {1.0f})}, {});
  give_gradient(plain.parameters()[0], {4.0f});
  plain.step();
  EXPECT_FALSE(plain.state(0).max_exp_avg_sq.defined());
}

// Half parameters.

TEST(AdamW, half_parameters_have_float32_moments_and_masters) {
  for (const DType dtype : {DType::F16, DType::BF16}) {
    const Parameter w = make_parameter("w", {1.0f, -2.0f}, dtype);
    AdamW optimizer({w});
    give_gradient(w, {0.5f, 0.5f});
    optimizer.step();
    EXPECT_EQ(w.value.dtype(), dtype);
    EXPECT_EQ(optimizer.state(0).exp_avg.dtype(), DType::F32);
    EXPECT_EQ(optimizer.state(0).exp_avg_sq.dtype(), DType::F32);
    EXPECT_EQ(optimizer.state_dict().tensors.at("state.0.master").dtype(), DType::F32);
  }
}

TEST(AdamW, updates_too_small_for_bf16_add_up_in_the_master) {
  const Parameter w = make_parameter("w", {1.0f}, DType::BF16);
  AdamW optimizer({w}, {.lr = 6e-4, .weight_decay = 0.0});
  for (int i = 0; i < 100; ++i) {
    give_gradient(w, {1.0f});
    optimizer.step();
  }
  const float master = optimizer.state_dict().tensors.at("state.0.master").to_vector<float>()[0];
  // 100 steps of 6e-4, each rounded to float32 near 1.
  EXPECT_NEAR(master, 0.94f, 100 * 0x1p-24);
  EXPECT_EQ(value_of(w), 0.94140625f);
}

TEST(AdamW, eps_below_float16_does_not_divide_zero_by_zero) {
  for (const double weight_decay : {0.0, 0.01}) {
    const Parameter w = make_parameter("w", {1.0f, -2.0f, 0.5f}, DType::F16);
    AdamW optimizer({w}, {.weight_decay = weight_decay});
    give_gradient(w, {0.0f, 0.0f, 0.0f});
    for (int i = 0; i < 3; ++i) optimizer.step();
    const auto master = optimizer.state_dict().tensors.at("state.0.master").to_vector<double>();
    const double decayed = std::pow(1.0 - 1e-3 * weight_decay, 3);
    const double start[] = {1.0, -2.0, 0.5};
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(master[i], start[i] * decayed, 6 * 0x1p-24);
  }
}

TEST(AdamW, a_half_parameter_written_to_from_outside_becomes_the_new_master) {
  const Parameter w = make_parameter("w", {1.0f}, DType::BF16);
  AdamW optimizer({w}, {.lr = 0.125, .weight_decay = 0.0});
  give_gradient(w, {1.0f});
  optimizer.step();
  Tensor(w.value).fill_(4.0);
  optimizer.step();
  EXPECT_EQ(value_of(w), 3.875f);
}

TEST(AdamW, a_half_parameter_that_nobody_has_written_to_gets_its_master) {
  // Elements are undefined, the version is 0: as fresh as a tensor can be.
  const Parameter w = make_parameter("w", Tensor::empty({1}, DType::BF16));
  AdamW optimizer({w});
  give_gradient(w, {1.0f});
  EXPECT_NO_THROW(optimizer.step());
}

TEST(AdamW, float64_parameters_have_float64_moments) {
  const Parameter w = make_parameter("w", {1.0f}, DType::F64);
  AdamW optimizer({w});
  give_gradient(w, {0.1f});
  optimizer.step();
  EXPECT_EQ(optimizer.state(0).exp_avg.dtype(), DType::F64);
  EXPECT_EQ(optimizer.state(0).exp_avg_sq.dtype(), DType::F64);
}

}  // namespace
}  // namespace halfstep
