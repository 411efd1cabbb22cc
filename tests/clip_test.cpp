// Norms and clipping of the gradients of a list of parameters: exact where nothing is clipped, one
// factor for all where something is, over the whole range of float32, and never a silent change.
#include <gtest/gtest.h>

#include <cmath>

#include "halfstep/optim/grad_sweep.h"
#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using optim::clip_global_l2_norm;
using optim::clip_grad_norm_;
using optim::clip_grad_value_;
using optim::compute_global_l2_norm;
using test::bits;
using test::give_gradient;
using test::gradient_of;
using test::make_parameter;
using test::message_of;

Parameter with_gradient(std::string name, std::vector<float> gradient, DType dtype = DType::F32) {
  const auto n = static_cast<int64_t>(gradient.size());
  Parameter parameter = make_parameter(std::move(name), Tensor::zeros({n}, dtype));
  parameter.value.set_grad(Tensor::from(gradient, {n}, dtype));
  return parameter;
}

Parameter filled(std::string name, int64_t n, double value, DType dtype = DType::F32) {
  Parameter parameter = make_parameter(std::move(name), Tensor::zeros({n}, dtype));
  parameter.value.set_grad(Tensor::full({n}, value, dtype));
  return parameter;
}

/// The norm by plain float64 arithmetic.
double plain_norm(const std::vector<Parameter>& parameters) {
  double sum = 0.0;
  for (const Parameter& parameter : parameters) {
    if (!parameter.value.grad().defined()) continue;
    for (const double g : parameter.value.grad().to_vector<double>()) sum += g * g;
  }
  return std::sqrt(sum);
}

std::string grad_bits(const std::vector<Parameter>& parameters) {
  std::string all;
  for (const Parameter& parameter : parameters) all += bits(parameter.value.grad());
  return all;
}

TEST(Clip, within_the_limit_both_norms_are_right_and_no_bit_changes) {
  const std::vector<Parameter> parameters = {with_gradient("a", {0.1f, -0.2f, 0.3f}),
                                             with_gradient("b", {0.4f, 1e-30f})};
  const std::string before = grad_bits(parameters);
  const uint64_t version = parameters[0].value.grad().version();
  const auto [pre, post] = clip_global_l2_norm(parameters, 1.0);
  EXPECT_NEAR(pre, std::sqrt(0.3), 1e-7);  // 0.1f and so on are not 0.1
  EXPECT_EQ(post, pre);
  EXPECT_EQ(grad_bits(parameters), before);
  EXPECT_EQ(parameters[0].value.grad().version(), version) << "not even written to";
}

TEST(Clip, a_norm_that_equals_the_limit_is_not_clipped) {
  const std::vector<Parameter> parameters = {with_gradient("a", {3.0f}),
                                             with_gradient("b", {4.0f})};
  const auto [pre, post] = clip_global_l2_norm(parameters, 5.0);
  EXPECT_EQ(pre, 5.0);
  EXPECT_EQ(post, 5.0);
  EXPECT_EQ(gradient_of(parameters[0]), std::vector{3.0f});
}

TEST(Clip, the_norm_is_global_not_per_parameter) {
  const std::vector<Parameter> parameters = {with_gradient("a", {3.0f}),
                                             with_gradient("b", {4.0f})};
  const auto [pre, post] = clip_global_l2_norm(parameters, 1.0);
  EXPECT_EQ(pre, 5.0);
  EXPECT_NEAR(post, 1.0, 1e-12);
  EXPECT_EQ(gradient_of(parameters[0]), std::vector{0.6f});
  EXPECT_EQ(gradient_of(parameters[1]), std::vector{0.8f});
}

TEST(Clip, the_norm_spans_parameter_groups) {
  const Parameter a = with_gradient("a", {3.0f}), b = with_gradient("b", {4.0f});
  const optim::AdamW optimizer(std::vector<optim::AdamWGroup>{{{a}, {}}, {{b}, {.lr = 1.0}}});
  EXPECT_EQ(clip_global_l2_norm(optimizer.parameters(), 1.0).pre, 5.0);
  EXPECT_EQ(gradient_of(a), std::vector{0.6f});
  EXPECT_EQ(gradient_of(b), std::vector{0.8f});
}

