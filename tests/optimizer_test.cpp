// What all optimizers share: which parameter lists they take, what a step refuses before anything
// is changed, that autocast sees the new weights, and SGD's numbers by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "halfstep/tests/amp_testing.h"

namespace halfstep {
namespace {

using optim::AdamW;
using optim::SGD;
using optim::SGDOptions;
using test::expect_says;
using test::give_gradient;
using test::loss_with_gradient;
using test::make_parameter;
using test::message_of;
using test::snapshot;

TEST(Optimizer, an_empty_or_moved_from_list_is_refused) {
  const auto says = [](const std::string& message) {
    expect_says(message, {"empty parameter list"});
  };
  says(message_of<ArgumentError>([] { AdamW(std::vector<Parameter>{}); }));
  says(message_of<ArgumentError>([] { SGD(std::vector<Parameter>{}); }));
  std::vector<Parameter> parameters = {make_parameter("w", {1.0f})};
  const AdamW optimizer(std::move(parameters));
  parameters.clear();  // what a moved-from vector is in practice
  says(message_of<ArgumentError>([&] { AdamW(std::move(parameters)); }));
  says(message_of<ArgumentError>([] {
    AdamW(std::vector<optim::AdamWGroup>{{{make_parameter("w", {1.0f})}, {}}, {{}, {}}});
  }));
  message_of<ArgumentError>([] { AdamW(std::vector<optim::AdamWGroup>{}); });
}

TEST(Optimizer, a_parameter_given_twice_is_refused_by_name) {
  const Parameter w = make_parameter("layer.w", {1.0f}), v = make_parameter("v", {1.0f});
  expect_says(message_of<ArgumentError>([&] { AdamW({w, v, w}); }), {"layer.w", "twice"});
  expect_says(message_of<ArgumentError>([&] {
                SGD(std::vector<optim::SGDGroup>{{{w}, {}}, {{v, w}, {}}});
              }),
              {"layer.w", "twice"});
  EXPECT_NO_THROW(AdamW({w, Parameter{"layer.w", v.value}})) << "names may repeat, tensors not";
}

TEST(Optimizer, only_leaves_that_require_a_gradient_are_taken) {
  const Parameter w = make_parameter("w", {1.0f});
  message_of<ArgumentError>([&] { AdamW({Parameter{"undefined", {}}}); });
  message_of<ArgumentError>([&] { AdamW({Parameter{"constant", Tensor::ones({1})}}); });
  message_of<ArgumentError>([&] { AdamW({Parameter{"made", w.value * 2.0}}); });
}

TEST(Optimizer, ids_differ_and_names_are_the_classes) {
  const AdamW a({make_parameter("w", {1.0f})}), b({make_parameter("w", {1.0f})});
  EXPECT_NE(a.id(), b.id());
  EXPECT_EQ(a.name(), "AdamW");
  EXPECT_EQ(SGD({make_parameter("w", {1.0f})}).name(), "SGD");
}

TEST(Optimizer, a_group_that_is_not_there_is_an_error_of_ours) {
  AdamW adamw({make_parameter("w", {1.0f})});
  message_of<ArgumentError>([&] { adamw.lr(1); });
  message_of<ArgumentError>([&] { adamw.set_lr(1, 0.1); });
  message_of<ArgumentError>([&] { adamw.options(1); });
  message_of<ArgumentError>([&] { adamw.state(1); });
  SGD sgd({make_parameter("w", {1.0f})});
  message_of<ArgumentError>([&] { sgd.lr(1); });
  message_of<ArgumentError>([&] { sgd.set_lr(1, 0.1); });
  message_of<ArgumentError>([&] { sgd.momentum_buffer(1); });
}

TEST(Optimizer, zero_grad_removes_or_zeroes) {
  const Parameter w = make_parameter("w", {1.0f}), v = make_parameter("v", {1.0f});
  AdamW optimizer({w, v});
  give_gradient(w, {2.0f});
  const Tensor kept = w.value.grad();
  optimizer.zero_grad(false);
  EXPECT_EQ(kept.to_vector<float>()[0], 0.0f) << "the same memory";
  EXPECT_FALSE(v.value.grad().defined());
  optimizer.zero_grad();
  EXPECT_FALSE(w.value.grad().defined());
}

// Refusals. The second parameter is the bad one, so that the first would have been updated already
// by a loop that checks as it goes.

template <class Optimizer>
void expect_step_refuses_bad_gradients() {
  const Parameter first = make_parameter("first", {1.0f, 2.0f});
  const Parameter second = make_parameter("second", {3.0f, 4.0f});
  Optimizer optimizer({first, second});
  give_gradient(first, {1.0f, 1.0f});
  give_gradient(second, {1.0f, 1.0f});
  optimizer.step();  // so that there are moments to be changed
  amp::GradScaler scaler(Device::cpu(), {.init_scale = 512.0});
  const auto scaled_backward = [&] {
    scaler.scale(loss_with_gradient(second, {1.0f, 1.0f})).backward();
  };
  const auto refused = [&](auto error, std::initializer_list<std::string_view> parts) {
    const auto before = snapshot(optimizer);
    expect_says(message_of<decltype(error)>([&] { optimizer.step(); }), parts);
    EXPECT_EQ(snapshot(optimizer), before);
  };
  Tensor(second.value).zero_grad();
  scaled_backward();
  refused(OrderError(""), {"second", "512", "scaler.step"});
  loss_with_gradient(second, {1.0f, 1.0f}).backward();
  refused(OrderError(""), {"second", "zero_grad()"});
  give_gradient(second, {1.0f, test::kInfinity});
  optim::has_non_finite_grad(optimizer.parameters());
  refused(NonFiniteError(""), {"second", "inf", "index 1"});
  second.value.grad().fill_(1.0);
  EXPECT_NO_THROW(optimizer.step()) << "the record is stale, the gradient is fine";
}

TEST(Optimizer, adamw_steps_on_no_scaled_mixed_or_non_finite_gradient) {
  expect_step_refuses_bad_gradients<AdamW>();
}
TEST(Optimizer, sgd_steps_on_no_scaled_mixed_or_non_finite_gradient) {
  expect_step_refuses_bad_gradients<SGD>();
}

// Low-precision copies of weights under autocast.

/// y = w x with x = 1 in the scope's dtype.
float forward(const Parameter& w) {
  return linear(Tensor::ones({1, 1}), w.value).to_vector<float>()[0];
}

TEST(Optimizer, autocast_sees_a_weight_changed_in_the_scope_however_it_was_changed) {
  const std::vector<std::pair<const char*, std::function<void(const Parameter&)>>> changes = {
      {"AdamW step",
       [](const Parameter& w) {
         AdamW optimizer({w}, {.lr = 0.5, .eps = 1e-30, .weight_decay = 0.0});
         give_gradient(w, {1.0f});
         optimizer.step();
       }},
      {"SGD step",
       [](const Parameter& w) {
         SGD optimizer({w}, {.lr = 0.5});
         give_gradient(w, {1.0f});
         optimizer.step();
       }},
      {"copy_",
       [](const Parameter& w) {
         Tensor(w.value).copy_(Tensor::full({1, 1}, 0.5));
       }},
      {"fill_", [](const Parameter& w) { Tensor(w.value).fill_(0.5); }},
      {"pointer", [](const Parameter& w) { *Tensor(w.value).mutable_data<float>() = 0.5f; }},
      {"detached handle", [](const Parameter& w) { w.value.detach().mul_(0.5); }}};
  for (const DType dtype : {DType::F16, DType::BF16}) {
    for (const auto& [name, change] : changes) {
      const Parameter w = make_parameter("w", Tensor::ones({1, 1}));
      const amp::Autocast autocast(Device::cpu(), dtype);
      EXPECT_EQ(forward(w), 1.0f);
      change(w);
      EXPECT_EQ(forward(w), 0.5f) << name << " " << name_of(dtype);
    }
  }
}

TEST(Optimizer, a_step_writes_the_low_precision_copy_in_the_same_pass) {
  const Parameter w = make_parameter("w", Tensor::ones({1, 1}));
  AdamW optimizer({w}, {.lr = 0.3});
  const amp::Autocast autocast(Device::cpu(), DType::F16);
  forward(w);
  const CastCopy& copy = w.value.leaf_state().copy(DType::F16);
  const void* memory = Tensor(copy.value).raw_data();
  give_gradient(w, {1.0f});
  optimizer.step();
  EXPECT_EQ(copy.made_from, w.value.version()) << "still fresh";
  EXPECT_EQ(Tensor(copy.value).raw_data(), memory) << "and not remade";
  const auto expected = convert<Half>(w.value.to_vector<float>()[0]);
  EXPECT_EQ(Tensor(copy.value).data<Half>()->bits, expected.bits);
}

TEST(Optimizer, a_copy_that_a_graph_still_holds_is_not_written_to) {
  const Parameter w = make_parameter("w", Tensor::ones({1, 1}));
  Tensor x = Tensor::ones({1, 1});
  x.set_requires_grad();
  SGD optimizer({w}, {.lr = 0.5});
  const amp::Autocast autocast(Device::cpu(), DType::BF16);
  const Tensor y = linear(x, w.value);
  give_gradient(w, {1.0f});
  optimizer.step();
  // Backward notices that the weight has changed since; in no case may dx be made from the new one.
  message_of<GraphError>([&] { sum(y).backward(); });
  EXPECT_FALSE(x.grad().defined());
  EXPECT_EQ(forward(w), 0.5f);
}

TEST(Optimizer, both_copies_of_a_weight_are_right_after_a_step) {
  const Parameter w = make_parameter("w", Tensor::ones({1, 1}));
  SGD optimizer({w}, {.lr = 0.5});
  const auto in = [&](DType dtype) {
    const amp::Autocast autocast(Device::cpu(), dtype);
    return forward(w);
  };
  EXPECT_EQ(in(DType::F16) + in(DType::BF16), 2.0f);
  give_gradient(w, {1.0f});
  optimizer.step();
  EXPECT_EQ(in(DType::F16), 0.5f);
  EXPECT_EQ(in(DType::BF16), 0.5f);
}

TEST(Optimizer, a_weight_at_a_freed_weights_address_has_no_copy_yet) {
  const amp::Autocast autocast(Device::cpu(), DType::F16);
  for (int i = 1; i <= 10; ++i) {
    const Parameter w = make_parameter("w", Tensor::full({1, 1}, i));
    EXPECT_EQ(forward(w), static_cast<float>(i));
  }
}

// SGD against torch.optim.SGD's documented recurrence, in float64.

double sgd_by_hand(const SGDOptions& o, const std::vector<float>& gradients) {
  double p = 1.0, buffer = 0.0;
  bool first = true;
  for (const float given : gradients) {
    double g = o.maximize ? -static_cast<double>(given) : static_cast<double>(given);
    g += o.weight_decay * p;
    if (o.momentum != 0.0) {
      buffer = first ? g : o.momentum * buffer + (1.0 - o.dampening) * g;
      first = false;
      g = o.nesterov ? g + o.momentum * buffer : buffer;
    }
    p -= o.lr * g;
  }
  return p;
}

TEST(SGD, every_option_follows_the_recurrence) {
  const std::vector<float> gradients = {0.5f, -2.0f, 8.0f, 0.0f, 0.25f};
  for (const SGDOptions& options :
       {SGDOptions{}, SGDOptions{.lr = 0.1, .momentum = 0.9},
        SGDOptions{.lr = 0.1, .momentum = 1.0},
        SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.25},
        SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true},
        SGDOptions{.lr = 0.1, .weight_decay = 0.1},
        SGDOptions{.lr = 0.1, .momentum = 0.5, .weight_decay = 0.1, .maximize = true}}) {
    const Parameter w = make_parameter("w", {1.0f}, DType::F64);
    const Parameter narrow = make_parameter("narrow", {1.0f});
    SGD optimizer({w, narrow}, options);
    for (const float g : gradients) {
      for (const Parameter& parameter : optimizer.parameters()) give_gradient(parameter, {g});
      optimizer.step();
    }
    const double expected = sgd_by_hand(options, gradients);
    EXPECT_NEAR(w.value.item(), expected, 1e-14);  // some 30 roundings
    EXPECT_NEAR(narrow.value.item(), expected, 30 * 0x1p-24);
  }
}

