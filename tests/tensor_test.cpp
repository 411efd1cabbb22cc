// Tensor, Shape and warnings: making and reading tensors, views that share memory and version, the
// gradient slot, the broadcasting rule, and the errors of each.
#include "halfstep/core/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <new>
#include <thread>

#include "halfstep/autograd/ops.h"
#include "halfstep/core/allocator.h"
#include "halfstep/core/pool.h"
#include "halfstep/core/warning.h"
#include "halfstep/tests/amp_testing.h"

namespace halfstep::test {
namespace {

constexpr DType kAllDTypes[] = {DType::F32, DType::F16, DType::BF16, DType::F64};

TEST(Tensor, values_given_are_values_read) {
  const Tensor x = Tensor::from(std::vector<double>{1, 2, 3, 4, 5, 6}, {2, 3}, DType::F32);
  EXPECT_EQ(x.str(), "f32[2, 3] on cpu");
  EXPECT_EQ(x.to_vector<double>(), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(x.data<float>()[5], 6.0f);
  EXPECT_EQ(Tensor::from({7.0f}, {1, 1}).item(), 7.0);
  EXPECT_EQ(x.dim(-1), 3);
  EXPECT_EQ(x.rank(), 2);
  EXPECT_EQ(x.numel(), 6);
}

TEST(Tensor, every_dtype_can_be_made_filled_and_read) {
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{3, 0, 2}, Shape{1, 2, 3, 2, 1, 2}}) {
      const size_t n = static_cast<size_t>(shape.numel());
      EXPECT_EQ(Tensor::full(shape, -1.5, dtype).to_vector<double>(), std::vector<double>(n, -1.5));
      EXPECT_EQ(Tensor::zeros(shape, dtype).to_vector<float>(), std::vector<float>(n, 0.0f));
      EXPECT_EQ(Tensor::ones(shape, dtype).to_vector<float>(), std::vector<float>(n, 1.0f));
      EXPECT_EQ(Tensor::empty(shape, dtype).dtype(), dtype);
    }
    EXPECT_EQ(Tensor::scalar(0.25, dtype).item(), 0.25);
    EXPECT_EQ(Tensor::scalar(0.25, dtype).rank(), 0);
  }
}

TEST(Tensor, from_rounds_doubles_to_halves_once) {
  // Through float32 these would round twice: to 1026 and to 1.
  const std::vector<double> values = {1025.49995, 1.0 + 0x1p-11 + 0x1p-40, 65519.999, -65520.0};
  const Tensor x = Tensor::from(values, {4}, DType::F16);
  const uint16_t expected[] = {0x6401, 0x3C01, 0x7BFF, 0xFC00};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(x.data<Half>()[i].bits, expected[i]) << i;
}

TEST(Tensor, from_wants_as_many_values_as_the_shape_has) {
  const std::string text = message_of<ShapeError>([] { Tensor::from({1, 2, 3}, {2, 2}); });
  expect_says(text, {"[from] 3 values given for shape [2, 2]"});
}

TEST(Tensor, item_wants_exactly_one_element) {
  expect_says(message_of<ShapeError>([] { Tensor::zeros({2}).item(); }), {"[item] f32[2] on cpu"});
  EXPECT_THROW(Tensor::zeros({0}).item(), ShapeError);
}

TEST(Tensor, data_wants_the_dtype_of_the_tensor) {
  Tensor x = Tensor::zeros({2}, DType::BF16);
  const std::string text = message_of<DTypeError>([&] { x.data<float>(); });
  expect_says(text, {"[data]", "bf16[2] on cpu", "f32"});
  EXPECT_THROW(x.mutable_data<Half>(), DTypeError);
}

