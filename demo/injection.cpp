// Injections: their grammar and their effects.
#include "halfstep/demo/injection.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "halfstep/core/error.h"
#include "halfstep/demo/parse.h"

namespace halfstep::demo {
namespace {

struct KindText {
  Injection::Kind kind;
  std::string_view name;
  bool takes_factor;
};

constexpr KindText kKinds[] = {
    {Injection::Kind::kInfGrad, "inf-grad", false},
    {Injection::Kind::kTargetSpike, "target-spike", true},
};

const KindText& text_of(Injection::Kind kind) {
  return *std::ranges::find(kKinds, kind, &KindText::kind);
}

[[noreturn]] void refuse(std::string_view text, std::string_view rule) {
  throw UsageError(cat("--inject ", quote(text), " given; ", rule));
}

}  // namespace

std::string Injection::str() const {
  const KindText& text = text_of(kind);
  std::string out = cat(text.name, "@", step);
  return text.takes_factor ? cat(out, ":", factor) : out;
}

Injection parse_injection(std::string_view text) {
  const size_t at = text.find('@');
  const auto kind = std::ranges::find(kKinds, text.substr(0, at), &KindText::name);
  if (at == std::string_view::npos || kind == std::end(kKinds)) {
    refuse(text, "it must be inf-grad@STEP, target-spike@STEP:FACTOR or none");
  }

  const std::string_view rest = text.substr(at + 1);
  const size_t colon = rest.find(':');
  const std::optional<int64_t> step = parse_integer(rest.substr(0, colon));
  if (!step || *step < 0) {
    refuse(text, "after @ there must be a step: a whole number, counted from 0");
  }

  Injection injection{.kind = kind->kind, .step = *step};
  if (!kind->takes_factor) {
    if (colon != std::string_view::npos) refuse(text, "nothing may follow the step");
    return injection;
  }
  const std::optional<double> factor =
      colon == std::string_view::npos ? std::nullopt : parse_number(rest.substr(colon + 1));
  if (!factor || std::fabs(*factor) > static_cast<double>(std::numeric_limits<float>::max()) ||
      std::isnan(*factor)) {
    refuse(text, "after the step there must be a colon and a finite float32 factor, as in :1e8");
  }
  injection.factor = *factor;
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

bool Injector::acts_at(int64_t step) const {
  return std::ranges::find(injections_, step, &Injection::step) != injections_.end();
}

Tensor Injector::spoil_targets(int64_t step, const Tensor& targets) const {
  Tensor spoilt = targets;
  for (const Injection& injection : injections_) {
    if (injection.step != step || injection.kind != Injection::Kind::kTargetSpike) continue;
    if (spoilt.shares_storage(targets)) spoilt = targets.clone();
    spoilt.mul_(injection.factor);
  }
  return spoilt;
}

void Injector::spoil_gradients(int64_t step, const std::vector<Parameter>& parameters) const {
  for (const Injection& injection : injections_) {
    if (injection.step != step || injection.kind != Injection::Kind::kInfGrad) continue;
    Tensor grad = parameters.front().value.grad();  // the same memory, and it keeps its scale tag
    grad.mutable_data<float>()[0] = std::numeric_limits<float>::infinity();
  }
}

}  // namespace halfstep::demo