TEST(SGD, options_outside_their_range_are_refused) {
  const auto refused = [](const SGDOptions& options, std::string_view what) {
    expect_says(message_of<ArgumentError>([&] { SGD({make_parameter("w", {1.0f})}, options); }),
                {what});
  };
  for (const double bad : {-0.1, std::nan(""), HUGE_VAL}) {
    refused({.lr = bad}, "lr");
    refused({.momentum = bad}, "momentum");
    refused({.weight_decay = bad}, "weight_decay");
  }
  refused({.dampening = std::nan("")}, "dampening");
  refused({.nesterov = true}, "nesterov");
  refused({.momentum = 0.9, .dampening = 0.1, .nesterov = true}, "nesterov");
}

TEST(SGD, bf16_parameters_have_masters) {
  const Parameter w = make_parameter("w", {256.0f}, DType::BF16);
  SGD optimizer({w}, {.lr = 1.0});
  for (int i = 0; i < 100; ++i) {
    give_gradient(w, {-1.0f});
    optimizer.step();
  }
  EXPECT_EQ(w.value.to_vector<float>()[0], 356.0f) << "256 + 1 is 256 in bfloat16";
}

TEST(Optimizer, a_step_without_gradients_is_not_counted) {
  AdamW optimizer({make_parameter("w", {1.0f})});
  optimizer.step();
  EXPECT_EQ(optimizer.step_count(), 0u);
  give_gradient(optimizer.parameters()[0], {1.0f});
  optimizer.step();
  EXPECT_EQ(optimizer.step_count(), 1u);
}

TEST(Optimizer, does_not_step_on_a_non_finite_first_element) {
  AdamW optimizer({make_parameter("w", {1.0f, 2.0f})});
  give_gradient(optimizer.parameters()[0], {test::kInfinity, 1.0f});
  optim::compute_global_l2_norm(optimizer.parameters());
  const auto before = snapshot(optimizer);
  expect_says(message_of<NonFiniteError>([&] { optimizer.step(); }), {"w", "inf", "index 0"});
  EXPECT_EQ(snapshot(optimizer), before);
}

}  // namespace
}  // namespace halfstep