TEST(Tensor, an_undefined_tensor_says_so) {
  Tensor x;
  EXPECT_FALSE(x.defined());
  EXPECT_EQ(x.str(), "an undefined tensor");
  EXPECT_THROW(x.shape(), ArgumentError);
  EXPECT_THROW(x.dtype(), ArgumentError);
  EXPECT_THROW(x.item(), ArgumentError);
  EXPECT_THROW(x.to_vector<float>(), ArgumentError);
  EXPECT_THROW(x.mutable_data<float>(), ArgumentError);
  EXPECT_THROW(x.version(), ArgumentError);
  EXPECT_THROW(x.grad(), ArgumentError);
  EXPECT_THROW(x.zero_grad(), ArgumentError);
  EXPECT_THROW(x.detach(), ArgumentError);
  EXPECT_THROW(x.clone(), ArgumentError);
  EXPECT_THROW(x.fill_(0.0), ArgumentError);
  EXPECT_THROW(x.backward(), ArgumentError);
}

TEST(Tensor, an_unavailable_device_and_f64_off_the_cpu_are_errors) {
  expect_says(message_of<DTypeError>([] { Tensor::empty({1}, DType::F64, Device::cuda()); }),
              {"f64 on cuda:0"});
  if (is_available(Device::cuda())) GTEST_SKIP() << "there is a CUDA device";
  expect_says(message_of<DeviceError>([] { Tensor::zeros({1}, DType::F32, Device::cuda()); }),
              {"cuda:0"});
}

TEST(Tensor, more_bytes_than_can_be_addressed_are_refused) {
  // 2^62 elements of 4 bytes are 2^64 bytes: 0 in size_t.
  for (const DType dtype : kAllDTypes) {
    EXPECT_ANY_THROW(Tensor::empty({int64_t{1} << 62}, dtype)) << name_of(dtype);
    EXPECT_ANY_THROW(Tensor::empty({int64_t{1} << 61}, dtype)) << name_of(dtype);
  }
  EXPECT_THROW(Tensor::empty({int64_t{1} << 48}), std::bad_alloc);
}

TEST(Tensor, a_write_through_any_handle_or_view_advances_the_one_version) {
  Tensor x = Tensor::zeros({2, 3});
  Tensor same = x, row = rows(x, 1, 2), flat = reshape(x, {-1}), detached = x.detach();
  uint64_t version = x.version();
  for (Tensor* view : {&x, &same, &row, &flat, &detached}) {
    view->mutable_data<float>()[0] = 1.0f;
    EXPECT_EQ(x.version(), ++version);
    EXPECT_EQ(flat.version(), version);
  }
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 0, 0, 1, 0, 0}));
  x.data<float>();
  x.to_vector<float>();
  EXPECT_EQ(x.version(), version) << "reading is not writing";
}

TEST(Tensor, a_clone_shares_nothing) {
  const Tensor x = Tensor::from({1, 2, 3, 4}, {2, 2}).set_requires_grad();
  Tensor y = rows(x, 1, 2).clone();
  EXPECT_FALSE(y.shares_storage(x));
  EXPECT_FALSE(y.requires_grad());
  const uint64_t version = x.version();
  y.mutable_data<float>()[0] = 9.0f;
  EXPECT_EQ(x.version(), version);
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{9, 4}));
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 2, 3, 4}));
}

TEST(Tensor, views_share_memory_and_carry_gradients) {
  Tensor x = Tensor::from({1, 2, 3, 4, 5, 6}, {3, 2}).set_requires_grad();
  const Tensor flat = reshape(x, {-1}), middle = rows(x, 1, 2);
  EXPECT_TRUE(flat.shares_storage(x) && middle.shares_storage(x));
  EXPECT_EQ(flat.shape(), Shape{6});
  EXPECT_EQ(reshape(x, {1, -1, 3}).shape(), (Shape{1, 2, 3}));
  EXPECT_EQ(reshape(rows(x, 0, 0), {-1, 7}).shape(), (Shape{0, 7}));
  EXPECT_EQ(middle.to_vector<float>(), (std::vector<float>{3, 4}));
  EXPECT_EQ(rows(rows(x, 1, 3), 1, 2).to_vector<float>(), (std::vector<float>{5, 6}));
  EXPECT_EQ(rows(x, 3, 3).shape(), (Shape{0, 2}));
  sum(middle * 2.0 + rows(x, 2, 3)).backward();
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{0, 0, 2, 2, 1, 1}));
}

