// save and load: every kind of object comes back from its file bit for bit; a file that does not
// fit is refused with its name and the whole key, and nothing at all has changed.
#include <gtest/gtest.h>

#include <cmath>

#include "halfstep/tests/file_testing.h"
#include "halfstep/tests/run_testing.h"

namespace halfstep {
namespace {

using test::bits;
using test::expect_says;
using test::make_parameter;
using test::message_of;
using test::RunOptions;
using test::TemporaryFolder;
using test::TrainingRun;

constexpr DType kAll[] = {DType::F32, DType::F64, DType::BF16, DType::F16};

/// Saves `saved`, loads that into `loaded`, which is different, and saves it again.
template <Stateful T>
void expect_comes_back(const T& saved, T& loaded) {
  const TemporaryFolder folder;
  const std::string before = bits(saved.state_dict());
  EXPECT_NE(bits(loaded.state_dict()), before) << "the test shows nothing";
  save(saved, folder / "a");
  load(loaded, folder / "a");
  EXPECT_EQ(bits(loaded.state_dict()), before);
  EXPECT_EQ(bits(saved.state_dict()), before);
  save(loaded, folder / "b");
  EXPECT_EQ(test::read_text(folder / "b"), test::read_text(folder / "a"));
}

void step_once(optim::Optimizer& optimizer, float gradient) {
  for (const Parameter& parameter : optimizer.parameters()) {
    test::give_gradient(parameter, {gradient, -2.0f * gradient});
  }
  optimizer.step();
}

std::vector<Parameter> two_parameters(DType dtype) {
  return {make_parameter("a", {1.0f, -2.0f}, dtype), make_parameter("b", {0.5f, 3.0f}, dtype)};
}

TEST(Checkpoint, a_module_comes_back) {
  for (const DType dtype : kAll) {
    const nn::Sequential saved = make_model(RunOptions{.parameters = dtype, .seed = 1});
    nn::Sequential loaded = make_model(RunOptions{.parameters = dtype, .seed = 2});
    const Tensor handle = loaded.parameters()[0].value;
    const StateDict old = loaded.state_dict();
    const std::string old_bits = bits(old);
    expect_comes_back(saved, loaded);
    EXPECT_EQ(bits(old), old_bits) << "a state holds copies";
    EXPECT_TRUE(handle.shares_storage(loaded.parameters()[0].value)) << "copied, not replaced";
    EXPECT_TRUE(handle.requires_grad());
    EXPECT_EQ(saved.state_dict().tensors.size(), 4u);
  }
}

TEST(Checkpoint, adamw_with_amsgrad_and_masters_comes_back) {
  for (const DType dtype : kAll) {
    optim::AdamW saved(two_parameters(dtype), {.lr = 0.01, .amsgrad = true});
    optim::AdamW loaded(two_parameters(dtype));
    for (const float g : {0.5f, -0.25f, 3.0f}) step_once(saved, g);
    step_once(loaded, 1.0f);
    expect_comes_back(saved, loaded);
    EXPECT_EQ(saved.state_dict().tensors.contains("state.0.master"), is_half(dtype));
    EXPECT_TRUE(saved.state_dict().tensors.contains("state.1.max_exp_avg_sq"));
  }
}

TEST(Checkpoint, masters_of_other_weights_give_way_to_the_weights) {
  for (const DType dtype : {DType::BF16, DType::F16}) {
    optim::AdamW saved(two_parameters(dtype), {.lr = 0.5});
    step_once(saved, 1.0f);
    optim::AdamW loaded(two_parameters(dtype)), written(two_parameters(dtype));
    for (optim::AdamW* optimizer : {&loaded, &written}) {
      optimizer->prepare_load(saved.state_dict())();
    }
    for (const Parameter& parameter : written.parameters()) {
      Tensor(parameter.value).copy_(parameter.value.clone());  // the same values, written again
    }
    step_once(loaded, 1.0f);
    step_once(written, 1.0f);
    EXPECT_EQ(bits(loaded.state_dict()), bits(written.state_dict()));
    step_once(saved, 1.0f);  // which is a step further
    EXPECT_NE(bits(loaded.parameters()[0].value), bits(saved.parameters()[0].value));
  }
}

TEST(Checkpoint, sgd_with_momentum_comes_back) {
  for (const DType dtype : kAll) {
    optim::SGD saved(two_parameters(dtype), {.lr = 0.01, .momentum = 0.9});
    optim::SGD loaded(two_parameters(dtype));
    for (const float g : {0.5f, -0.25f}) step_once(saved, g);
    expect_comes_back(saved, loaded);
    EXPECT_TRUE(saved.state_dict().tensors.contains("state.1.momentum_buffer"));
  }
}

TEST(Checkpoint, a_scaler_comes_back) {
  test::ScalerDriver saved({.init_scale = 1000.0, .growth_factor = 3.0, .growth_interval = 7});
  test::ScalerDriver loaded({});
  saved.good(9);
  loaded.bad();
  expect_comes_back(saved.scaler, loaded.scaler);
  EXPECT_EQ(loaded.scaler.get_scale(), 3000.0);
  EXPECT_EQ(loaded.scaler.growth_tracker(), 2);
}

TEST(Checkpoint, a_schedule_a_monitor_and_a_generator_come_back) {
  TrainingRun saved, loaded;
  saved.steps(8);
  loaded.steps(2);
  expect_comes_back(saved.schedule, loaded.schedule);
  expect_comes_back(saved.monitor, loaded.monitor);
  Generator words(3), others(4);
  words.normal({5});
  expect_comes_back(words, others);
}

TEST(Checkpoint, a_whole_run_comes_back) {
  for (const DType precision : {DType::F32, DType::BF16, DType::F16}) {
    for (const DType parameters : {DType::F32, DType::BF16}) {
      for (const bool sgd : {false, true}) {
        RunOptions options{.precision = precision, .sgd = sgd, .parameters = parameters};
        if (precision == DType::F32 && is_half(parameters)) continue;
        TrainingRun saved(options);
        options.seed = 2;
        TrainingRun loaded(options);
        saved.steps(9);
        loaded.steps(3);
        expect_comes_back(saved.state, loaded.state);
      }
    }
  }
}

TEST(Checkpoint, numbers_are_kept_to_the_last_bit) {
  const StateDict numbers{.tensors = {},
                          .numbers = {{"third", 1.0 / 3.0}, {"least", 5e-324}, {"zero", -0.0}}};
  const TemporaryFolder folder;
  write_safetensors(folder / "x", to_safetensors(numbers));
  const StateDict got = read_state_dict(folder / "x");
  EXPECT_EQ(got.source, folder / "x");
  EXPECT_EQ(bits(got), bits(numbers));
  StateReader reader("load", got);
  for (const auto& [key, value] : numbers.numbers) EXPECT_EQ(reader.number(key), value);
}

/// A run, and the file of another one which is further.
struct Refusal : testing::Test {
  TemporaryFolder folder;
  const std::string path = folder / "run.safetensors";
  TrainingRun run{RunOptions{.precision = DType::F16, .parameters = DType::BF16}};
  Safetensors good;
  std::string before;

