// The engine: gradients that do not alias, shared inputs, one visit per node, reuse of a graph, the
// errors of backward, what an exception leaves behind, leaks, chains longer than the stack, and
// grad mode. (Writes to saved tensors are in in_place_test.cpp.)
#include <gtest/gtest.h>
#include <pthread.h>

#include <functional>
#include <stdexcept>
#include <thread>

#include "halfstep/autograd/node.h"
#include "halfstep/halfstep.h"
#include "halfstep/tests/amp_testing.h"

namespace halfstep::test {
namespace {

using Values = std::vector<float>;

Tensor leaf(std::initializer_list<float> values) {
  return Tensor::from(values, {static_cast<int64_t>(values.size())}).set_requires_grad();
}

Values grad_of(const Tensor& x) { return x.grad().to_vector<float>(); }

/// What a step may leave behind if something leaks.
struct Census {
  int64_t nodes = live_node_count();
  size_t objects = pool_live_objects();
  size_t bytes = allocator_stats(Device::cpu()).live_bytes;
  friend bool operator==(const Census&, const Census&) = default;
};

void run_on_small_stack(std::function<void()> fn) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 512 * 1024), 0);
  const auto call = [](void* context) -> void* {
    (*static_cast<std::function<void()>*>(context))();
    return nullptr;
  };
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, &attributes, call, &fn), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST(Engine, gradients_do_not_alias) {
  const Tensor a = leaf({1, 2}), b = leaf({3, 4});
  const Tensor seed = Tensor::ones({2});
  ((a + b) + a).backward(seed);
  EXPECT_EQ(grad_of(a), (Values{2, 2}));
  EXPECT_EQ(grad_of(b), (Values{1, 1}));
  EXPECT_EQ(seed.to_vector<float>(), (Values{1, 1}));
  EXPECT_FALSE(a.grad().shares_storage(b.grad()));
}

TEST(Engine, every_leaf_owns_its_gradient) {
  // None of these needs arithmetic to hand its gradient on, so each could hand on the same memory.
  const Tensor seed = Tensor::ones({2});
  const Shape row{1, 2};
  const std::function<Tensor(const Tensor&, const Tensor&)> functions[] = {
      [](const Tensor& a, const Tensor& b) { return a + b; },
      [=](const Tensor& a, const Tensor& b) { return reshape(a, row) + reshape(b, row); },
      [](const Tensor& a, const Tensor& b) { return rows(a, 0, 2) + b; },
      [](const Tensor& a, const Tensor& b) { return to(a, DType::F32) + (b + 0.0); },
  };
  for (const auto& function : functions) {
    const Tensor a = leaf({1, 2}), b = leaf({3, 4});
    const Tensor y = function(a, b);
    y.backward(reshape(seed, y.shape()));
    for (const Tensor* x : {&a, &b}) {
      x->grad().mul_(5.0);
      EXPECT_EQ(seed.to_vector<float>(), (Values{1, 1}));
    }
    EXPECT_EQ(grad_of(a), (Values{5, 5}));
    EXPECT_EQ(grad_of(b), (Values{5, 5}));
  }
}

TEST(Engine, a_leaf_does_not_take_the_seeds_memory) {
  const Tensor a = leaf({1, 2});
  const Tensor seed = Tensor::ones({2});
  a.backward(seed);  // a leaf is the root
  reshape(a, {2, 1}).backward(reshape(seed, {2, 1}));
  EXPECT_EQ(grad_of(a), (Values{2, 2}));
  EXPECT_EQ(seed.to_vector<float>(), (Values{1, 1}));
  EXPECT_FALSE(a.grad().shares_storage(seed));
}

TEST(Engine, an_input_used_twice_gets_both_gradients) {
  const Tensor a = leaf({2, 3});
  sum(a * a + a - a * 3.0).backward();
  EXPECT_EQ(grad_of(a), (Values{2, 4}));  // 2a + 1 - 3
  const Tensor m = Tensor::from({1, 2, 3, 4}, {2, 2}).set_requires_grad();
  sum(matmul(m, m)).backward();  // d/dm = ones m^T + m^T ones
  EXPECT_EQ(grad_of(m), (Values{3 + 4, 7 + 4, 3 + 6, 7 + 6}));
}

TEST(Engine, each_node_runs_once_however_many_paths_lead_to_it) {
  const Tensor a = leaf({1.0f});
  Tensor y = a;
  for (int i = 0; i < 60; ++i) y = y * 0.5 + y * 0.5;  // 2^60 paths
  y.backward();
  EXPECT_EQ(grad_of(a), Values{1});
}

