// GradScaler in whole training loops, against a control model that trains in float32 without one
// and leaves out the step that the scaler must skip. Scales are powers of two, so in float32 the
// two agree bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using amp::GradScaler;
using test::bits;

constexpr int kBatches = 4;
constexpr int kSpoilt = 2;  // the iteration whose gradient gets an Inf

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(std::vector<Parameter>)>;

std::unique_ptr<optim::Optimizer> sgd(std::vector<Parameter> parameters) {
  return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions{.lr = 1.0});
}
std::unique_ptr<optim::Optimizer> adamw(std::vector<Parameter> parameters) {
  return std::make_unique<optim::AdamW>(std::move(parameters), optim::AdamWOptions{.lr = 0.1});
}
std::unique_ptr<optim::Optimizer> amsgrad(std::vector<Parameter> parameters) {
  return std::make_unique<optim::AdamW>(std::move(parameters),
                                        optim::AdamWOptions{.lr = 0.1, .amsgrad = true});
}

nn::Sequential make_model(uint64_t seed = 3) {
  Generator generator(seed);
  const nn::LinearOptions options{.generator = &generator};
  return nn::Sequential{nn::Linear(8, 8, options), nn::Linear(8, 8, options)};
}

struct Batch {
  Tensor x, y;
};
std::vector<Batch> make_batches() {
  Generator generator(11);
  std::vector<Batch> batches;
  for (int i = 0; i < kBatches; ++i) {
    batches.push_back({generator.normal({8, 8}), generator.normal({8, 8})});
  }
  return batches;
}

void spoil(nn::Module& model) {
  model.parameters()[2].value.grad().mutable_data<float>()[5] = test::kInfinity;
}

std::vector<std::string> weights(const nn::Module& model) {
  std::vector<std::string> out;
  for (const Parameter& parameter : model.parameters()) out.push_back(bits(parameter.value));
  return out;
}

void expect_near(const nn::Module& a, const nn::Module& b, double tolerance) {
  for (size_t i = 0; i < a.parameters().size(); ++i) {
    const auto x = a.parameters()[i].value.to_vector<double>();
    const auto y = b.parameters()[i].value.to_vector<double>();
    for (size_t j = 0; j < x.size(); ++j) EXPECT_NEAR(x[j], y[j], tolerance);
  }
}

constexpr amp::GradScalerOptions kOptions{.init_scale = 128.0, .growth_interval = 1};

/// What a loop does between backward and step.
using Between = std::function<void(GradScaler& scaler, optim::Optimizer& optimizer)>;

/// Four iterations in float32 without a scaler; the spoilt one is left out. `max_norm` 0: no clip.
nn::Sequential train_control(const MakeOptimizer& make, double max_norm = 0.0,
                             int left_out = kSpoilt) {
  nn::Sequential model = make_model();
  const auto optimizer = make(model.parameters());
  int i = 0;
  for (const auto& [x, y] : make_batches()) {
    optimizer->zero_grad();
    mse_loss(model(x), y).backward();
    if (max_norm > 0.0) optim::clip_global_l2_norm(model.parameters(), max_norm);
    if (i++ != left_out) optimizer->step();
  }
  return model;
}

/// Four iterations with a scaler, and an Inf in one of them if it is enabled.
nn::Sequential train_scaled(const MakeOptimizer& make, GradScaler& scaler,
                            const Between& between = {}, bool autocast = false) {
  nn::Sequential model = make_model();
  const auto optimizer = make(model.parameters());
  int i = 0;
  for (const auto& [x, y] : make_batches()) {
    optimizer->zero_grad();
    Tensor loss;
    {
      const amp::Autocast scope(Device::cpu(), DType::F16, autocast);
      loss = mse_loss(model(x), y);
    }
    scaler.scale(loss).backward();
    const bool is_spoilt = i++ == kSpoilt && scaler.is_enabled();
    if (is_spoilt) spoil(model);
    const auto before = weights(model);
    if (between) between(scaler, *optimizer);
    EXPECT_EQ(scaler.step(*optimizer).stepped(), !is_spoilt);
    EXPECT_EQ(weights(model) == before, is_spoilt);
    scaler.update();
  }
  return model;
}

