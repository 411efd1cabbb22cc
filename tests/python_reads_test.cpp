// Python's own safetensors library reads what save() wrote: names, dtypes, shapes and every byte.
// Skipped where python3 has no such module.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "halfstep/tests/file_testing.h"
#include "halfstep/tests/run_testing.h"

namespace halfstep {
namespace {

using test::RunOptions;

// Prints a line per tensor, and the metadata. deserialize() needs no numpy, which lacks bfloat16.
constexpr std::string_view kScript = R"(
import json, struct, sys
from safetensors import deserialize, safe_open
data = open(sys.argv[1], "rb").read()
for name, info in sorted(deserialize(data)):
    print(name, info["dtype"], list(info["shape"]), bytes(info["data"]).hex())
with safe_open(sys.argv[1], "np") as f:
    print(json.dumps(f.metadata(), sort_keys=True))
)";

bool has_safetensors() {
  return std::system("python3 -c 'import safetensors, numpy' >/dev/null 2>&1") == 0;
}

std::string hex(const std::string& text) {
  std::string out;
  for (const char c : text) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    out += {kDigits[static_cast<unsigned char>(c) >> 4], kDigits[c & 15]};
  }
  return out;
}

std::string output_of(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return "popen failed";
  std::string out;
  char buffer[4096];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
  EXPECT_EQ(::pclose(pipe), 0) << command;
  return out;
}

TEST(PythonReads, a_checkpoint_is_the_same_in_python) {
  if (!has_safetensors()) GTEST_SKIP() << "python3 has no module safetensors, or no numpy";
  const test::TemporaryFolder folder;
  test::TrainingRun run(RunOptions{.precision = DType::F16, .parameters = DType::BF16});
  run.steps(6);
  Safetensors file = to_safetensors(run.state.state_dict());
  file.tensors["half"] = Tensor::from({1.0f, -2.5f, test::kNan}, {3, 1}, DType::F16);
  file.tensors["none"] = Tensor::zeros({0, 4});
  file.metadata = {{"format", "pt"}, {"note", "\"quoted\""}};
  write_safetensors(folder / "run.safetensors", file);
  test::write_text(folder / "read.py", kScript);

  std::string want;
  for (const auto& [name, x] : file.tensors) {
    std::string dtype(name_of(x.dtype()));
    for (char& c : dtype) c = c >= 'a' ? static_cast<char>(c - 'a' + 'A') : c;
    want += cat(name, " ", dtype, " ", x.shape(), " ", hex(test::bits(x)), "\n");
  }
  want += R"({"format": "pt", "note": "\"quoted\""})";
  EXPECT_EQ(output_of(cat("python3 ", folder / "read.py", " ", folder / "run.safetensors")),
            want + "\n");
}

}  // namespace
}  // namespace halfstep