TEST(Clip, all_elements_share_one_factor_and_post_is_the_norm_afterwards) {
  std::vector<float> ramp(100);
  for (size_t i = 0; i < ramp.size(); ++i) ramp[i] = static_cast<float>(i + 1);
  const std::vector<Parameter> parameters = {with_gradient("ramp", ramp),
                                             filled("small", 10, 0.001)};
  const auto [pre, post] = clip_global_l2_norm(parameters, 2.0);
  EXPECT_NEAR(pre, std::sqrt(338350.0 + 1e-5), 1e-9);  // 0.001f is not 0.001
  const double factor = 2.0 / (pre + 1e-12);
  EXPECT_EQ(post, pre * factor);
  for (size_t i = 0; i < ramp.size(); ++i) {
    const auto expected = static_cast<float>(static_cast<double>(ramp[i]) * factor);
    EXPECT_EQ(gradient_of(parameters[0])[i], expected) << i << ": the product is rounded once";
  }
  // Each element is off by half an ulp of float32 at most, so the norm is too.
  EXPECT_NEAR(plain_norm(parameters), post, 2.0 * 0x1p-24);
  EXPECT_NEAR(compute_global_l2_norm(parameters), post, 2.0 * 0x1p-24);
}

TEST(Clip, a_list_of_one_and_a_tensor_in_two_parts_agree) {
  const std::vector<Parameter> whole = {with_gradient("w", {1.0f, -2.0f, 3.0f, 4.0f})};
  const std::vector<Parameter> parts = {with_gradient("a", {1.0f, -2.0f}),
                                        with_gradient("b", {3.0f, 4.0f})};
  const auto one = clip_global_l2_norm(whole, 0.5), two = clip_global_l2_norm(parts, 0.5);
  EXPECT_EQ(one.pre, two.pre);
  EXPECT_EQ(one.post, two.post);
  EXPECT_EQ(grad_bits(whole), grad_bits(parts));
}

TEST(Clip, a_gradient_set_from_a_slice_counts_only_the_slice_and_leaves_the_rest) {
  const Parameter w = make_parameter("w", Tensor::zeros({2, 2}));
  const Tensor memory = Tensor::from({100.0f, 100.0f, 1.0f, 1.0f, 1.0f, 1.0f, 7.0f, 7.0f}, {4, 2});
  const std::string before = bits(memory);
  Tensor(w.value).set_grad(rows(memory, 1, 3));
  EXPECT_EQ(clip_global_l2_norm(std::vector{w}, 1.0).pre, 2.0);
  EXPECT_EQ(gradient_of(w), std::vector(4, 0.5f));
  EXPECT_EQ(bits(memory), before);
}

TEST(Clip, a_parameter_given_twice_counts_once) {
  const Parameter w = with_gradient("w", {3.0f, 4.0f});
  const std::vector<Parameter> parameters = {w, w, w};
  EXPECT_EQ(compute_global_l2_norm(parameters), 5.0);
  EXPECT_EQ(clip_global_l2_norm(parameters, 1.0).pre, 5.0);
  EXPECT_EQ(gradient_of(w), (std::vector{0.6f, 0.8f})) << "and is clipped once";
}

TEST(Clip, parameters_given_one_tensor_as_their_gradient_are_each_clipped_once) {
  const Tensor g = Tensor::from({3.0f, 4.0f}, {2});
  const std::vector<Parameter> parameters = {make_parameter("a", {0.0f, 0.0f}),
                                             make_parameter("b", {0.0f, 0.0f})};
  for (const Parameter& parameter : parameters) Tensor(parameter.value).set_grad(g);
  const auto [pre, post] = clip_global_l2_norm(parameters, 1.0);
  EXPECT_NEAR(pre, 5.0 * std::sqrt(2.0), 1e-12);
  EXPECT_NEAR(plain_norm(parameters), post, 0x1p-23);
}

TEST(Clip, gradients_in_one_flat_buffer_are_each_clipped_once) {
  const Tensor flat = Tensor::from({3.0f, 4.0f, 5.0f}, {3});
  const std::vector<Parameter> parameters = {make_parameter("a", {0.0f}),
                                             make_parameter("b", {0.0f, 0.0f})};
  Tensor(parameters[0].value).set_grad(rows(flat, 0, 1));
  Tensor(parameters[1].value).set_grad(rows(flat, 1, 3));
  const auto [pre, post] = clip_global_l2_norm(parameters, 1.0);
  EXPECT_NEAR(pre, std::sqrt(50.0), 1e-12);
  EXPECT_NEAR(plain_norm(parameters), post, 0x1p-23);
  EXPECT_NEAR(compute_global_l2_norm(parameters), post, 0x1p-23);
}

TEST(Clip, missing_gradients_are_left_out) {
  const std::vector<Parameter> parameters = {
      make_parameter("a", {1.0f}), with_gradient("b", {3.0f, 4.0f}), make_parameter("c", {1.0f})};
  EXPECT_EQ(clip_global_l2_norm(parameters, 1.0).pre, 5.0);
  EXPECT_FALSE(parameters[0].value.grad().defined());
  const std::vector<Parameter> none = {parameters[0], parameters[2]};
  EXPECT_EQ(compute_global_l2_norm(none), 0.0);
  EXPECT_EQ(clip_global_l2_norm(none, 1.0).post, 0.0);
  EXPECT_EQ(clip_grad_norm_(none, 1.0, true), 0.0);
  EXPECT_NO_THROW(clip_grad_value_(none, 1.0));
}