TEST(GradScalerTraining, equals_the_control_that_leaves_the_spoilt_step_out) {
  for (const auto& make : {sgd, adamw, amsgrad}) {
    GradScaler scaler(Device::cpu(), kOptions);
    EXPECT_EQ(weights(train_scaled(make, scaler)), weights(train_control(make)));
    EXPECT_EQ(scaler.get_scale(), 512.0);
  }
}

TEST(GradScalerTraining, disabled_equals_a_control_that_leaves_nothing_out) {
  for (const auto& make : {sgd, adamw}) {
    GradScaler scaler(Device::cpu(), {.enabled = false});
    EXPECT_EQ(weights(train_scaled(make, scaler)), weights(train_control(make, 0.0, -1)));
    EXPECT_EQ(scaler.get_scale(), 1.0);
  }
}

TEST(GradScalerTraining, an_explicit_unscale_changes_nothing) {
  for (const auto& make : {sgd, adamw, amsgrad}) {
    GradScaler implicit(Device::cpu(), kOptions), explicit_one(Device::cpu(), kOptions);
    EXPECT_EQ(weights(train_scaled(make, implicit)),
              weights(train_scaled(make, explicit_one,
                                   [](GradScaler& s, optim::Optimizer& o) { s.unscale_(o); })));
  }
}

TEST(GradScalerTraining, autocast_stays_near_the_float32_control) {
  GradScaler scaler(Device::cpu(), kOptions);
  // Four steps of lr 1 with gradients below 1, each rounded to float16 (2^-11).
  expect_near(train_scaled(sgd, scaler, {}, true), train_control(sgd), 1e-3);
  EXPECT_EQ(scaler.get_scale(), 512.0);
}

TEST(GradScalerTraining, a_scaler_saved_and_restored_every_iteration_goes_on_the_same) {
  nn::Sequential model = make_model();
  const auto optimizer = adamw(model.parameters());
  StateDict state = GradScaler(Device::cpu(), kOptions).state_dict();
  int i = 0;
  for (const auto& [x, y] : make_batches()) {
    GradScaler scaler;
    scaler.load_state_dict(state);
    optimizer->zero_grad();
    scaler.scale(mse_loss(model(x), y)).backward();
    if (i++ == kSpoilt) spoil(model);
    scaler.step(*optimizer);
    scaler.update();
    state = scaler.state_dict();
  }
  EXPECT_EQ(weights(model), weights(train_control(adamw)));
  EXPECT_EQ(state.numbers.at("scale"), 512.0);
}

TEST(GradScalerTraining, unscale_then_clip_equals_the_clipped_control) {
  for (const auto& make : {sgd, adamw}) {
    GradScaler scaler(Device::cpu(), kOptions);
    const auto model = train_scaled(make, scaler, [](GradScaler& s, optim::Optimizer& o) {
      s.unscale_(o);
      EXPECT_NO_THROW(optim::clip_grad_norm_(o.parameters(), 0.2, false));
    });
    EXPECT_EQ(weights(model), weights(train_control(make, 0.2)));
    EXPECT_EQ(scaler.get_scale(), 512.0);
  }
}

TEST(GradScalerTraining, clipping_scaled_gradients_by_name_equals_the_clipped_control) {
  GradScaler scaler(Device::cpu(), kOptions);
  const auto model = train_scaled(sgd, scaler, [](GradScaler& s, optim::Optimizer& o) {
    optim::clip_scaled_grad_norm_(o.parameters(), 0.2, s.get_scale());
  });
  // The 1e-12 beside the norm counts less at a scaled norm; elements differ in their last bit.
  expect_near(model, train_control(sgd, 0.2), 4 * 0x1p-24);
}

