// In steady state a training step allocates nothing: from the third step on no call of operator new
// (this program counts them all) and nothing from the system for the caching allocator. For the
// demo's model and for one of a thousand layers, in all three precisions, with a CSV row per step.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

#include "halfstep/halfstep.h"

#if defined(__SANITIZE_ADDRESS__)
#define HS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HS_ASAN 1
#endif
#endif

namespace {

std::atomic<uint64_t> news{0};

}  // namespace

#if !defined(HS_ASAN)
namespace {

void* count_and_allocate(size_t bytes, size_t alignment = alignof(std::max_align_t)) {
  news.fetch_add(1, std::memory_order_relaxed);
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  if (void* data = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded)) return data;
  throw std::bad_alloc();
}

}  // namespace

// The nothrow forms call these. Not inlined, or the compiler sees free() meet new.
#define HS_REPLACED [[gnu::noinline]]
HS_REPLACED void* operator new(size_t bytes) { return count_and_allocate(bytes); }
HS_REPLACED void* operator new(size_t bytes, std::align_val_t alignment) {
  return count_and_allocate(bytes, static_cast<size_t>(alignment));
}
HS_REPLACED void* operator new[](size_t bytes) { return count_and_allocate(bytes); }
HS_REPLACED void* operator new[](size_t bytes, std::align_val_t alignment) {
  return count_and_allocate(bytes, static_cast<size_t>(alignment));
}
HS_REPLACED void operator delete(void* data) noexcept { std::free(data); }
HS_REPLACED void operator delete[](void* data) noexcept { std::free(data); }
HS_REPLACED void operator delete[](void* data, size_t) noexcept { std::free(data); }
HS_REPLACED void operator delete[](void* data, std::align_val_t) noexcept { std::free(data); }
HS_REPLACED void operator delete(void* data, size_t) noexcept { std::free(data); }
HS_REPLACED void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
HS_REPLACED void operator delete(void* data, size_t, std::align_val_t) noexcept { std::free(data); }
#endif

namespace halfstep::test {
namespace {

class SteadyState : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(HS_ASAN)
    GTEST_SKIP() << "nothing is reused under AddressSanitizer, and operator new is its own";
#endif
  }
};

struct Counts {
  uint64_t calls_of_new = news.load();
  uint64_t from_the_system = allocator_stats(Device::cpu()).system_allocations;
  size_t pool_objects = pool_live_objects();
};

void expect_steady(nn::Sequential& model, int64_t in, int64_t out, DType dtype,
                   amp::AmpOptions options = {}, int64_t batch = 8) {
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
  amp::GradScaler scaler(
      Device::cpu(), {.init_scale = 1024.0, .growth_interval = 3, .enabled = dtype == DType::F16});
  options.dtype = dtype;
  amp::AmpTrainState state(model, optimizer, scaler, std::move(options));
  amp::CsvLog csv("/dev/null");
  Generator generator(1);
  const Tensor x = generator.normal({batch, in}), y = generator.normal({batch, out});
  for (int step = 0; step < 12; ++step) {
    const Counts before;
    {
      const amp::StepOrSkipLog log = state.step(x, y);
      csv.append(log);
    }
    const Counts after;
    if (step < 2) continue;
    EXPECT_EQ(after.calls_of_new, before.calls_of_new) << "step " << step;
    EXPECT_EQ(after.from_the_system, before.from_the_system) << "step " << step;
    EXPECT_EQ(after.pool_objects, before.pool_objects) << "step " << step;
  }
}

nn::Sequential demo_model() {
  return nn::Sequential{nn::Linear(16, 32), nn::GELU(), nn::Linear(32, 4)};
}

nn::Sequential deep_model() {
  nn::Sequential model{nn::Linear(8, 8)};
  for (int i = 1; i < 1000; ++i) model.append(std::make_unique<nn::Linear>(8, 8));
  return model;
}

TEST_F(SteadyState, the_counter_counts) {
  Counts();  // the first look makes the allocator's tables
  const Counts before;
  const auto one = std::make_unique<int>(1);
  const auto array = std::make_unique<char[]>(100);
  struct alignas(64) Wide {
    char data[64];
  };
  const auto aligned = std::make_unique<Wide>();
  EXPECT_EQ(Counts().calls_of_new, before.calls_of_new + 3);
  const Tensor x = Tensor::empty({(1 << 20) + 12345});
  EXPECT_EQ(Counts().from_the_system, before.from_the_system + 1);
}

TEST_F(SteadyState, a_step_of_the_demo_model_allocates_nothing) {
  for (const DType dtype : {DType::F32, DType::BF16, DType::F16}) {
    SCOPED_TRACE(name_of(dtype));
    nn::Sequential model = demo_model();
    expect_steady(model, 16, 4, dtype);
  }
}

TEST_F(SteadyState, a_step_of_a_thousand_layers_allocates_nothing) {
  for (const DType dtype : {DType::F32, DType::BF16, DType::F16}) {
    SCOPED_TRACE(name_of(dtype));
    nn::Sequential model = deep_model();
    expect_steady(model, 8, 8, dtype);
  }
}

TEST_F(SteadyState, a_step_that_keeps_the_threads_busy_allocates_nothing) {
  for (const DType dtype : {DType::F32, DType::BF16, DType::F16}) {
    SCOPED_TRACE(name_of(dtype));
    nn::Sequential model{nn::Linear(256, 1024), nn::GELU(), nn::Linear(1024, 64)};
    expect_steady(model, 256, 64, dtype, {}, 256);
  }
}

TEST_F(SteadyState, a_skipped_step_allocates_nothing_either) {
  for (const DType dtype : {DType::F32, DType::BF16, DType::F16}) {
    SCOPED_TRACE(name_of(dtype));
    nn::Sequential model = demo_model();
    amp::AmpOptions options;
    options.after_backward = [](int64_t step, const std::vector<Parameter>& parameters) {
      if (step % 3 == 0) parameters[2].value.grad().mul_(INFINITY);
    };
    expect_steady(model, 16, 4, dtype, std::move(options));
  }
}

}  // namespace
}  // namespace halfstep::test
