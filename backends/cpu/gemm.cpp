// Matrix products (the low-precision ops of step 4 of a training step): float32 products by
// OpenBLAS, halves widened before and rounded once after. Big products are cut into tiles of C of a
// fixed size, so the bits do not depend on the number of threads.
// Assumes that OpenBLAS runs single-threaded (blas.h) and that no dimension exceeds 2^31 - 1.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "halfstep/backends/cpu/blas.h"
#include "halfstep/backends/cpu/parallel.h"
#include "halfstep/backends/cpu/register.h"
#include "halfstep/backends/cpu/scratch.h"
#include "halfstep/backends/cpu/simd_targets.h"
#include "halfstep/core/error.h"
#include "halfstep/core/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halfstep/backends/cpu/gemm.cpp"

#include "hwy/foreach_target.h"

#include "hwy/highway.h"

#include "halfstep/backends/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halfstep {
namespace HWY_NAMESPACE {
namespace {

// A tile as wide and high as this loses 2 to 3 % to packing A and B anew; half the size, 6 to 15 %.
constexpr int64_t kTileRows = 512;
constexpr int64_t kTileCols = 256;
// Multiply-adds below which a product is one tile: about 20 us, less than waking a thread.
constexpr double kOneTile = 1 << 21;
// Elements of A or of B that are widened at a time: 1 MiB of float32, so they stay in the L2 cache.
constexpr int64_t kWidened = 1 << 18;

struct Same {
  template <class V>
  HWY_INLINE V operator()(V x) const {
    return x;
  }
};

struct AddBias {
  template <class V>
  HWY_INLINE V operator()(V x, V bias) const {
    return hn::Add(x, bias);
  }
};

/// Rows of C from their float32 products: adds the bias and rounds once. c may be `products`.
template <class T>
void finish_rows(const float* products, int64_t product_stride, T* c, int64_t c_stride,
                 const T* bias, int64_t rows, int64_t cols) {
  const auto n = static_cast<size_t>(cols);
  for (int64_t i = 0; i < rows; ++i, products += product_stride, c += c_stride) {
    if (bias != nullptr) {
      Map(AddBias(), n, c, products, bias);
    } else if constexpr (!std::is_same_v<T, float>) {
      Map(Same(), n, c, products);
    }
  }
}

/// A part of an operand: row 0 of op(x) is row `row` of the whole, and so on.
template <class T>
struct Part {
  const T* data;
  int64_t stride;
  int64_t rows, cols;  // in memory
  bool transpose;

  Part(const void* x, int64_t whole_rows, int64_t whole_cols, bool transposed, int64_t row,
       int64_t col, int64_t row_count, int64_t col_count)
      : data(static_cast<const T*>(x)),
        stride(transposed ? whole_rows : whole_cols),
        rows(transposed ? col_count : row_count),
        cols(transposed ? row_count : col_count),
        transpose(transposed) {
    data += transposed ? col * stride + row : row * stride + col;
  }

  /// Its elements as float32: where they are, or widened to `room`.
  BlasOperand as_float(float* room) const {
    if constexpr (std::is_same_v<T, float>) {
      return {data, static_cast<int>(stride), transpose};
    } else {
      for (int64_t i = 0; i < rows; ++i) {
        Map(Same(), static_cast<size_t>(cols), room + i * cols, data + i * stride);
      }
      return {room, static_cast<int>(cols), transpose};
    }
  }
};

template <class T>
void empty_sum(const GemmArgs& args) {
  T* c = static_cast<T*>(args.c);
  const auto row_bytes = static_cast<size_t>(args.n) * sizeof(T);
  for (int64_t i = 0; i < args.m; ++i, c += args.n) {
    if (args.bias != nullptr) {
      std::memcpy(c, args.bias, row_bytes);
    } else {
      std::memset(c, 0, row_bytes);
    }
  }
}

template <class T>
void gemm(const GemmArgs& args) {
  constexpr bool kWiden = !std::is_same_v<T, float>;
  const int64_t m = args.m, n = args.n, k = args.k;
  if (m == 0 || n == 0) return;
  if (k == 0) return empty_sum<T>(args);
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  HS_CHECK(m <= kMost && n <= kMost && k <= kMost, ArgumentError, "matmul", "[", m, ", ", k,
           "] times [", k, ", ", n, "] given; no dimension may exceed ", kMost,
           "; the BLAS counts in 32 bits");

  const bool one_tile = static_cast<double>(m) * static_cast<double>(n * k) < kOneTile;
  const int64_t tile_rows = one_tile ? m : HWY_MIN(m, kTileRows);
  const int64_t tile_cols = one_tile ? n : HWY_MIN(n, kTileCols);
  const int64_t depth =
      kWiden ? HWY_MIN(k, HWY_MAX(kWidened / HWY_MAX(tile_rows, tile_cols), int64_t{1})) : k;
  const int64_t tiles_across = (n - 1) / tile_cols + 1;
  const int64_t tiles = tiles_across * ((m - 1) / tile_rows + 1);

  // One room per thread, and each thread takes tiles until there are none: what is in a tile does
  // not depend on who computes it.
  const int64_t rooms = HWY_MIN(tiles, int64_t{num_threads()});
  const int64_t room_a = tile_rows * depth;
  const int64_t room_b = depth * tile_cols;
  const int64_t room_size = room_a + room_b + tile_rows * tile_cols;
  Scratch<float> scratch(kWiden ? rooms * room_size : 0);
  std::atomic<int64_t> next{0};
  parallel_for(rooms, 1, [&](int64_t first_room, int64_t) HWY_ATTR {
    float* room = kWiden ? scratch.data() + first_room * room_size : nullptr;
    for (int64_t tile; (tile = next.fetch_add(1, std::memory_order_relaxed)) < tiles;) {
      const int64_t row = tile / tiles_across * tile_rows;
      const int64_t col = tile % tiles_across * tile_cols;
      const int64_t rows = HWY_MIN(tile_rows, m - row);
      const int64_t cols = HWY_MIN(tile_cols, n - col);
      T* c = static_cast<T*>(args.c) + row * n + col;
      float* products;
      int64_t stride;
      if constexpr (kWiden) {
        products = room + room_a + room_b;
        stride = cols;
      } else {
        products = c;
        stride = n;
      }
      for (int64_t from = 0; from < k; from += depth) {
        const int64_t count = HWY_MIN(depth, k - from);
        const Part<T> a(args.a, m, k, args.transpose_a, row, from, rows, count);
        const Part<T> b(args.b, k, n, args.transpose_b, from, col, count, cols);
        sgemm(static_cast<int>(rows), static_cast<int>(cols), static_cast<int>(count),
              a.as_float(room), b.as_float(room + room_a), from > 0, products,
              static_cast<int>(stride));
      }
      const T* bias = args.bias == nullptr ? nullptr : static_cast<const T*>(args.bias) + col;
      finish_rows(products, stride, c, n, bias, rows, cols);
    }
  });
}

void register_here(KernelTable& table) {
  table.gemm[static_cast<size_t>(DType::F32)] = gemm<float>;
  table.gemm[static_cast<size_t>(DType::F16)] = gemm<Half>;
  table.gemm[static_cast<size_t>(DType::BF16)] = gemm<BFloat16>;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace halfstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfstep {

HWY_EXPORT(register_here);

void register_gemm(KernelTable& table) {
  prepare_blas();
  HWY_DYNAMIC_DISPATCH(register_here)(table);
}

}  // namespace halfstep
#endif  // HWY_ONCE