TEST(Clip, an_empty_list_of_scaled_gradients_warns_too) {
  test::WarningCollector warnings;
  EXPECT_EQ(optim::clip_scaled_grad_norm_({}, 1.0, 2.0), 0.0);
  ASSERT_EQ(warnings.messages.size(), 1u);
  test::expect_says(warnings.messages[0], {"empty parameter list"});
}

TEST(Clip, an_empty_list_has_norm_0_and_warns_once) {
  test::WarningCollector warnings;
  std::vector<Parameter> parameters = {with_gradient("w", {1.0f})};
  const std::vector<Parameter> moved_to = std::move(parameters);
  parameters.clear();  // what a moved-from vector is in practice
  EXPECT_EQ(clip_global_l2_norm(parameters, 1.0).pre, 0.0);
  EXPECT_EQ(clip_grad_norm_(parameters, 1.0), 0.0);
  clip_grad_value_(parameters, 1.0);
  ASSERT_EQ(warnings.messages.size(), 1u);
  test::expect_says(warnings.messages[0], {"empty parameter list"});
  EXPECT_EQ(gradient_of(moved_to[0]), std::vector{1.0f});
}

TEST(Clip, max_norm_must_be_positive) {
  const std::vector<Parameter> parameters = {with_gradient("w", {3.0f, 4.0f})};
  for (const double bad : {0.0, -0.0, -1.0, -HUGE_VAL, std::nan("")}) {
    const auto says = [&](const std::string& message) {
      test::expect_says(message, {"max_norm", "> 0"});
    };
    says(message_of<ArgumentError>([&] { clip_global_l2_norm(parameters, bad); }));
    says(message_of<ArgumentError>([&] { clip_grad_norm_(parameters, bad); }));
    says(message_of<ArgumentError>([&] { optim::clip_scaled_grad_norm_(parameters, bad, 2.0); }));
    message_of<ArgumentError>([&] { clip_grad_value_(parameters, bad); });
  }
  EXPECT_EQ(gradient_of(parameters[0]), (std::vector{3.0f, 4.0f}));
}

TEST(Clip, max_norm_inf_never_clips) {
  const std::vector<Parameter> parameters = {filled("w", 100, 1e38)};
  const std::string before = grad_bits(parameters);
  const auto [pre, post] = clip_global_l2_norm(parameters, HUGE_VAL);
  EXPECT_NEAR(pre, 1e39, 1e39 * 0x1p-23);
  EXPECT_EQ(post, pre);
  EXPECT_EQ(grad_bits(parameters), before);
}

TEST(Clip, zero_gradients_have_norm_0_and_stay) {
  const std::vector<Parameter> parameters = {with_gradient("w", {0.0f, -0.0f})};
  const std::string before = grad_bits(parameters);
  for (const double max_norm : {1e-300, 1.0, HUGE_VAL}) {
    EXPECT_EQ(clip_global_l2_norm(parameters, max_norm).pre, 0.0);
    EXPECT_EQ(grad_bits(parameters), before);
  }
}

TEST(Clip, value_clipping_clamps_every_element) {
  std::vector<float> ramp;
  for (int i = 0; i < 100; ++i) ramp.push_back(-10.0f + 0.2f * static_cast<float>(i));
  const std::vector<Parameter> parameters = {with_gradient("w", ramp),
                                             make_parameter("none", {1.0f})};
  clip_grad_value_(parameters, 2.5);
  for (size_t i = 0; i < ramp.size(); ++i) {
    EXPECT_EQ(gradient_of(parameters[0])[i], std::clamp(ramp[i], -2.5f, 2.5f)) << i;
  }
  EXPECT_FALSE(parameters[1].value.grad().defined());
}

TEST(Clip, value_clipping_keeps_nan_and_turns_inf_into_the_limit) {
  const std::vector<Parameter> parameters = {
      with_gradient("w", {test::kNan, test::kInfinity, -test::kInfinity, 1.0f})};
  clip_grad_value_(parameters, 2.5);
  const auto g = gradient_of(parameters[0]);
  EXPECT_TRUE(std::isnan(g[0]));
  EXPECT_EQ((std::vector(g.begin() + 1, g.end())), (std::vector{2.5f, -2.5f, 1.0f}));
  EXPECT_EQ(optim::find_non_finite_grad(parameters)->index, 0) << "the record was renewed";
}

TEST(Clip, value_clipping_renews_the_norm) {
  const std::vector<Parameter> parameters = {with_gradient("w", {3.0f, 4.0f})};
  EXPECT_EQ(compute_global_l2_norm(parameters), 5.0);
  clip_grad_value_(parameters, 3.0);
  EXPECT_EQ(compute_global_l2_norm(parameters), std::sqrt(18.0));
}

}  // namespace
}  // namespace halfstep
