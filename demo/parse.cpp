// Strict parsing by std::from_chars, and quoting for messages.
#include "halfstep/demo/parse.h"

#include <charconv>

namespace halfstep::demo {
namespace {

template <class T>
std::optional<T> parse_whole(std::string_view text) {
  // from_chars knows no plus sign; "+-1" must stay an error.
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  T value{};
  const char* end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return value;
}

}  // namespace

std::optional<int64_t> parse_integer(std::string_view text) { return parse_whole<int64_t>(text); }
std::optional<uint64_t> parse_unsigned(std::string_view text) {
  return parse_whole<uint64_t>(text);
}
std::optional<double> parse_number(std::string_view text) { return parse_whole<double>(text); }

std::string quote(std::string_view text) {
  constexpr size_t kLongest = 40;
  if (text.size() <= kLongest) return "'" + one_line(text) + "'";
  size_t end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0u) == 0x80u) --end;  // whole UTF-8
  return "'" + one_line(text.substr(0, end)) + "'...";
}

}  // namespace halfstep::demo
