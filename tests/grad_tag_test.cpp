// Gradients know their scale: what tag each kind of backward leaves, how tags meet, what clears and
// what keeps them. Who refuses which tag is in grad_tag_refusal_test.cpp.
#include <gtest/gtest.h>

#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using test::gradient_of;
using test::make_parameter;
using test::tag_of;
using Kind = GradTag::Kind;

struct GradTagTest : test::GradTagFixture {};

TEST_F(GradTagTest, a_plain_backward_leaves_the_tag_none) {
  loss().backward();
  EXPECT_EQ(tag_of(w), GradTag::none());
}

TEST_F(GradTagTest, a_scaled_backward_leaves_scale_scaler_and_epoch) {
  scaled_backward();
  EXPECT_EQ(tag_of(w).kind, Kind::kScaled);
  EXPECT_EQ(tag_of(w).scale, 1024.0f);
  EXPECT_EQ(gradient_of(w), (std::vector{3072.0f, 4096.0f}));
  amp::GradScaler other(Device::cpu(), {.init_scale = 1024.0});
  const GradTag first = tag_of(w);
  optimizer.zero_grad();
  other.scale(loss()).backward();
  EXPECT_FALSE(tag_of(w) == first) << "the same scale of another scaler is another tag";
}

TEST_F(GradTagTest, unscale_leaves_the_tag_unscaled) {
  scaled_backward();
  scaler.unscale_(optimizer);
  EXPECT_EQ(tag_of(w).kind, Kind::kUnscaled);
  EXPECT_EQ(gradient_of(w), (std::vector{3.0f, 4.0f}));
}

TEST_F(GradTagTest, a_loss_divided_before_or_after_scaling_is_scaled) {
  scaler.scale(loss() / 2.0).backward();
  EXPECT_EQ(tag_of(w).kind, Kind::kScaled);
  (scaler.scale(loss()) / 2.0).backward();
  EXPECT_EQ(tag_of(w).kind, Kind::kScaled);
  EXPECT_EQ(gradient_of(w), (std::vector{3072.0f, 4096.0f}));
}

TEST_F(GradTagTest, two_losses_of_one_scale_stay_scaled) {
  scaled_backward();
  scaled_backward();
  EXPECT_EQ(tag_of(w).kind, Kind::kScaled);
  optimizer.zero_grad();
  (scaler.scale(loss()) + scaler.scale(loss())).backward();
  EXPECT_EQ(tag_of(w).kind, Kind::kScaled);
  EXPECT_EQ(gradient_of(w), (std::vector{6144.0f, 8192.0f}));
}

TEST_F(GradTagTest, a_retained_graph_is_scaled_each_time) {
  const Tensor scaled = scaler.scale(loss());
  scaled.backward({}, true);
  scaled.backward();
  EXPECT_EQ(tag_of(w).kind, Kind::kScaled);
  EXPECT_EQ(gradient_of(w), (std::vector{6144.0f, 8192.0f}));
}

TEST_F(GradTagTest, scaled_and_plain_gradients_mix) {
  scaled_backward();
  EXPECT_NO_THROW(loss().backward()) << "legal: the second loss may be thrown away";
  EXPECT_EQ(tag_of(w).kind, Kind::kMixed);
  expect_refused_by_all({"layer.weight", "zero_grad()"});
  expect_refused([&] { scaler.unscale_(optimizer); }, {"layer.weight", "zero_grad()"});
  expect_refused([&] { scaler.step(optimizer); }, {"layer.weight", "zero_grad()"});
}

TEST_F(GradTagTest, plain_then_scaled_gradients_mix) {
  loss().backward();
  scaled_backward();
  EXPECT_EQ(tag_of(w).kind, Kind::kMixed);
}

TEST_F(GradTagTest, a_scaled_and_a_plain_loss_in_one_graph_mix) {
  (scaler.scale(loss()) + loss()).backward();
  EXPECT_EQ(tag_of(w).kind, Kind::kMixed);
}

TEST_F(GradTagTest, a_loss_scaled_twice_mixes) {
  scaler.scale(scaler.scale(loss())).backward();
  EXPECT_EQ(tag_of(w).kind, Kind::kMixed);
}

TEST_F(GradTagTest, gradients_of_two_scalers_mix) {
  amp::GradScaler other(Device::cpu(), {.init_scale = 1024.0});
  scaled_backward();
  other.scale(loss()).backward();
  EXPECT_EQ(tag_of(w).kind, Kind::kMixed);
}