TEST(Tensor, set_grad_copies_and_forgets_history) {
  Tensor w = Tensor::zeros({2}).set_requires_grad();
  const Tensor leaf = Tensor::ones({2}).set_requires_grad();
  const Tensor with_history = leaf * 3.0;
  w.set_grad(with_history);
  EXPECT_EQ(w.grad().to_vector<float>(), (std::vector<float>{3, 3}));
  EXPECT_FALSE(w.grad().shares_storage(with_history)) << "gradients never share memory";
  EXPECT_FALSE(w.grad().requires_grad());
  EXPECT_EQ(w.leaf_state().tag, GradTag::none());
  w.set_grad({});
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(w.leaf_state().tag, GradTag{});
}

TEST(Tensor, set_grad_wants_shape_and_dtype_of_the_tensor) {
  Tensor w = Tensor::zeros({2}).set_requires_grad();
  w.set_grad(Tensor::ones({2}));
  const std::string text = message_of<ShapeError>([&] { w.set_grad(Tensor::zeros({2, 1})); });
  expect_says(text, {"[set_grad]", "f32[2, 1] on cpu", "f32[2] on cpu"});
  EXPECT_THROW(w.set_grad(Tensor::zeros({2}, DType::F16)), DTypeError);
  EXPECT_EQ(w.grad().to_vector<float>(), (std::vector<float>{1, 1})) << "an error changes nothing";
  EXPECT_THROW((w * 2.0).set_grad(Tensor::zeros({2})), GraphError);
}

TEST(Tensor, a_tensor_may_be_its_own_gradient_without_leaking) {
  const size_t objects = pool_live_objects();
  const size_t bytes = allocator_stats(Device::cpu()).live_bytes;
  {
    Tensor w = Tensor::from({1, 2}, {2}).set_requires_grad();
    w.set_grad(w);
    EXPECT_EQ(w.grad().to_vector<float>(), (std::vector<float>{1, 2}));
    sum(w).backward();
    EXPECT_EQ(w.grad().to_vector<float>(), (std::vector<float>{2, 3}));
    EXPECT_EQ(w.to_vector<float>(), (std::vector<float>{1, 2})) << "added up in other memory";
    w.set_grad(w.grad());
    EXPECT_EQ(w.grad().to_vector<float>(), (std::vector<float>{2, 3}));
  }
  EXPECT_EQ(pool_live_objects(), objects);
  EXPECT_EQ(allocator_stats(Device::cpu()).live_bytes, bytes);
}

TEST(Tensor, zero_grad_removes_the_gradient_or_writes_zeros_into_it) {
  Tensor w = Tensor::zeros({2}).set_requires_grad();
  w.zero_grad();
  w.zero_grad(false);
  EXPECT_FALSE(w.grad().defined()) << "nothing is made";
  w.set_grad(Tensor::ones({2}));
  const Tensor held = w.grad();
  w.zero_grad(false);
  EXPECT_EQ(held.to_vector<float>(), (std::vector<float>{0, 0}));
  EXPECT_TRUE(w.grad().shares_storage(held));
  EXPECT_EQ(w.leaf_state().tag, GradTag{});
  w.zero_grad();
  EXPECT_FALSE(w.grad().defined());
}

TEST(Tensor, only_a_leaf_can_be_told_to_require_a_gradient) {
  Tensor w = Tensor::zeros({2}).set_requires_grad();
  Tensor y = w * 2.0;
  EXPECT_TRUE(w.is_leaf() && !y.is_leaf() && y.requires_grad());
  EXPECT_THROW(y.set_requires_grad(false), GraphError);
  EXPECT_FALSE(w.set_requires_grad(false).requires_grad());
}

