// Injections: their grammar and their effects.
#include "halfstep/demo/injection.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "halfstep/autograd/ops.h"
#include "halfstep/core/error.h"
#include "halfstep/demo/parse.h"

namespace halfstep::demo {
namespace {

using Kind = Injection::Kind;
using Expected = Injection::Expected;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct KindText {
  enum class Argument : uint8_t { kNone, kParameter, kFactor };
  Kind kind;
  std::string_view name;
  Argument argument;
};
using Argument = KindText::Argument;

constexpr KindText kKinds[] = {
    {Kind::kInfGrad, "inf-grad", Argument::kParameter},
    {Kind::kNanGrad, "nan-grad", Argument::kParameter},
    {Kind::kTargetSpike, "target-spike", Argument::kFactor},
    {Kind::kNanInput, "nan-input", Argument::kNone},
    {Kind::kInfLoss, "inf-loss", Argument::kNone},
};

const KindText& text_of(Kind kind) { return *std::ranges::find(kKinds, kind, &KindText::kind); }

[[noreturn]] void refuse(std::string_view text, std::string_view rule) {
  throw UsageError(cat("--inject ", quote(text), " given; ", rule));
}

/// Cuts `rest` at the first `mark`, and returns what is behind it; nullopt if there is none.
std::optional<std::string_view> cut_at(std::string_view& rest, char mark) {
  const size_t at = rest.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view behind = rest.substr(at + 1);
  rest = rest.substr(0, at);
  return behind;
}

void parse_steps(std::string_view text, std::string_view steps, Injection& injection) {
  const std::optional<std::string_view> behind = cut_at(steps, '-');
  const std::optional<int64_t> first = parse_integer(steps);
  const std::optional<int64_t> last = behind ? parse_integer(*behind) : first;
  if (!first || !last || *first < 0 || *last < *first) {
    refuse(text, "after @ there must be a step, or FIRST-LAST: whole numbers, counted from 0");
  }
  injection.first = *first;
  injection.last = *last;
}

void parse_argument(std::string_view text, Argument kind, std::optional<std::string_view> argument,
                    Injection& injection) {
  switch (kind) {
    case Argument::kNone:
      if (argument) refuse(text, "nothing but =skip or =step may follow the step");
      return;
    case Argument::kParameter:
      if (argument && argument->empty()) refuse(text, "after the colon there must be a parameter");
      injection.parameter = argument.value_or("");
      return;
    case Argument::kFactor:
      break;
  }
  const std::optional<double> factor = argument ? parse_number(*argument) : std::nullopt;
  if (!factor || std::fabs(*factor) > static_cast<double>(std::numeric_limits<float>::max()) ||
      std::isnan(*factor)) {
    refuse(text, "after the step there must be a colon and a finite float32 factor, as in :1e8");
  }
  injection.factor = *factor;
}

void set_first_element(Tensor& tensor, float value) { tensor.mutable_data<float>()[0] = value; }

}  // namespace

std::string Injection::str() const {
  const KindText& text = text_of(kind);
  std::string out = cat(text.name, "@", first);
  if (last != first) out += cat("-", last);
  if (text.argument == Argument::kFactor) out += cat(":", factor);
  if (!parameter.empty()) out += cat(":", parameter);
  if (expected != Expected::kAnything) out += expected == Expected::kSkip ? "=skip" : "=step";
  return out;
}

Injection parse_injection(std::string_view text) {
  std::string_view steps = text;
  const std::optional<std::string_view> expected = cut_at(steps, '=');
  std::string_view name = steps;
  const std::optional<std::string_view> behind_at = cut_at(name, '@');
  const auto kind = std::ranges::find(kKinds, name, &KindText::name);
  if (!behind_at || kind == std::end(kKinds)) {
    refuse(text,
           "it must be inf-grad@STEP, nan-grad@STEP, target-spike@STEP:FACTOR, nan-input@STEP, "
           "inf-loss@STEP or none");
  }
  steps = *behind_at;
  const std::optional<std::string_view> argument = cut_at(steps, ':');

  Injection injection{.kind = kind->kind};
  parse_steps(text, steps, injection);
  parse_argument(text, kind->argument, argument, injection);
  if (expected) {
    if (*expected != "skip" && *expected != "step") {
      refuse(text, "after = there must be skip or step: what is expected to happen");
    }
    injection.expected = *expected == "skip" ? Expected::kSkip : Expected::kStep;
  }
  return injection;
}

std::vector<Injection> parse_injections(const std::vector<std::string>& texts) {
  std::vector<Injection> injections;
  for (const std::string& text : texts) {
    if (text != "none") {
      injections.push_back(parse_injection(text));
    } else if (texts.size() > 1) {
      throw UsageError("--inject none given together with another --inject; none stands alone");
    }
  }
  return injections;
}

Injector::Injector(std::vector<Injection> injections, const std::vector<Parameter>& parameters)
    : injections_(std::move(injections)) {
  for (const Injection& injection : injections_) {
    const std::string& name = injection.parameter;
    if (name.empty() || std::ranges::find(parameters, name, &Parameter::name) != parameters.end()) {
      continue;
    }
    std::string names;
    for (const Parameter& parameter : parameters) names += " " + parameter.name;
    throw UsageError(cat("--inject ", quote(injection.str()), " given; the parameters are", names));
  }
}

bool Injector::acts_at(int64_t step) const {
  return std::ranges::any_of(injections_, [&](const Injection& i) { return i.acts_at(step); });
}

bool Injector::acts_at(int64_t step, Kind kind) const {
  return std::ranges::any_of(injections_,
                             [&](const Injection& i) { return i.kind == kind && i.acts_at(step); });
}

const Injection* Injector::unmet(int64_t step, bool skipped) const {
  const Expected happened = skipped ? Expected::kSkip : Expected::kStep;
  const auto found = std::ranges::find_if(injections_, [&](const Injection& injection) {
    return injection.acts_at(step) && injection.expected != Expected::kAnything &&
           injection.expected != happened;
  });
  return found == injections_.end() ? nullptr : &*found;
}

Tensor Injector::spoil_inputs(int64_t step, const Tensor& inputs) const {
  if (!acts_at(step, Kind::kNanInput)) return inputs;
  Tensor spoilt = inputs.clone();
  set_first_element(spoilt, kNan);
  return spoilt;
}

Tensor Injector::spoil_targets(int64_t step, const Tensor& targets) const {
  Tensor spoilt = targets;
  for (const Injection& injection : injections_) {
    if (injection.kind != Kind::kTargetSpike || !injection.acts_at(step)) continue;
    if (spoilt.shares_storage(targets)) spoilt = targets.clone();
    spoilt.mul_(injection.factor);
  }
  return spoilt;
}

Tensor Injector::spoil_loss(int64_t step, const Tensor& loss) const {
  return acts_at(step, Kind::kInfLoss) ? loss * static_cast<double>(kInf) : loss;
}

void Injector::spoil_gradients(int64_t step, const std::vector<Parameter>& parameters) const {
  for (const Injection& injection : injections_) {
    const bool is_inf = injection.kind == Kind::kInfGrad;
    if ((!is_inf && injection.kind != Kind::kNanGrad) || !injection.acts_at(step)) continue;
    const auto named = std::ranges::find(parameters, injection.parameter, &Parameter::name);
    const Parameter& parameter = named == parameters.end() ? parameters.front() : *named;
    Tensor grad = parameter.value.grad();  // the same memory, and it keeps its scale tag
    set_first_element(grad, is_inf ? kInf : kNan);
  }
}

}  // namespace halfstep::demo