TEST(Engine, retain_graph_adds_up_and_the_last_run_consumes) {
  const Tensor a = leaf({3.0f});
  const Tensor loss = a * a;
  loss.backward({}, true);
  EXPECT_EQ(grad_of(a), Values{6});
  loss.backward();
  EXPECT_EQ(grad_of(a), Values{12});
  expect_says(message_of<GraphError>([&] { loss.backward(); }),
              {"[backward]", "mul", "retain_graph = true"});
  EXPECT_EQ(grad_of(a), Values{12});
}

TEST(Engine, a_consumed_part_of_a_graph_is_an_error_whatever_the_ops) {
  Tensor t = leaf({3.0f});
  for (const bool saves : {true, false}) {  // whether the ops in question saved tensors
    t.zero_grad();
    const Tensor k = saves ? t * t : t + t;
    const Tensor first = saves ? k * 2.0 : k + k, second = saves ? k * 3.0 : k + k;
    first.backward();
    const Values before = grad_of(t);
    EXPECT_THROW(second.backward(), GraphError);
    EXPECT_EQ(grad_of(t), before);
  }
}

TEST(Engine, backward_without_a_meaning_is_an_error) {
  const Tensor a = leaf({1, 2});
  expect_says(message_of<GraphError>([] { Tensor::ones({1}).backward(); }), {"no history"});
  expect_says(message_of<GraphError>([&] { (a * 2.0).backward(); }), {"f32[2]", "seed", "sum()"});
  Tensor made_under_no_grad;
  {
    const NoGrad no_grad;
    made_under_no_grad = sum(a);
  }
  EXPECT_THROW(made_under_no_grad.backward(), GraphError);
  EXPECT_THROW(sum(a).detach().backward(), GraphError);
  EXPECT_THROW((a * 2.0).backward(Tensor::ones({1, 2})), GraphError);
  EXPECT_THROW((a * 2.0).backward(Tensor::ones({2}, DType::F16)), GraphError);
  EXPECT_THROW(Tensor().backward(), ArgumentError);
  EXPECT_FALSE(a.grad().defined());
}

TEST(Engine, an_exception_in_the_middle_changes_no_leaf) {
  amp::GradScaler scaler;
  const Tensor deep = leaf({1, 2}), shallow = leaf({3, 4}), fresh = leaf({5, 6});
  scaler.scale(sum(deep * shallow)).backward();
  const Tensor held = shallow.grad();
  const GradTag tag = shallow.leaf_state().tag;
  const Values before_deep = grad_of(deep), before_shallow = grad_of(shallow);
  const Census census;
  {
    const Tensor loss = sum(log(deep) * shallow * fresh) + sum(shallow);
    Tensor(deep).mul_(1.0);  // saved by log, the last node to run
    expect_says(message_of<GraphError>([&] { loss.backward(); }), {"[log backward]"});
  }
  EXPECT_TRUE(grad_of(deep) == before_deep && grad_of(shallow) == before_shallow);
  EXPECT_TRUE(shallow.grad().shares_storage(held));
  EXPECT_TRUE(shallow.leaf_state().tag == tag && deep.leaf_state().tag == tag);
  EXPECT_TRUE(!fresh.grad().defined() && fresh.leaf_state().tag == GradTag{});
  const Census after;
  EXPECT_TRUE(after.nodes == census.nodes && after.bytes == census.bytes);
  EXPECT_TRUE(grad_enabled()) << "grad mode is restored";

  for (const Tensor* x : {&deep, &shallow, &fresh}) Tensor(*x).zero_grad();
  sum(deep * shallow * fresh).backward();  // and the next one is right
  EXPECT_EQ(grad_of(deep), (Values{15, 24}));
  EXPECT_EQ(grad_of(shallow), (Values{5, 12}));
  EXPECT_EQ(grad_of(fresh), (Values{3, 8}));
  EXPECT_EQ(fresh.leaf_state().tag, GradTag::none());
}

TEST(Engine, an_exception_leaves_no_pending_gradient_in_the_graph) {
  const Tensor a = leaf({1, 2}), b = leaf({3, 4});
  const Tensor waiting = a * 2.0, throwing = log(b);  // the later one runs first
  const Tensor loss = sum(waiting + throwing);
  Tensor(b).mul_(1.0);
  EXPECT_THROW(loss.backward(), GraphError);
  sum(waiting).backward();
  EXPECT_EQ(grad_of(a), (Values{2, 2})) << "what the failed run had delivered is gone";
}

TEST(Engine, a_thousand_steps_leave_nothing_behind) {
  nn::Sequential model{nn::Linear(4, 8), nn::GELU(), nn::Linear(8, 2)};
  optim::AdamW optimizer(model.parameters());
  const Tensor x = Tensor::ones({3, 4}), y = Tensor::zeros({3, 2});
  double total = 0.0;
  Census after_warm_up;
  for (int step = 0; step < 1000; ++step) {
    optimizer.zero_grad();
    const amp::Autocast autocast(Device::cpu(), DType::BF16);
    const Tensor loss = mse_loss(model(x), y);
    total += loss.item();
    loss.backward();
    optimizer.step();
    if (step % 7 == 0) mean(model(x));  // a graph that is dropped without backward
    if (step == 10) after_warm_up = Census{};
    ASSERT_TRUE(step < 10 || Census{} == after_warm_up) << "step " << step;
  }
  EXPECT_GT(total, 0.0);
}

