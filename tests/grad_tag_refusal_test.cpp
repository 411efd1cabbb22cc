// Gradients know their scale: whoever meets a tag that does not fit throws, says what is missing,
// and has changed nothing.
#include <gtest/gtest.h>

#include <functional>

#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using test::loss_with_gradient;
using test::make_parameter;
using test::tag_of;
using Kind = GradTag::Kind;

struct GradTagRefusal : test::GradTagFixture {};

TEST_F(GradTagRefusal, a_retained_graph_run_after_update_carries_the_stale_scale) {
  const Tensor scaled = scaler.scale(loss());
  scaled.backward({}, true);
  scaler.update(1024.0);
  optimizer.zero_grad();
  scaled.backward();
  expect_refused([&] { scaler.unscale_(optimizer); }, {"layer.weight", "update()", "1024"});
}

TEST_F(GradTagRefusal, values_written_into_a_zeroed_gradient_do_not_pass_as_scaled) {
  const std::vector<std::function<void()>> meanwhile = {
      [] {}, [&] { optim::compute_global_l2_norm(optimizer.parameters()); },
      [&] { optim::clip_global_l2_norm(optimizer.parameters(), 1.0); }};
  for (const auto& call : meanwhile) {
    loss().backward();
    optimizer.zero_grad(false);
    w.value.grad().fill_(3.0);  // a plain gradient, made by hand
    call();
    expect_refused([&] { scaler.unscale_(optimizer); }, {"layer.weight", "scale() is missing"});
    expect_refused([&] { scaler.step(optimizer); }, {"layer.weight", "scale() is missing"});
    scaled_backward();
    EXPECT_EQ(tag_of(w).kind, Kind::kMixed);
    optimizer.zero_grad();
  }
}

TEST_F(GradTagRefusal, zeros_alone_do_not_pass_for_a_backward) {
  loss().backward();
  optimizer.zero_grad(false);
  expect_refused([&] { scaler.step(optimizer); }, {"zero_grad(false)", "backward() is missing"});
  scaled_backward();
  EXPECT_TRUE(scaler.step(optimizer).stepped());
}

TEST_F(GradTagRefusal, scaled_gradients_are_refused_by_clip_norm_and_plain_step) {
  scaled_backward();
  expect_refused_by_all({"layer.weight", "1024"});
}

TEST_F(GradTagRefusal, looking_for_non_finite_values_is_legal_at_any_tag) {
  scaled_backward();
  EXPECT_FALSE(optim::has_non_finite_grad(optimizer.parameters()));
  w.value.grad().mutable_data<float>()[1] = test::kInfinity;
  EXPECT_TRUE(optim::has_non_finite_grad(optimizer.parameters()));
}

TEST_F(GradTagRefusal, a_missing_scale_is_named) {
  loss().backward();
  expect_refused([&] { scaler.unscale_(optimizer); }, {"unscale_", "layer.weight", "scale()"});
  expect_refused([&] { scaler.step(optimizer); }, {"layer.weight", "scale()"});
}

TEST_F(GradTagRefusal, another_scalers_gradients_are_refused) {
  amp::GradScaler other(Device::cpu(), {.init_scale = 1024.0});
  other.scale(loss()).backward();
  expect_refused([&] { scaler.unscale_(optimizer); }, {"layer.weight", "another", "1024"});
  expect_refused([&] { scaler.step(optimizer); }, {"layer.weight", "another", "1024"});
}

TEST_F(GradTagRefusal, every_kind_of_update_makes_scaled_gradients_stale) {
  const auto refused_after = [&](const std::function<void()>& update) {
    optimizer.zero_grad();
    scaled_backward();
    update();
    expect_refused([&] { scaler.unscale_(optimizer); }, {"layer.weight", "update()"});
    expect_refused([&] { scaler.step(optimizer); }, {"layer.weight", "update()"});
    expect_refused([&] { optimizer.step(); }, {"layer.weight", "1024"});
  };
  refused_after([&] {
    const Parameter v = make_parameter("v", {1.0f});
    optim::SGD second({v});
    scaler.scale(loss_with_gradient(v, {1.0f})).backward();
    scaler.step(second);
    scaler.update();
    ASSERT_EQ(scaler.get_scale(), 1024.0) << "the value is unchanged";
  });
  refused_after([&] { scaler.update(1024.0); });
  refused_after([&] { scaler.load_state_dict(scaler.state_dict()); });
}

TEST_F(GradTagRefusal, gradients_unscaled_before_update_are_refused_after_it) {
  scaled_backward();
  scaler.unscale_(optimizer);
  scaler.update();
  expect_refused([&] { scaler.step(optimizer); }, {"layer.weight", "update()"});
  expect_refused([&] { scaler.unscale_(optimizer); }, {"layer.weight", "update()"});
}

TEST_F(GradTagRefusal, a_disabled_scaler_does_not_hide_another_ones_scale) {
  amp::GradScaler off(Device::cpu(), {.enabled = false});
  scaled_backward();
  expect_refused([&] { off.step(optimizer); }, {"layer.weight", "1024"});
}

}  // namespace
}  // namespace halfstep
