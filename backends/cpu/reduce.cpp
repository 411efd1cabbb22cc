// Reductions: sums and means (losses, bias gradients), the L2 norm, the mean squared error, and
// their gradients. Serves steps 2, 4 and 6 of a training step. Sums run in float64 in the order of
// sum-inl.h, or row by row for sums down columns: the same bits on every SIMD target and for any
// number of threads. The gradients are plain loops; what bounds them is memory.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "halfstep/backends/cpu/parallel.h"
#include "halfstep/backends/cpu/register.h"
#include "halfstep/backends/cpu/scratch.h"
#include "halfstep/backends/cpu/simd_targets.h"
#include "halfstep/core/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halfstep/backends/cpu/reduce.cpp"

#include "hwy/foreach_target.h"

#include "hwy/highway.h"

#include "halfstep/backends/cpu/sum-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halfstep {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kStrip = 1024;      // columns summed together: their sums stay in the L1 cache
constexpr int64_t kRowsAtOnce = 256;  // rows of a block, whose totals are added in order

/// The sum of block(begin, end) over the blocks of n elements, in order.
template <class Fn>
double sum_blocks(int64_t n, Fn block) {
  if (n <= kSumBlock) return block(int64_t{0}, n);
  const int64_t blocks = (n - 1) / kSumBlock + 1;
  Scratch<double> totals(blocks);
  parallel_for(n, kSumBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
    totals[begin / kSumBlock] = block(begin, end);
  });
  double sum = 0.0;
  for (int64_t i = 0; i < blocks; ++i) sum += totals[i];
  return sum;
}

// y[outer] from x[outer, n]
template <class T>
void sum_rows(const T* x, T* y, int64_t outer, int64_t n, double divisor) {
  if (n > kSumBlock) {  // the threads share a row
    for (int64_t row = 0; row < outer; ++row, x += n) {
      const double sum = sum_blocks(n, [x](int64_t begin, int64_t end) HWY_ATTR {
        return sum_block(x + begin, static_cast<size_t>(end - begin));
      });
      y[row] = convert<T>(sum / divisor);
    }
    return;
  }
  const int64_t grain = kSumBlock / HWY_MAX(n, int64_t{1});
  parallel_for(outer, grain, [=](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t row = begin; row < end; ++row) {
      y[row] = convert<T>(sum_block(x + row * n, static_cast<size_t>(n)) / divisor);
    }
  });
}

/// sums[c] += x[r, c] for r = 0, 1, ...; each column is a sum of its own, so lanes don't mix. One
/// row at a time: reading several at once is slower, it keeps the hardware from prefetching.
template <class T>
void add_rows(const T* x, int64_t stride, int64_t rows, int64_t cols, double* sums) {
  const Sums::D d;
  const DoubleTag<Sums::D> dd;
  constexpr auto kLanes = static_cast<int64_t>(Sums::kLanes);
  for (int64_t r = 0; r < rows; ++r, x += stride) {
    int64_t c = 0;
    for (; c + kLanes <= cols; c += kLanes) {
      const auto v = LoadAs(d, x + c);
      hn::StoreU(hn::Add(hn::LoadU(dd, sums + c), LowerAsDouble(d, v)), dd, sums + c);
      if constexpr (kLanes > 1) {
        double* upper = sums + c + kLanes / 2;
        hn::StoreU(hn::Add(hn::LoadU(dd, upper), UpperAsDouble(d, v)), dd, upper);
      }
    }
    for (; c < cols; ++c) sums[c] += convert<double>(x[c]);
  }
}

// y[outer, inner] from x[outer, n, inner]
template <class T>
void sum_columns(const T* x, T* y, const ReduceDims& dims, double divisor) {
  const int64_t n = dims.n;
  const int64_t inner = dims.inner;
  const int64_t blocks = n <= kRowsAtOnce ? 1 : (n - 1) / kRowsAtOnce + 1;
  const int64_t strips = (inner - 1) / kStrip + 1;
  Scratch<double> totals(blocks > 1 ? dims.outer * blocks * inner : 0);  // [outer, blocks, inner]
  const int64_t grain =
      HWY_MAX(kSumBlock / (HWY_MIN(inner, kStrip) * HWY_MAX(HWY_MIN(n, kRowsAtOnce), int64_t{1})),
              int64_t{1});
  parallel_for(dims.outer * blocks * strips, grain, [&](int64_t begin, int64_t end) HWY_ATTR {
    HWY_ALIGN double sums[kStrip];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first_col = i % strips * kStrip;
      const int64_t cols = HWY_MIN(kStrip, inner - first_col);
      const int64_t block = i / strips;  // of outer * blocks
      const int64_t first_row = block % blocks * kRowsAtOnce;
      const T* from = x + (block / blocks * n + first_row) * inner + first_col;
      for (int64_t c = 0; c < cols; ++c) sums[c] = 0.0;
      add_rows(from, inner, HWY_MIN(kRowsAtOnce, n - first_row), cols, sums);
      if (blocks > 1) {
        std::memcpy(totals.data() + block * inner + first_col, sums,
                    static_cast<size_t>(cols) * sizeof(double));
      } else {
        for (int64_t c = 0; c < cols; ++c) {
          y[block * inner + first_col + c] = convert<T>(sums[c] / divisor);
        }
      }
    }
  });
  if (blocks == 1) return;
  for (int64_t o = 0; o < dims.outer; ++o) {
    double* sum = totals.data() + o * blocks * inner;
    for (int64_t b = 1; b < blocks; ++b) {
      for (int64_t c = 0; c < inner; ++c) sum[c] += sum[b * inner + c];
    }
    for (int64_t c = 0; c < inner; ++c) y[o * inner + c] = convert<T>(sum[c] / divisor);
  }
}