TEST(Engine, a_running_total_of_losses_is_freed_with_the_total) {
  const Tensor w = leaf({1, 2});
  const Census before;
  {
    Tensor total = Tensor::scalar(0.0);
    for (int i = 0; i < 1000; ++i) total = total + sum(w * w);
    EXPECT_GE(live_node_count(), before.nodes + 3000);
    total.backward();
    EXPECT_EQ(grad_of(w), (Values{2000, 4000}));
  }
  Tensor(w).zero_grad();
  EXPECT_TRUE(Census().nodes == before.nodes && Census().bytes == before.bytes);
}

TEST(Engine, a_chain_longer_than_the_stack_runs_and_is_dropped) {
  enum End { kBackward, kRetained, kDropResultLast, kDropWithoutBackward };
  for (const End end : {kBackward, kRetained, kDropResultLast, kDropWithoutBackward}) {
    const Census before;
    run_on_small_stack([end] {
      Tensor x = leaf({1, 2});
      Tensor y = x;
      for (int i = 0; i < 200000; ++i) y = i % 2 == 0 ? add(y, y.detach()) : mul(y, 0.5);
      if (end != kDropWithoutBackward) {
        y.backward(Tensor::ones({2}), end != kBackward);
        EXPECT_TRUE(x.grad().defined());
      }
      if (end == kDropResultLast) x = {};
    });
    EXPECT_EQ(Census{}, before);
  }
}

TEST(Engine, a_held_gradient_keeps_its_value) {
  const Tensor a = leaf({2.0f});
  (a * 3.0).backward();
  const Tensor held = a.grad();
  (a * 4.0).backward();
  EXPECT_EQ(held.item(), 3.0);
  EXPECT_EQ(a.grad().item(), 7.0);
  const Tensor view = a.grad().detach();  // shares memory, though not the handle
  (a * 5.0).backward();
  EXPECT_EQ(view.item(), 7.0);
  EXPECT_EQ(a.grad().item(), 12.0);
}

TEST(Engine, an_unshared_gradient_is_added_to_in_place) {
  const Tensor a = leaf({2.0f});
  (a * 3.0).backward();
  const void* memory = a.grad().raw_data();
  const uint64_t version = a.grad().version();
  (a * 4.0).backward();
  EXPECT_EQ(a.grad().raw_data(), memory);
  EXPECT_GT(a.grad().version(), version) << "a record of the old values must not pass as fresh";
}

TEST(Engine, backward_runs_on_any_thread_and_in_any_mode) {
  const Tensor a = leaf({2, 3});
  const Tensor wide = Tensor::ones({256, 2});
  Tensor loss;
  {
    const amp::Autocast autocast(Device::cpu(), DType::BF16);
    loss = mean(linear(wide, reshape(a, {1, 2})));
  }
  std::thread([&] {
    EXPECT_TRUE(grad_enabled()) << "a thread starts with defaults";
    loss.backward({}, true);
  }).join();
  EXPECT_EQ(grad_of(a), (Values{1, 1}));
  {
    const NoGrad no_grad;
    loss.backward({}, true);
  }
  const amp::Autocast autocast(Device::cpu(), DType::F16);
  loss.backward();
  EXPECT_EQ(grad_of(a), (Values{3, 3}));
}

TEST(Engine, a_gradient_and_a_seed_that_others_hold_are_added_in_new_memory) {
  const Tensor w = leaf({1.0f, 2.0f});
  const Tensor seed = Tensor::from({10.0f, 20.0f}, {2});
  w.backward(seed);
  const Tensor held = w.grad();
  w.backward(seed);
  EXPECT_EQ(grad_of(w), (Values{20, 40}));
  EXPECT_EQ(seed.to_vector<float>(), (Values{10, 20}));
  EXPECT_EQ(held.to_vector<float>(), (Values{10, 20}));
}

TEST(GradMode, nests_and_survives_exceptions) {
  const Tensor a = leaf({1.0f});
  try {
    const NoGrad outer;
    { const NoGrad inner; }
    EXPECT_FALSE(grad_enabled() || (a * 2.0).requires_grad());
    std::thread([] { EXPECT_TRUE(grad_enabled()); }).join();
    throw std::runtime_error("out of the scope");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(grad_enabled() && (a * 2.0).requires_grad());
}

}  // namespace
}  // namespace halfstep::test