TEST(GradScalerTraining, accumulation_over_two_batches_is_one_step) {
  for (const bool divide_after : {false, true}) {
    nn::Sequential model = make_model(), control = make_model();
    const auto optimizer = sgd(model.parameters()), control_optimizer = sgd(control.parameters());
    GradScaler scaler(Device::cpu(), kOptions);
    int i = 0;
    for (const auto& [x, y] : make_batches()) {
      const Tensor loss = mse_loss(model(x), y);
      (divide_after ? scaler.scale(loss) / 2.0 : scaler.scale(loss / 2.0)).backward();
      (mse_loss(control(x), y) / 2.0).backward();
      if (i++ % 2 == 0) continue;
      EXPECT_TRUE(scaler.step(*optimizer).stepped());
      scaler.update();
      optimizer->zero_grad();
      control_optimizer->step();
      control_optimizer->zero_grad();
    }
    EXPECT_EQ(weights(model), weights(control));
    EXPECT_EQ(scaler.get_scale(), 512.0);
  }
}

TEST(GradScalerTraining, two_models_and_two_losses_that_mix_both_outputs) {
  nn::Sequential models[] = {make_model(3), make_model(4)};
  nn::Sequential controls[] = {make_model(3), make_model(4)};
  optim::SGD optimizers[] = {optim::SGD{models[0].parameters(), {.lr = 0.5}},
                             optim::SGD{models[1].parameters(), {.lr = 0.5}}};
  optim::SGD control_optimizers[] = {optim::SGD{controls[0].parameters(), {.lr = 0.5}},
                                     optim::SGD{controls[1].parameters(), {.lr = 0.5}}};
  GradScaler scaler(Device::cpu(), kOptions);
  const auto losses = [](nn::Sequential* both, const Batch& batch) {
    const Tensor y0 = both[0](batch.x), y1 = both[1](batch.x);
    return std::vector{mse_loss(y0 * 0.3 + y1 * 0.7, batch.y),
                       mse_loss(y0 * 0.6 - y1 * 0.4, batch.y)};
  };
  int i = 0;
  for (const Batch& batch : make_batches()) {
    for (optim::SGD& optimizer : optimizers) optimizer.zero_grad();
    for (optim::SGD& optimizer : control_optimizers) optimizer.zero_grad();
    const auto scaled = scaler.scale(losses(models, batch));
    scaled[0].backward({}, true);
    scaled[1].backward();
    const auto plain = losses(controls, batch);
    plain[0].backward({}, true);
    plain[1].backward();
    const bool is_spoilt = i++ == kSpoilt;
    if (is_spoilt) spoil(models[1]);
    scaler.unscale_(optimizers[0]);
    EXPECT_TRUE(scaler.step(optimizers[0]).stepped());
    EXPECT_EQ(scaler.step(optimizers[1]).stepped(), !is_spoilt);
    control_optimizers[0].step();
    if (!is_spoilt) control_optimizers[1].step();
    scaler.update();
  }
  for (int m = 0; m < 2; ++m) EXPECT_EQ(weights(models[m]), weights(controls[m]));
  EXPECT_EQ(scaler.get_scale(), 512.0);
}

TEST(GradScalerTraining, a_skip_leaves_moments_step_count_and_decay_as_they_were) {
  const Parameter w = test::make_parameter("w", {1.0f});
  optim::AdamW optimizer({w}, {.lr = 0.1, .weight_decay = 0.0});
  GradScaler scaler;
  const auto iterate = [&](float gradient) {
    optimizer.zero_grad();
    scaler.scale(test::loss_with_gradient(w, {gradient})).backward();
    scaler.step(optimizer);
    scaler.update();
  };
  iterate(test::kInfinity);
  EXPECT_EQ(optimizer.state(0).step, 0);
  EXPECT_EQ(w.value.to_vector<float>()[0], 1.0f);
  iterate(0.5f);
  // A first step moves by lr; by 0.744 lr if the skipped one had been counted.
  EXPECT_FLOAT_EQ(w.value.to_vector<float>()[0], 0.9f);
}

}  // namespace
}  // namespace halfstep
