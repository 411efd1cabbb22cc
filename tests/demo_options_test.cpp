// The demo's parts without the program: injections, what settings turn into, and rows.
#include <gtest/gtest.h>

#include <cmath>

#include "halfstep/core/error.h"
#include "halfstep/demo/parse.h"
#include "halfstep/demo/report.h"
#include "halfstep/demo/settings.h"

namespace halfstep::demo {
namespace {

template <class Fn>
std::string usage_complaint(Fn&& fn) {
  try {
    fn();
    return "";
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(Injection, is_read_and_written_in_the_same_form) {
  for (const char* text : {"inf-grad@5", "inf-grad@0", "target-spike@7:1e+08", "target-spike@7:-2",
                           "nan-grad@3", "nan-grad@3:2.weight=skip", "inf-grad@100-250",
                           "nan-input@9=step", "inf-loss@11-12", "target-spike@0-1:1e-08=step"}) {
    EXPECT_EQ(parse_injection(text).str(), text);
  }
  EXPECT_EQ(
      parse_injection("target-spike@7:1e8"),
      (Injection{.kind = Injection::Kind::kTargetSpike, .first = 7, .last = 7, .factor = 1e8}));
}

TEST(Injection, anything_else_is_refused_with_what_was_given) {
  for (const char* text : {"",
                           "foo",
                           "foo@5",
                           "inf-grad",
                           "inf-grad@",
                           "inf-grad@x",
                           "inf-grad@-1",
                           "inf-grad@1.5",
                           "inf-grad@5:",
                           "target-spike@7",
                           "target-spike@7:",
                           "target-spike@7:x",
                           "target-spike@7:inf",
                           "inf-grad@5-4",
                           "inf-grad@5-",
                           "inf-grad@-5",
                           "inf-grad@1-2-3",
                           "inf-grad@5=",
                           "inf-grad@5=jump",
                           "nan-input@5:1",
                           "inf-grad@5=skip=skip",
                           "target-spike@7:nan",
                           "target-spike@7:1e39",
                           "@5",
                           "inf-grad@5@5"}) {
    const std::string message = usage_complaint([&] { parse_injection(text); });
    EXPECT_TRUE(message.starts_with(cat("--inject ", quote(text), " given; "))) << message;
  }
}

TEST(Injection, none_stands_alone) {
  EXPECT_TRUE(parse_injections({"none"}).empty());
  EXPECT_EQ(parse_injections({"inf-grad@1", "inf-grad@2"}).size(), 2u);
  EXPECT_THROW(parse_injections({"none", "inf-grad@1"}), UsageError);
  EXPECT_THROW(parse_injections({"none", "none"}), UsageError);
}

TEST(Injection, acts_at_its_step_only_and_leaves_the_targets_given_alone) {
  const Injector injector(parse_injections({"target-spike@2:10", "target-spike@2:3", "inf-grad@4"}),
                          {});
  const Tensor targets = Tensor::from({1, 2}, {2});
  EXPECT_EQ(injector.spoil_targets(2, targets).to_vector<float>(), (std::vector<float>{30, 60}));
  EXPECT_EQ(injector.spoil_targets(1, targets).to_vector<float>(), (std::vector<float>{1, 2}));
  EXPECT_EQ(targets.to_vector<float>(), (std::vector<float>{1, 2}));
  EXPECT_TRUE(injector.acts_at(2));
  EXPECT_TRUE(injector.acts_at(4));
  EXPECT_FALSE(injector.acts_at(3));
}

TEST(Options, defaults_are_the_lessons_run) {
  const DemoOptions options = make_options({});
  EXPECT_EQ(options.steps, 20);
  EXPECT_EQ(options.batch, 8);
  EXPECT_EQ(options.lr, 1e-2);
  EXPECT_EQ(options.max_norm, 1.0);
  EXPECT_EQ(options.seed, 0u);
  EXPECT_EQ(options.dtype, DType::BF16);
  EXPECT_FALSE(options.scaler.enabled);
  EXPECT_EQ(options.injections, parse_injections({"inf-grad@5"}));
}

TEST(Options, with_data_the_defaults_are_those_of_the_digits_run) {
  const DemoOptions options = make_options({{"data", {"x.csv"}}});
  EXPECT_EQ(options.epochs, 40);
  EXPECT_EQ(options.hidden, 128);
  EXPECT_EQ(options.lr, 3e-3);
  EXPECT_TRUE(options.injections.empty());
}

TEST(Options, what_is_given_replaces_the_default_in_both_modes) {
  for (const bool with_data : {false, true}) {
    GivenSettings given{{"lr", {"0.5"}},
                        {"batch", {"3"}},
                        {"inject", {"inf-grad@1", "inf-grad@2"}},
                        {"precision", {"fp16"}}};
    if (with_data) given["data"] = {"x.csv"};
    const DemoOptions options = make_options(given);
    EXPECT_EQ(options.lr, 0.5);
    EXPECT_EQ(options.batch, 3);
    EXPECT_EQ(options.injections, parse_injections({"inf-grad@1", "inf-grad@2"}));
    EXPECT_EQ(options.dtype, DType::F16);
    EXPECT_TRUE(options.scaler.enabled);
  }
}

TEST(Report, a_row_ends_after_100_characters) {
  const amp::SkipLog skip{.step = 1'000'000'000,
                          .lr = 1e-10,
                          .grad_l2_pre_clip = INFINITY,
                          .loss = 1e-30f,
                          .reason = amp::SkipReason::kNonFiniteGrad,
                          .scaler_scale = 1e30,
                          .parameter = std::string(100, 'x')};
  EXPECT_EQ(step_row(skip).size(), 100u);
}

TEST(Report, numbers_are_readable_whatever_their_size) {
  const auto row = [](double pre, double post, float loss, double scale) {
    return step_row(amp::StepLog{.step = 3,
                                 .lr = 3e-5,
                                 .grad_l2_pre_clip = pre,
                                 .grad_l2_post_clip = post,
                                 .loss = loss,
                                 .scaler_scale = scale});
  };
  EXPECT_EQ(row(1.10349e8, 1.0, 0.46231f, 16777216),
            "STEP     3     0.4623 3.000e-05  1.103e+08     1.0000   16777216");
  EXPECT_EQ(row(0.0, 1e-300, 1e30f, 0x1p100),
            "STEP     3  1.000e+30 3.000e-05          0 1.000e-300 1.2677e+30");
  EXPECT_EQ(row(99998.0, 0.001, 0.0f, 0.5),
            "STEP     3          0 3.000e-05 99998.0000     0.0010        0.5");
}

}  // namespace
}  // namespace halfstep::demo