TEST(Broadcast, equal_shapes_scalars_and_rows_fit_and_nothing_else_does) {
  struct Case {
    Shape lhs, rhs;
    bool fits;
    Spread spread_lhs, spread_rhs;
    int64_t row_count, cols;
  };
  constexpr auto kFull = Spread::kFull, kRow = Spread::kRow, kScalar = Spread::kScalar;
  const Case cases[] = {
      {{3, 4}, {3, 4}, true, kFull, kFull, 3, 4},  {{}, {}, true, kFull, kFull, 1, 1},
      {{3, 4}, {}, true, kFull, kScalar, 3, 4},    {{}, {3, 4}, true, kScalar, kFull, 3, 4},
      {{3, 4}, {1}, true, kFull, kScalar, 3, 4},   {{3, 4}, {4}, true, kFull, kRow, 3, 4},
      {{4}, {2, 3, 4}, true, kRow, kFull, 6, 4},   {{0, 4}, {4}, true, kFull, kRow, 0, 4},
      {{3, 0}, {0}, true, kFull, kRow, 0, 0},      {{5}, {1}, true, kFull, kScalar, 1, 5},
      {{3, 4}, {1, 4}, false, kFull, kFull, 0, 0}, {{3, 4}, {3}, false, kFull, kFull, 0, 0},
      {{3, 4}, {3, 1}, false, kFull, kFull, 0, 0}, {{2, 1}, {1, 3}, false, kFull, kFull, 0, 0},
      {{3, 4}, {1, 1}, false, kFull, kFull, 0, 0}, {{5}, {4}, false, kFull, kFull, 0, 0},
      {{3, 1}, {3}, false, kFull, kFull, 0, 0},    {{2, 3, 4}, {3, 4}, false, kFull, kFull, 0, 0},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(cat(c.lhs, " and ", c.rhs));
    const Tensor lhs = Tensor::zeros(c.lhs), rhs = Tensor::zeros(c.rhs);
    if (!c.fits) {
      const std::string text = message_of<ShapeError>([&] { broadcast("add", lhs, rhs); });
      expect_says(text, {"[add]", lhs.str(), rhs.str()});
      continue;
    }
    const BinaryLayout layout = broadcast("add", lhs, rhs);
    EXPECT_TRUE(layout.lhs == c.spread_lhs && layout.rhs == c.spread_rhs);
    EXPECT_EQ(layout.rows, c.row_count);
    EXPECT_EQ(layout.cols, c.cols);
  }
}

TEST(Shape, impossible_extents_are_errors) {
  expect_says(message_of<ShapeError>([] { Shape{2, -3}; }), {"dimension 1 is -3"});
  EXPECT_THROW((Shape{1, 1, 1, 1, 1, 1, 1}), ShapeError);
  EXPECT_THROW((Shape{int64_t{1} << 40, int64_t{1} << 40}), ShapeError);
  EXPECT_THROW((Shape{2, 3}.dim(2)), ShapeError);
  expect_says(message_of<ShapeError>([] {
                Shape({2, 3}).axis(-3, "sum");
              }),
              {"[sum] dimension -3"});
  EXPECT_EQ((Shape{2, 3}.axis(-2, "sum")), 0);
  EXPECT_EQ(Shape().str(), "[]");
  EXPECT_EQ(Shape({2, 3}).str(), "[2, 3]");
  EXPECT_TRUE((Shape{2, 3} != Shape{3, 2}) && (Shape{1} != Shape{}));
}

TEST(Warning, each_kind_is_reported_once_from_any_thread) {
  const WarningCollector collector;
  warn_once("a kind", "first");
  std::thread([] { warn_once("a kind", "again"); }).join();
  warn_once("another kind", "second");
  EXPECT_EQ(collector.messages, (std::vector<std::string>{"first", "second"}));
}

TEST(Warning, a_new_handler_hears_every_kind_again) {
  const WarningCollector outer;
  warn_once("a kind", "first");
  {
    const WarningCollector inner;
    warn_once("a kind", "second");
    EXPECT_EQ(inner.messages, std::vector<std::string>{"second"});
  }
  warn_once("a kind", "third");
  EXPECT_EQ(outer.messages, (std::vector<std::string>{"first", "third"}));
}

}  // namespace
}  // namespace halfstep::test
