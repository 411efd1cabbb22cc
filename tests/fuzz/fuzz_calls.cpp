// Bytes as a sequence of calls on a scaler, two optimizers and their parameters, in any order and
// with any values. A call that throws must have changed nothing; parameters stay finite on the safe
// path; a step that was skipped leaves them alone; a state that was loaded is the one that was
// saved.
#include <cmath>
#include <iterator>
#include <limits>

#include "halfstep/tests/fuzz/things.h"

namespace halfstep::fuzz {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Loop : Things {
 public:
  explicit Loop(Bytes& bytes) : Things(bytes.next()), bytes_(bytes) {}

  /// One call, with its checks.
  void call() {
    const std::string values = values_text();
    skipped_ = false;
    std::string error;
    try {
      call_any();
    } catch (const Error& refusal) {
      error = refusal.what();
    }
    std::string now = state();
    if (!error.empty()) FUZZ_CHECK(now == state_, "changed by a call that threw: ", error);
    state_.swap(now);
    if (skipped_) FUZZ_CHECK(values_text() == values, "changed by a step that was skipped");
    for (const Parameter& parameter : parameters_) {
      for (const float x : parameter.value.to_vector<float>()) {
        FUZZ_CHECK(std::isfinite(x) || unsafe_, parameter.name, " is ", x);
      }
    }
    const double scale = scaler_->get_scale();
    FUZZ_CHECK(std::isfinite(scale) && scale > 0.0, scale);
  }

 private:
  optim::Optimizer& optimizer() { return *optimizers_[bytes_.choose(2)]; }
  Parameter& parameter() { return parameters_[bytes_.choose(parameters_.size())]; }
  double finite() {
    constexpr double kValues[] = {0.5, 3.0, -2.0, 1000.0, -0x1p-30, 0.0};
    return kValues[bytes_.choose(std::size(kValues))];
  }
  double any_value() {
    constexpr double kValues[] = {0.0, -1.0, 0x1p-140, 1e38, 1e300, double(kInf), double(kNan)};
    const size_t choice = bytes_.choose(2 * std::size(kValues));
    return choice < std::size(kValues) ? kValues[choice] : finite();
  }

  /// A linear loss, so that parameters cannot run away by themselves.
  Tensor loss() {
    const size_t which = bytes_.next();
    const amp::Autocast autocast(Device::cpu(), DType::F16, (which & 16) != 0);
    Tensor total = Tensor::zeros({});
    for (size_t p = 0; p < parameters_.size(); ++p) {
      if ((which >> p & 1) == 0) continue;
      const Tensor& value = parameters_[p].value;
      total = total + to(sum(value * finite()), DType::F32);
      if ((which & 32) != 0) total = total + to(sum(value), DType::F32);
    }
    return total;
  }

  void call_any() {
    switch (bytes_.choose(22)) {
      case 0:
      case 1:
        return scaler_->scale(loss()).backward();
      case 2:
        return loss().backward();
      case 3:
        if (!retained_.defined()) retained_ = scaler_->scale(loss());
        return retained_.backward({}, true);
      case 4:
        return scaler_->scale(scaler_->scale(loss())).backward();
      case 5:
        return scaler_->unscale_(optimizer());
      case 6:
        return step();
      case 7:
        return scaler_->update();
      case 8:
        return scaler_->update(any_value());
      case 9:
        return optimizer().zero_grad((bytes_.next() & 1) != 0);
      case 10:
        return plain_step();
      case 11:
        return clip();
      case 12:
        return set_gradient();
      case 13:
        return spoil_gradient();
      case 14:
        return optimizer().set_lr(safe_lr());
      case 15:
        return save();
      case 16:
        return load();
      case 17:
        return load_spoilt();
      case 18:
        return set_scaler();
      case 19:
        scaler_->abandon(optimizer());
        return;
      case 20: {
        parameter().value.fill_(finite());
        return;
      }
      default:
        retained_ = {};
    }
  }

  void step() {
    optim::Optimizer& o = optimizer();
    // A scaler that is off passes everything on.
    if (!scaler_->is_enabled()) unsafe_ = unsafe_ || optim::has_non_finite_grad(o.parameters());
    skipped_ = !scaler_->step(o).stepped();
  }

  void plain_step() {
    optim::Optimizer& o = optimizer();
    const uint64_t steps = o.step_count();
    bool finite_gradients = true;
    for (const Parameter& p : o.parameters()) {
      const Tensor grad = p.value.grad();
      if (!grad.defined()) continue;
      for (const float x : grad.to_vector<float>()) finite_gradients &= std::isfinite(x);
    }
    o.step();
    if (o.step_count() > steps && !finite_gradients) unsafe_ = true;
  }

