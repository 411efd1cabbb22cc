// The elementwise kernels for F32, F16 and BF16 (step 4 of a training step): a loop around each
// formula of backends/formulas-inl.h, generated from core/elementwise.def. Compiled once per SIMD
// target. Assumes what core/kernels.h says of pointers; y may be one of the inputs.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "halfstep/backends/cpu/parallel.h"
#include "halfstep/backends/cpu/register.h"
#include "halfstep/backends/cpu/simd_targets.h"
#include "halfstep/core/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halfstep/backends/cpu/elementwise.cpp"

#include "hwy/foreach_target.h"

#include "hwy/highway.h"

#include "halfstep/backends/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halfstep {
namespace HWY_NAMESPACE {
namespace {

using FloatTag = hn::ScalableTag<float>;
using Math = SimdMath<FloatTag>;
constexpr int64_t kGrain = 1 << 15;  // elements of one piece: 2 to 30 microseconds

// y[i] = f(x[i]). Loads and stores are where T counts; f sees float lanes.
template <template <class> class Formula, class T>
void unary(const void* x, void* y, int64_t n) {
  const T* in = static_cast<const T*>(x);
  T* out = static_cast<T*>(y);
  parallel_for(n, kGrain, [=](int64_t begin, int64_t end) HWY_ATTR {
    const auto fwd = [](auto v) HWY_ATTR { return Formula<Math>::fwd(v); };
    Map(fwd, static_cast<size_t>(end - begin), out + begin, in + begin);
  });
}

// dx[i] = dy[i] f'(x[i]); saved is x or y, as the .def says.
template <template <class> class Formula, class T>
void unary_backward(const void* dy, const void* saved, void* dx, int64_t n) {
  const T* gradient = static_cast<const T*>(dy);
  const T* in = static_cast<const T*>(saved);
  T* out = static_cast<T*>(dx);
  parallel_for(n, kGrain, [=](int64_t begin, int64_t end) HWY_ATTR {
    const auto bwd = [](auto g, auto v) HWY_ATTR { return Formula<Math>::bwd(g, v); };
    Map(bwd, static_cast<size_t>(end - begin), out + begin, gradient + begin, in + begin);
  });
}

/// Where an operand lies along a run of output elements: element i of the run is p[i * step]. The
/// step is 0 for a scalar, whose p is one vector of copies.
struct Run {
  const void* p;
  size_t step;
};
/// Computes n output elements from dy (unused forward), lhs and rhs.
using RunFn = void (*)(size_t n, void* out, const Run& dy, const Run& lhs, const Run& rhs);

/// Calls `fn` for runs that make up [rows, cols]. A kRow operand makes every row a run of its own.
void for_runs(RunFn fn, size_t element, const BinaryLayout& layout, const void* dy, const void* lhs,
              const void* rhs, void* out) {
  HWY_ALIGN char copies[2][HWY_MAX_BYTES];
  const auto spread_of = [&layout](Spread spread) {  // a lone row lies as a full operand does
    return spread == Spread::kRow && layout.rows == 1 ? Spread::kFull : spread;
  };
  const Spread spreads[] = {spread_of(layout.lhs), spread_of(layout.rhs)};
  const void* operands[] = {lhs, rhs};
  for (size_t j = 0; j < 2; ++j) {
    if (operands[j] == nullptr || spreads[j] != Spread::kScalar) continue;
    for (size_t i = 0; i < hn::MaxLanes(FloatTag()); ++i) {
      std::memcpy(copies[j] + i * element, operands[j], element);
    }
    operands[j] = copies[j];
  }
  const auto run = [&](int64_t begin, int64_t n) {
    const size_t offset = static_cast<size_t>(begin) * element;
    const auto at = [offset](const void* p) { return static_cast<const char*>(p) + offset; };
    const Run gradient = {dy == nullptr ? nullptr : at(dy), 1};
    Run in[2];
    for (size_t j = 0; j < 2; ++j) {
      // An op that needs nothing has null operands; its formula ignores what it gets instead.
      if (operands[j] == nullptr) {
        in[j] = gradient;
      } else {
        in[j].p = spreads[j] == Spread::kFull ? at(operands[j]) : operands[j];
        in[j].step = spreads[j] == Spread::kScalar ? 0 : 1;
      }
    }
    fn(static_cast<size_t>(n), static_cast<char*>(out) + offset, gradient, in[0], in[1]);
  };
  const int64_t rows = layout.rows, cols = layout.cols;
  if (spreads[0] == Spread::kRow || spreads[1] == Spread::kRow) {
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, cols));
    parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) run(row * cols, cols);
    });
  } else {
    parallel_for(rows * cols, kGrain, [&](int64_t begin, int64_t end) { run(begin, end - begin); });
  }
}