TEST_F(GradTagTest, gradients_of_two_epochs_mix) {
  scaled_backward();
  scaler.update(1024.0);
  scaled_backward();
  EXPECT_EQ(tag_of(w).kind, Kind::kMixed);
}

TEST_F(GradTagTest, a_backward_after_unscale_mixes) {
  scaled_backward();
  scaler.unscale_(optimizer);
  scaled_backward();
  EXPECT_EQ(tag_of(w).kind, Kind::kMixed);
  expect_refused([&] { scaler.step(optimizer); }, {"layer.weight", "unscale_"});
}

TEST_F(GradTagTest, zero_grad_clears_a_mixed_tag) {
  for (const bool set_to_none : {true, false}) {
    scaled_backward();
    loss().backward();
    ASSERT_EQ(tag_of(w).kind, Kind::kMixed);
    optimizer.zero_grad(set_to_none);
    scaled_backward();
    EXPECT_EQ(tag_of(w).kind, Kind::kScaled);
    EXPECT_EQ(gradient_of(w), (std::vector{3072.0f, 4096.0f}));
    optimizer.zero_grad();
  }
}

TEST_F(GradTagTest, zero_grad_is_legal_in_every_state) {
  for (const bool set_to_none : {true, false}) {
    const auto clear = [&] { optimizer.zero_grad(set_to_none); };
    EXPECT_NO_THROW(clear()) << "nothing there";
    scaled_backward();
    EXPECT_NO_THROW(clear()) << "scaled";
    scaled_backward();
    scaler.unscale_(optimizer);
    EXPECT_NO_THROW(clear()) << "unscaled";
    scaler.update();
    scaled_backward();
    scaler.step(optimizer);
    EXPECT_NO_THROW(clear()) << "stepped";
    scaler.update();
  }
}

TEST_F(GradTagTest, a_zeroed_gradient_takes_on_what_arrives) {
  loss().backward();
  optimizer.zero_grad(false);
  EXPECT_EQ(gradient_of(w), (std::vector{0.0f, 0.0f}));
  scaled_backward();
  EXPECT_EQ(tag_of(w).kind, Kind::kScaled);
}

TEST_F(GradTagTest, a_parameter_outside_the_loss_with_a_zeroed_gradient_is_no_error) {
  const Parameter other = make_parameter("other", {5.0f});
  optim::AdamW both({w, other});
  test::give_gradient(other, {1.0f});
  both.zero_grad(false);
  scaled_backward();
  scaler.unscale_(both);
  EXPECT_EQ(optim::compute_global_l2_norm(both.parameters()), 5.0);
  EXPECT_TRUE(scaler.step(both).stepped());
}

TEST_F(GradTagTest, set_grad_gives_none) {
  scaled_backward();
  Tensor(w.value).set_grad(Tensor::from({1.0f, 1.0f}, {2}));
  EXPECT_EQ(tag_of(w), GradTag::none());
  expect_refused([&] { scaler.unscale_(optimizer); }, {"layer.weight", "scale() is missing"});
  EXPECT_NO_THROW(optimizer.step());
}

TEST_F(GradTagTest, set_grad_of_nothing_clears_gradient_and_tag) {
  scaled_backward();
  Tensor(w.value).set_grad({});
  EXPECT_FALSE(w.value.grad().defined());
  EXPECT_EQ(tag_of(w).kind, Kind::kEmpty);
}

TEST_F(GradTagTest, writing_in_place_keeps_the_tag) {
  scaled_backward();
  const GradTag tag = tag_of(w);
  w.value.grad().mul_(0.5);
  w.value.grad().fill_(1024.0);
  w.value.grad().copy_(Tensor::from({1024.0f, 2048.0f}, {2}));
  w.value.grad().add_(Tensor::from({1024.0f, 1024.0f}, {2}));
  w.value.grad().mutable_data<float>()[0] = 1024.0f;
  EXPECT_EQ(tag_of(w), tag);
  scaler.unscale_(optimizer);
  EXPECT_EQ(gradient_of(w), (std::vector{1.0f, 3.0f}));
}

TEST_F(GradTagTest, a_disabled_scaler_sets_no_tag) {
  amp::GradScaler off(Device::cpu(), {.enabled = false});
  off.scale(loss()).backward();
  EXPECT_EQ(tag_of(w), GradTag::none());
}

}  // namespace
}  // namespace halfstep
