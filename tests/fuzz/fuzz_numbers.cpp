// Text as a number, as an injection and as a config file. Numbers are compared with what the C
// library makes of them; the others must say the same after they were written and read again.
#include <cerrno>
#include <cmath>

#include "halfstep/demo/config.h"
#include "halfstep/demo/injection.h"
#include "halfstep/demo/parse.h"
#include "halfstep/tests/fuzz/fuzz.h"

namespace halfstep::fuzz {
namespace {

using demo::UsageError;

size_t skip_digits(std::string_view text, size_t& at) {
  const size_t begin = at;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
  return at - begin;
}

/// What is behind one sign.
std::string_view unsigned_part(std::string_view text) {
  if (!text.empty() && (text.front() == '+' || text.front() == '-')) text.remove_prefix(1);
  return text;
}

bool is_whole(std::string_view text) {
  size_t at = 0;
  return skip_digits(text, at) > 0 && at == text.size();
}

/// 12, 12., .5, 1.5e+3; nothing else.
bool is_decimal(std::string_view text) {
  size_t at = 0;
  size_t digits = skip_digits(text, at);
  if (at < text.size() && text[at] == '.') digits += skip_digits(text, ++at);
  if (digits == 0) return false;
  if (at < text.size() && (text[at] | 0x20) == 'e') {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    if (skip_digits(text, at) == 0) return false;
  }
  return at == text.size();
}

void check_number(std::string_view given) {
  const std::string text(given);
  const std::string_view behind = unsigned_part(text);
  const bool minus = text.starts_with('-');

  errno = 0;
  const long long whole = std::strtoll(text.c_str(), nullptr, 10);
  const auto integer = demo::parse_integer(text);
  FUZZ_CHECK(integer.has_value() == (is_whole(behind) && errno == 0), text);
  FUZZ_CHECK(!integer || *integer == whole, text);

  errno = 0;
  const unsigned long long natural = std::strtoull(text.c_str(), nullptr, 10);
  const auto positive = demo::parse_unsigned(text);
  FUZZ_CHECK(positive.has_value() == (is_whole(behind) && !minus && errno == 0), text);
  FUZZ_CHECK(!positive || *positive == natural, text);

  errno = 0;
  char* end = nullptr;
  const double real = std::strtod(text.c_str(), &end);
  const bool in_range = errno == 0 || (std::isfinite(real) && real != 0.0);  // subnormals too
  const auto number = demo::parse_number(text);
  if (is_decimal(behind)) {
    FUZZ_CHECK(number.has_value() == in_range, text);
    FUZZ_CHECK(!number || same_bits(*number, real), text);
  } else if (number) {
    FUZZ_CHECK(!std::isfinite(*number) && end == text.c_str() + text.size(), text);
    FUZZ_CHECK(std::isnan(*number) ? std::isnan(real) : *number == real, text);
  }

  const std::string line = one_line(text);
  FUZZ_CHECK(one_line(line) == line, text);
  FUZZ_CHECK(line.find('\n') == std::string::npos, text);
}

void check_injection(std::string_view text) {
  demo::Injection injection;
  try {
    injection = demo::parse_injection(text);
  } catch (const UsageError&) {
    return;
  }
  FUZZ_CHECK(demo::parse_injection(injection.str()) == injection, injection.str());
  FUZZ_CHECK(injection.first >= 0 && injection.acts_at(injection.last), injection.str());
}

void check_config(const std::string& text) {
  demo::GivenSettings given;
  demo::DemoOptions options;
  try {
    given = demo::parse_config(text, "input");
    options = demo::make_options(given);
  } catch (const UsageError& error) {
    return;
  }
  // What is in force does not change on the way through a file.
  const demo::GivenSettings in_force = demo::given_settings(options);
  const std::string written = demo::config_text(in_force);
  FUZZ_CHECK(demo::config_text(demo::parse_config(written, "written")) == written, written);
  FUZZ_CHECK(demo::given_settings(demo::make_options(in_force)) == in_force, written);
  const auto again = demo::make_options(demo::parse_config(demo::config_text(given), "again"));
  FUZZ_CHECK(demo::given_settings(again) == in_force, written);
}

}  // namespace
}  // namespace halfstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep::fuzz;
  if (size == 0) return 0;
  const std::string_view text = text_of(data + 1, size - 1);
  switch (data[0] % 3) {  // '0': a number, '1': an injection, '2': a config
    case 0:
      if (text.find('\0') == std::string_view::npos) check_number(text);
      break;
    case 1:
      check_injection(text);
      break;
    default:
      check_config(std::string(text));
  }
  return 0;
}
