// float32 to float16 and bfloat16, bit for bit as PyTorch (golden/conversions.json), on every SIMD
// target, in the vector body and in the tail. A null stands for any NaN.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "halfstep/core/dtype.h"
#include "halfstep/tests/golden.h"
#include "halfstep/tests/kernel_testing.h"

namespace halfstep::test {
namespace {

const json& golden() {
  static const json all = load_golden("conversions.json");
  return all;
}

std::vector<float> inputs() {
  std::vector<float> result;
  for (const json& bits : golden()["f32_bits"]) {
    result.push_back(std::bit_cast<float>(bits.get<uint32_t>()));
  }
  return result;
}

template <class T>
void expect_golden(const Buffer<T>& got, const json& expected, const std::string& where) {
  ASSERT_EQ(got.as_doubles().size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i].is_null()) {
      EXPECT_TRUE(std::isnan(convert<float>(got[i]))) << where << ", case " << i;
    } else {
      EXPECT_EQ(got[i].bits, expected[i].get<uint16_t>()) << where << ", case " << i;
    }
  }
}

/// Compares the casts of every target with `expected`; all at once, and one by one.
template <class T>
void expect_casts(const char* key) {
  const Buffer<float> x(inputs());
  ASSERT_GT(x.size(), 1000);
  for (const Target& target : every_target()) {
    const UnaryFn cast = target.kernels.cast[index_of(DType::F32)][index_of(kDTypeOf<T>)];
    Buffer<T> y(x.size());
    cast(x.data(), y.data(), x.size());
    expect_golden(y, golden()[key], target.name);
    Buffer<T> single(x.size());
    for (int64_t i = 0; i < x.size(); ++i) cast(x.data() + i, single.data() + i, 1);
    expect_golden(single, golden()[key], target.name + ", one by one");
  }
}

TEST(golden_conversions, every_target_narrows_to_f16_as_pytorch) { expect_casts<Half>("f16_bits"); }

TEST(golden_conversions, every_target_narrows_to_bf16_as_pytorch) {
  expect_casts<BFloat16>("bf16_bits");
}

TEST(golden_conversions, scalar_conversions_and_casts_from_f64_agree) {
  const std::vector<float> x = inputs();
  const Buffer<double> wide(x);
  Buffer<Half> f16(wide.size());
  Buffer<BFloat16> bf16(wide.size());
  const auto& cast = reference_kernels().cast[index_of(DType::F64)];
  cast[index_of(DType::F16)](wide.data(), f16.data(), wide.size());
  cast[index_of(DType::BF16)](wide.data(), bf16.data(), wide.size());
  expect_golden(f16, golden()["f16_bits"], "f64 to f16");
  expect_golden(bf16, golden()["bf16_bits"], "f64 to bf16");
  expect_golden(Buffer<Half>(x), golden()["f16_bits"], "scalar f16");
  expect_golden(Buffer<BFloat16>(x), golden()["bf16_bits"], "scalar bf16");
}

}  // namespace
}  // namespace halfstep::test
