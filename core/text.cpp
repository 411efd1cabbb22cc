// one_line: which bytes are printable UTF-8.
#include "halfstep/core/text.h"

#include <algorithm>

namespace halfstep {
namespace {

/// Bytes of the printable character that `text` begins with; 0 for control characters and for what
/// is not UTF-8.
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t length = first < 0xc2   ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return 0;
  }
  // Control characters beyond ASCII, overlong forms, surrogates, beyond U+10FFFF.
  const unsigned second = byte(1);
  const bool refused = (first == 0xc2 && second < 0xa0) || (first == 0xe0 && second < 0xa0) ||
                       (first == 0xed && second > 0x9f) || (first == 0xf0 && second < 0x90) ||
                       (first == 0xf4 && second > 0x8f);
  return refused ? 0 : length;
}

}  // namespace

std::string one_line(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  while (!text.empty()) {
    const size_t length = character_length(text);
    if (length > 0) {
      out += text.substr(0, length);
    } else if (text.front() == '\n') {
      out += "\\n";
    } else if (text.front() == '\t') {
      out += "\\t";
    } else {
      const auto byte = static_cast<unsigned char>(text.front());
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

}  // namespace halfstep