/// Map over one run. What a formula ignores is not loaded: the compiler drops unused loads.
template <class T, class Fn, class... In>
HWY_INLINE void map_run(Fn fn, size_t n, void* out, const In&... in) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  T* y = static_cast<T*>(out);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    StoreAs(fn(LoadAs(d, static_cast<const T*>(in.p) + i * in.step)...), d, y + i);
  }
  if (i < n) {
    StoreAsN(fn(LoadAsN(d, static_cast<const T*>(in.p) + i * in.step, n - i)...), d, y + i, n - i);
  }
}

// y[row, col] = f(lhs, rhs), each operand a full [rows, cols], a row [cols] or a scalar.
template <template <class> class Formula, class T>
void binary(const void* lhs, const void* rhs, void* y, const BinaryLayout& layout) {
  const RunFn run = [](size_t n, void* out, const Run&, const Run& a, const Run& b) HWY_ATTR {
    const auto fwd = [](auto va, auto vb) HWY_ATTR { return Formula<Math>::fwd(va, vb); };
    map_run<T>(fwd, n, out, a, b);
  };
  for_runs(run, sizeof(T), layout, nullptr, lhs, rhs, y);
}

// dlhs[row, col] = dy[row, col] df/dlhs, before the sum over what lhs was spread along.
template <template <class> class Formula, class T>
void binary_backward_lhs(const void* dy, const void* lhs, const void* rhs, void* out,
                         const BinaryLayout& layout) {
  const RunFn run = [](size_t n, void* dx, const Run& g, const Run& a, const Run& b) HWY_ATTR {
    const auto bwd = [](auto vg, auto va, auto vb)
                         HWY_ATTR { return Formula<Math>::bwd_lhs(vg, va, vb); };
    map_run<T>(bwd, n, dx, g, a, b);
  };
  for_runs(run, sizeof(T), layout, dy, lhs, rhs, out);
}

template <template <class> class Formula, class T>
void binary_backward_rhs(const void* dy, const void* lhs, const void* rhs, void* out,
                         const BinaryLayout& layout) {
  const RunFn run = [](size_t n, void* dx, const Run& g, const Run& a, const Run& b) HWY_ATTR {
    const auto bwd = [](auto vg, auto va, auto vb)
                         HWY_ATTR { return Formula<Math>::bwd_rhs(vg, va, vb); };
    map_run<T>(bwd, n, dx, g, a, b);
  };
  for_runs(run, sizeof(T), layout, dy, lhs, rhs, out);
}

/// Rows of the .def in order, so op counts through the enumerators.
template <class T>
void register_dtype(KernelTable& table) {
  constexpr size_t kDType = static_cast<size_t>(kDTypeOf<T>);
  size_t op = 0;
#define HS_UNARY(name, ...)                          \
  table.unary[op][kDType] = unary<formula::name, T>; \
  table.unary_backward[op++][kDType] = unary_backward<formula::name, T>;
#include "halfstep/core/elementwise.def"
  op = 0;
#define HS_BINARY(name, ...)                                                     \
  table.binary[op][kDType] = binary<formula::name, T>;                           \
  table.binary_backward_lhs[op][kDType] = binary_backward_lhs<formula::name, T>; \
  table.binary_backward_rhs[op++][kDType] = binary_backward_rhs<formula::name, T>;
#include "halfstep/core/elementwise.def"
}

void register_here(KernelTable& table) {
  register_dtype<float>(table);
  register_dtype<Half>(table);
  register_dtype<BFloat16>(table);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace halfstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfstep {

HWY_EXPORT(register_here);

void register_elementwise(KernelTable& table) { HWY_DYNAMIC_DISPATCH(register_here)(table); }

}  // namespace halfstep
#endif  // HWY_ONCE
