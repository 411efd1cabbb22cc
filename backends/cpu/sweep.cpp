// The sweep over gradients (step 7 of a training step): unscale multiplies them in place and
// records what it has stored; measure only records. Both see the same values, so measuring after
// unscaling gives the same record. Squares are summed in float64 by blocks of a fixed size: the
// same bits on every SIMD target and for any number of threads.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "halfstep/backends/cpu/parallel.h"
#include "halfstep/backends/cpu/register.h"
#include "halfstep/backends/cpu/scratch.h"
#include "halfstep/backends/cpu/simd_targets.h"
#include "halfstep/backends/reference/reference.h"
#include "halfstep/core/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halfstep/backends/cpu/sweep.cpp"

#include "hwy/foreach_target.h"

#include "hwy/highway.h"

#include "halfstep/backends/cpu/sum-inl.h"

namespace halfstep {

/// Handles one block of a gradient and returns its sum of squares.
using SweepBlockFn = double (*)(void* data, size_t n, float factor);
using SweepBlockFns = SweepBlockFn[kDTypeCount];
void sweep(const SweepItem* items, int64_t count, const SweepBlockFns& blocks, float factor);

}  // namespace halfstep

HWY_BEFORE_NAMESPACE();
namespace halfstep {
namespace HWY_NAMESPACE {
namespace {

/// v as it reads after a store as T.
template <class T>
HWY_INLINE Sums::V rounded(Sums::V v) {
  if constexpr (std::is_same_v<T, Half>) {
    return WidenF16(Sums::D(), NarrowF16(Sums::D(), v));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return WidenBF16(Sums::D(), NarrowBF16(Sums::D(), v));
  } else {
    return v;
  }
}

template <class T>
double unscale_block(void* data, size_t n, float factor) {
  T* x = static_cast<T*>(data);
  return sum_of(
      n,
      [x, factor](Sums& sums, size_t j, size_t i) HWY_ATTR {
        const Sums::D d;
        const auto unscaled = hn::Mul(LoadAs(d, x + i), hn::Set(d, factor));
        StoreAs(unscaled, d, x + i);
        sums.add_squares(j, rounded<T>(unscaled));
      },
      [x, factor](size_t i) HWY_ATTR {
        x[i] = convert<T>(convert<float>(x[i]) * factor);
        return square(convert<double>(x[i]));
      });
}

template <class T>
double measure_block(void* data, size_t n, float /*factor*/) {
  return sum_squares_block(static_cast<const T*>(data), n);
}

void measure(const SweepItem* items, int64_t count) {
  static constexpr SweepBlockFns kBlocks = {measure_block<float>, measure_block<Half>,
                                            measure_block<BFloat16>, nullptr};
  sweep(items, count, kBlocks, 1.0f);
}

void unscale(const SweepItem* items, int64_t count, float factor) {
  // Not only faster: a product with 1 would make signalling NaNs quiet.
  if (factor == 1.0f) return measure(items, count);
  static constexpr SweepBlockFns kBlocks = {unscale_block<float>, unscale_block<Half>,
                                            unscale_block<BFloat16>, nullptr};
  sweep(items, count, kBlocks, factor);
}

void register_here(KernelTable& table) {
  table.unscale = unscale;
  table.measure = measure;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace halfstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfstep {
namespace {

constexpr int64_t kBlock = 1 << 16;  // elements; also the grain of the threads

/// A block of one gradient and what was found in it.
struct Block {
  const SweepItem* item;
  int64_t begin;  // within the item
  int64_t n;
  int64_t position;  // of all elements of the sweep
  SweepRecord found;
};

void find_first_non_finite(const SweepItem& item, int64_t begin, int64_t n, SweepRecord& record) {
  visit_dtype(item.dtype, [&](auto element) {
    const auto* x = static_cast<const decltype(element)*>(item.data) + begin;
    for (int64_t i = 0; i < n; ++i) {
      if (const float value = convert<float>(x[i]); !std::isfinite(value)) {
        record.first_non_finite = begin + i;
        record.non_finite_value = value;
        return;
      }
    }
  });
}

SweepRecord sweep_block(const SweepItem& item, int64_t begin, int64_t n,
                        const SweepBlockFns& blocks, float factor) {
  char* data = static_cast<char*>(item.data) + static_cast<size_t>(begin) * size_of(item.dtype);
  SweepRecord record{0.0, -1, 0.0f};
  record.sum_squares =
      blocks[static_cast<size_t>(item.dtype)](data, static_cast<size_t>(n), factor);
  // Squares of finite float32 numbers cannot overflow a float64 sum: this one test finds them all.
  if (!std::isfinite(record.sum_squares)) find_first_non_finite(item, begin, n, record);
  return record;
}

}  // namespace

void sweep(const SweepItem* items, int64_t count, const SweepBlockFns& blocks, float factor) {
  int64_t elements = 0;
  int64_t block_count = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (items[i].dtype == DType::F64) continue;
    elements += items[i].n;
    block_count += (items[i].n + kBlock - 1) / kBlock;
  }
  Scratch<Block> list(block_count);
  int64_t listed = 0;
  int64_t position = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (items[i].dtype == DType::F64) continue;
    for (int64_t begin = 0; begin < items[i].n; begin += kBlock) {
      const int64_t n = std::min(kBlock, items[i].n - begin);
      list[listed++] = {&items[i], begin, n, position, {}};
      position += n;
    }
  }
  // A piece handles the blocks that start in it, so many small gradients share one piece.
  Block* const first = list.data();
  parallel_for(elements, kBlock, [=, &blocks](int64_t begin, int64_t end) {
    const auto starts_before = [](const Block& b, int64_t at) { return b.position < at; };
    for (Block* b = std::lower_bound(first, first + block_count, begin, starts_before);
         b != first + block_count && b->position < end; ++b) {
      b->found = sweep_block(*b->item, b->begin, b->n, blocks, factor);
    }
  });
  for (int64_t i = 0; i < count; ++i) {
    SweepRecord& record = *items[i].record;
    record = {0.0, -1, 0.0f};
    if (items[i].dtype == DType::F64) {
      record = reference_sweep(static_cast<double*>(items[i].data), items[i].n, factor);
    }
  }
  for (const Block* b = first; b != first + block_count; ++b) {
    SweepRecord& record = *b->item->record;
    record.sum_squares += b->found.sum_squares;
    if (record.first_non_finite < 0 && b->found.first_non_finite >= 0) {
      record.first_non_finite = b->found.first_non_finite;
      record.non_finite_value = b->found.non_finite_value;
    }
  }
}

HWY_EXPORT(register_here);

void register_sweep(KernelTable& table) { HWY_DYNAMIC_DISPATCH(register_here)(table); }

}  // namespace halfstep
#endif  // HWY_ONCE