  Refusal() {
    TrainingRun other(RunOptions{.precision = DType::F16, .parameters = DType::BF16, .seed = 2});
    other.steps(11);
    good = to_safetensors(other.state.state_dict());
    run.steps(7);
    before = run.all_bits();
  }

  /// Writes a file with these tensors and expects that it is refused by its name and `key`.
  void expect_refused(const Safetensors& file, const std::string& key) {
    write_safetensors(path, file);
    const std::string message = message_of<Error>([&] { load(run.state, path); });
    expect_says(message, {path, key});
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_TRUE(message.starts_with("[")) << message;
    EXPECT_EQ(run.all_bits(), before) << key;
    EXPECT_EQ(run.state.next_step(), 7);
  }
  Safetensors with(const std::string& key, const Tensor& value) const {
    Safetensors file = good;
    file.tensors[key] = value;
    return file;
  }
};

TEST_F(Refusal, every_missing_tensor) {
  ASSERT_GT(good.tensors.size(), 30u);
  for (const auto& [key, value] : good.tensors) {
    Safetensors file = good;
    file.tensors.erase(key);
    expect_refused(file, key);
  }
}

TEST_F(Refusal, every_tensor_of_another_shape) {
  for (const auto& [key, x] : good.tensors) {
    std::vector<int64_t> dims(x.shape().dims().begin(), x.shape().dims().end());
    dims.push_back(1);
    expect_refused(with(key, reshape(x, Shape(dims))), key);
  }
}

TEST_F(Refusal, every_tensor_of_another_dtype) {
  for (const auto& [key, x] : good.tensors) {
    for (const DType dtype : kAll) {
      if (dtype == x.dtype()) continue;
      expect_refused(with(key, Tensor::zeros(x.shape(), dtype)), key);
    }
  }
}

TEST_F(Refusal, every_tensor_too_many) {
  for (const char* key :
       {"extra", "model.4.weight", "model.0.weight.x", "model.", "optimizer.state.4.exp_avg",
        "optimizer.param_groups.1.lr", "optimizer.state.0.momentum_buffer", "scaler.hysteresis",
        "schedule.lr", "next_step.x", "", "line\nbreak"}) {
    const std::string shown = std::string_view(key) == "line\nbreak" ? "line\\nbreak" : key;
    expect_refused(with(key, Tensor::scalar(1.0, DType::F64)), shown);
  }
}

TEST_F(Refusal, numbers_that_make_no_sense) {
  const auto refused = [&](const std::string& key, double value, const std::string& says) {
    ASSERT_TRUE(good.tensors.contains(key)) << key;
    expect_refused(with(key, Tensor::scalar(value, DType::F64)), says);
  };
  for (const std::string key : {"next_step", "schedule.step", "optimizer.state.2.step",
                                "scaler._growth_tracker", "scaler.growth_interval"}) {
    for (const double bad : {-1.0, 0.5, std::nan(""), HUGE_VAL}) refused(key, bad, key);
  }
  refused("optimizer.param_groups.0.amsgrad", 2.0, "optimizer.param_groups.0.amsgrad");
  refused("optimizer.param_groups.0.lr", -1.0, "lr = -1");
  refused("optimizer.param_groups.0.eps", 0.0, "eps = 0");
  refused("scaler.scale", std::nan(""), "scale");
  refused("scaler.backoff_factor", 2.0, "backoff_factor");
  const std::string square = "optimizer.state.3.exp_avg_sq";
  expect_refused(with(square, Tensor::full({2}, -1.0)), square);
}

TEST_F(Refusal, a_file_that_cannot_be_read) {
  save(run.state, path);
  const std::string whole = test::read_text(path);
  for (const size_t length : {size_t{0}, size_t{7}, size_t{100}, whole.size() - 1}) {
    test::write_text(path, whole.substr(0, length));
    expect_says(message_of<FileError>([&] { load(run.state, path); }), {path});
    EXPECT_EQ(run.all_bits(), before);
  }
  expect_says(message_of<FileError>([&] { load(run.state, folder / "none"); }), {folder / "none"});
  EXPECT_EQ(run.all_bits(), before);
}

TEST_F(Refusal, the_state_of_another_precision_or_optimizer) {
  TrainingRun f32(RunOptions{.precision = DType::F32}), f16(RunOptions{.precision = DType::F16});
  TrainingRun sgd(RunOptions{.precision = DType::F32, .sgd = true});
  const auto refused = [&](const TrainingRun& saved, TrainingRun& loaded, std::string_view what) {
    save(saved.state, path);
    const std::string now = loaded.all_bits();
    expect_says(message_of<Error>([&] { load(loaded.state, path); }), {path, what});
    EXPECT_EQ(loaded.all_bits(), now);
  };
  refused(f32, f16, "empty state");
  refused(f16, f32, "the scaler is disabled here");
  refused(sgd, f32, "optimizer.param_groups.0.betas.0");
  refused(f32, sgd, "optimizer.param_groups.0.momentum");
  refused(run, f16, "model.0.weight");
}

TEST_F(Refusal, a_schedule_on_one_side_only) {
  amp::AmpOptions options;
  options.dtype = DType::F16;
  amp::AmpTrainState without(run.model, *run.optimizer, run.scaler, options);
  write_safetensors(path, good);
  expect_says(message_of<ArgumentError>([&] { load(without, path); }), {path, "schedule.step"});
  EXPECT_EQ(run.all_bits(), before);
  save(without, path);
  expect_says(message_of<ArgumentError>([&] { load(run.state, path); }), {path, "schedule.step"});
  EXPECT_EQ(run.all_bits(), before);
}

TEST_F(Refusal, and_the_good_file_is_taken) {
  write_safetensors(path, good);
  load(run.state, path);
  EXPECT_NE(run.all_bits(), before);
  EXPECT_EQ(bits(run.state.state_dict()), bits(read_state_dict(path)));
  EXPECT_EQ(run.state.next_step(), 11);
}

TEST_F(Refusal, a_save_that_fails_keeps_the_old_file) {
  save(run.state, path);
  const std::string text = test::read_text(path);
  expect_says(message_of<FileError>([&] { save(run.state, folder / "no/run"); }), {"no/run"});
  expect_says(message_of<FileError>([&] { save(run.state, folder.path()); }), {folder.path()});
  EXPECT_EQ(test::read_text(path), text);
  EXPECT_EQ(folder.names(), std::set<std::string>{"run.safetensors"});
}

}  // namespace
}  // namespace halfstep