template <class T>
void reduce_sum(const void* x, void* y, const ReduceDims& dims, double divisor) {
  if (dims.inner == 1) {
    sum_rows(static_cast<const T*>(x), static_cast<T*>(y), dims.outer, dims.n, divisor);
  } else if (dims.outer > 0 && dims.inner > 0) {
    sum_columns(static_cast<const T*>(x), static_cast<T*>(y), dims, divisor);
  }
}

template <class T>
void norm(const void* x, void* y, int64_t n) {
  const T* from = static_cast<const T*>(x);
  const double sum = sum_blocks(n, [from](int64_t begin, int64_t end) HWY_ATTR {
    return sum_squares_block(from + begin, static_cast<size_t>(end - begin));
  });
  *static_cast<T*>(y) = convert<T>(std::sqrt(sum));
}

double mse_block(const float* x, const float* target, size_t n) {
  return sum_of(
      n,
      [x, target](Sums& sums, size_t j, size_t i) HWY_ATTR {
        const Sums::D d;
        sums.add_squares(j, hn::Sub(LoadAs(d, x + i), LoadAs(d, target + i)));
      },
      [x, target](size_t i) HWY_ATTR { return square(static_cast<double>(x[i] - target[i])); });
}

void mse(const void* x, const void* target, void* loss, int64_t n, double divisor) {
  const float* a = static_cast<const float*>(x);
  const float* b = static_cast<const float*>(target);
  const double sum = sum_blocks(n, [a, b](int64_t begin, int64_t end) HWY_ATTR {
    return mse_block(a + begin, b + begin, static_cast<size_t>(end - begin));
  });
  *static_cast<float*>(loss) = static_cast<float>(sum / divisor);
}

template <class T>
void register_dtype(KernelTable& table) {
  constexpr auto i = static_cast<size_t>(kDTypeOf<T>);
  table.reduce_sum[i] = reduce_sum<T>;
  table.norm[i] = norm<T>;
}

void register_here(KernelTable& table) {
  register_dtype<float>(table);
  register_dtype<Half>(table);
  register_dtype<BFloat16>(table);
  table.mse[static_cast<size_t>(DType::F32)] = mse;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace halfstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfstep {
namespace {

constexpr int64_t kGrain = 1 << 16;

template <class T>
void expand(const void* dy, void* dx, const ReduceDims& dims, double divisor) {
  const T* from = static_cast<const T*>(dy);
  T* to = static_cast<T*>(dx);
  const auto value = [from, divisor](int64_t i) {
    return convert<T>(convert<double>(from[i]) / divisor);
  };
  const int64_t n = dims.n;
  const int64_t inner = dims.inner;
  if (inner == 1) {
    parallel_for(dims.outer * n, kGrain, [=](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t row = begin / n;
        const int64_t stop = std::min(end, (row + 1) * n);
        std::fill(to + begin, to + stop, value(row));
        begin = stop;
      }
    });
  } else if (inner > 0) {
    parallel_for(dims.outer * n, std::max(kGrain / inner, int64_t{1}),
                 [=](int64_t begin, int64_t end) {
                   for (int64_t row = begin; row < end; ++row) {
                     if (row == begin || row % n == 0) {  // later rows copy this piece's first one
                       for (int64_t c = 0; c < inner; ++c)
                         to[row * inner + c] = value(row / n * inner + c);
                     } else {
                       std::memcpy(to + row * inner, to + (row - 1) * inner,
                                   static_cast<size_t>(inner) * sizeof(T));
                     }
                   }
                 });
  }
}

template <class T>
void norm_backward(const void* dy, const void* x, const void* y, void* dx, int64_t n) {
  const double length = convert<double>(*static_cast<const T*>(y));
  const double factor = convert<double>(*static_cast<const T*>(dy)) / length;
  const T* from = static_cast<const T*>(x);
  T* to = static_cast<T*>(dx);
  parallel_for(n, kGrain, [=](int64_t begin, int64_t end) {
    if (length == 0.0) {
      std::fill(to + begin, to + end, T{});
      return;
    }
    for (int64_t i = begin; i < end; ++i) to[i] = convert<T>(convert<double>(from[i]) * factor);
  });
}

// The factor may leave float32's range though dx does not (dy is a loss scale, n is large).
void mse_backward(const void* dy, const void* x, const void* target, void* dx, int64_t n,
                  double divisor) {
  const double factor = 2.0 * static_cast<double>(*static_cast<const float*>(dy)) / divisor;
  const float* a = static_cast<const float*>(x);
  const float* b = static_cast<const float*>(target);
  float* to = static_cast<float*>(dx);
  parallel_for(n, kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      to[i] = static_cast<float>(static_cast<double>(a[i] - b[i]) * factor);
    }
  });
}

template <class T>
void register_gradients(KernelTable& table) {
  constexpr auto i = static_cast<size_t>(kDTypeOf<T>);
  table.expand[i] = expand<T>;
  table.norm_backward[i] = norm_backward<T>;
}

}  // namespace

HWY_EXPORT(register_here);

void register_reduce(KernelTable& table) {
  HWY_DYNAMIC_DISPATCH(register_here)(table);
  register_gradients<float>(table);
  register_gradients<Half>(table);
  register_gradients<BFloat16>(table);
  table.mse_backward[static_cast<size_t>(DType::F32)] = mse_backward;
}

}  // namespace halfstep
#endif  // HWY_ONCE