  void clip() {
    const std::vector<Parameter>& parameters = optimizer().parameters();
    const double limit = any_value();
    switch (bytes_.choose(5)) {
      case 0: {
        const auto [pre, post] = optim::clip_global_l2_norm(parameters, limit);
        FUZZ_CHECK(!std::isfinite(pre) || post <= limit * (1 + 1e-6), pre, " ", post, " ", limit);
        const double after = optim::compute_global_l2_norm(parameters);
        // Rounding each element, to a half or to a subnormal, moves the norm.
        const double tolerance = 0.01 * post + 1e-40;
        FUZZ_CHECK(!std::isfinite(pre) || std::fabs(after - post) <= tolerance, after, " ", post);
        return;
      }
      case 1:
        optim::clip_grad_norm_(parameters, limit, true);
        return;
      case 2:
        return optim::clip_grad_value_(parameters, limit);
      case 3:
        optim::clip_scaled_grad_norm_(parameters, limit, scaler_->get_scale());
        return;
      default: {
        const auto bad = optim::find_non_finite_grad(parameters);
        FUZZ_CHECK(bad.has_value() == optim::has_non_finite_grad(parameters), "found or not");
        if (bad) FUZZ_CHECK(!std::isfinite(bad->value), bad->value);
      }
    }
  }

  void set_gradient() {
    Tensor& value = parameter().value;
    const size_t kind = bytes_.choose(4);
    if (kind == 0) return value.set_grad({});
    const DType dtype = kind == 1 ? DType::F16 : value.dtype();
    value.set_grad(Tensor::full(value.shape(), kind == 2 ? double(kInf) : finite(), dtype));
  }

  void spoil_gradient() {
    Tensor grad = parameter().value.grad();
    if (grad.defined()) grad.mul_(bytes_.choose(2) == 0 ? double(kInf) : 0.5);
  }

  double safe_lr() {
    const double lr = any_value();
    return lr > 1.0 && std::isfinite(lr) && lr < 1e38 ? 1.0 : lr > 1e30 && lr < 1e39 ? 0.25 : lr;
  }

  void save() {
    saved_[0] = optimizers_[0]->state_dict();
    saved_[1] = optimizers_[1]->state_dict();
    saved_[2] = scaler_->state_dict();
  }

  void load() {
    const size_t which = bytes_.choose(3);
    if (!saved_[which]) return;
    if (which == 2) {
      scaler_->load_state_dict(*saved_[2]);
      FUZZ_CHECK(text_of(scaler_->state_dict()) == text_of(*saved_[2]), "another scaler state");
      return;
    }
    try {
      optimizers_[which]->load_state_dict(*saved_[which]);
    } catch (const Error& error) {
      FUZZ_CHECK(unsafe_, "its own state was refused: ", error.what());
      throw;
    }
    FUZZ_CHECK(text_of(optimizers_[which]->state_dict()) == text_of(*saved_[which]),
               "another optimizer state");
  }

  /// A state with one entry less, one more, or another number.
  void load_spoilt() {
    const size_t which = bytes_.choose(3);
    if (!saved_[which]) return;
    StateDict state = *saved_[which];
    const size_t kind = bytes_.choose(3);
    if (kind == 0) state.numbers["one more"] = 1.0;
    if (kind > 0 && !state.numbers.empty()) {
      const auto at = std::next(state.numbers.begin(),
                                static_cast<std::ptrdiff_t>(bytes_.choose(state.numbers.size())));
      // Values that nobody takes, so that the safe path stays safe.
      if (kind == 1) {
        state.numbers.erase(at);
      } else {
        at->second = bytes_.choose(2) == 0 ? -1.0 : double(kNan);
      }
    }
    if (which < 2) return optimizers_[which]->load_state_dict(state);
    scaler_->load_state_dict(state);
  }

  void set_scaler() {
    const double value = any_value();
    switch (bytes_.choose(4)) {
      case 0:
        return scaler_->set_growth_factor(value);
      case 1:
        return scaler_->set_backoff_factor(value);
      case 2:
        return scaler_->set_growth_interval(static_cast<int64_t>(bytes_.next()) - 3);
      default:
        return scaler_->set_scale_limits(any_value(), value);
    }
  }

  Bytes& bytes_;
  Tensor retained_;
  std::optional<StateDict> saved_[3];
  std::string state_ = state();  // before the next call
  bool skipped_ = false;
  bool unsafe_ = false;  // gradients that are not finite were applied without a scaler
};

}  // namespace
}  // namespace halfstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  static const bool quiet = (set_warning_handler([](std::string_view) {}), true);
  static_cast<void>(quiet);
  fuzz::Bytes bytes(data, size);
  fuzz::Loop loop(bytes);
  while (!bytes.empty()) loop.call();
  return 0;
}
