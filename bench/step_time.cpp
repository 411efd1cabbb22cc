// Time of one demo step: Linear(16, 32) / GELU / Linear(32, 4), batch 8, AdamW, the whole pipeline.
// Prints the median over blocks of steps in nanoseconds. bench/tag-cost compares two builds of it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "halfstep/halfstep.h"

int main() {
  using namespace halfstep;
  constexpr int kBlocks = 200, kStepsPerBlock = 100;
  manual_seed(0);
  nn::Sequential model{nn::Linear(16, 32), nn::GELU(), nn::Linear(32, 4)};
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
  amp::GradScaler scaler(Device::cpu());
  amp::AmpTrainState state(model, optimizer, scaler, {.dtype = DType::F16});
  Generator generator(1);
  const Tensor x = generator.normal({8, 16}), y = generator.normal({8, 4});

  std::vector<double> nanoseconds;
  for (int block = 0; block < kBlocks; ++block) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kStepsPerBlock; ++i) state.step(x, y);
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    nanoseconds.push_back(time.count() / kStepsPerBlock);
  }
  std::ranges::nth_element(nanoseconds, nanoseconds.begin() + kBlocks / 2);
  std::printf("%.1f\n", nanoseconds[kBlocks / 2]);
}
