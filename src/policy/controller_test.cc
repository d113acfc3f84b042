#include "policy/controller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace qkvshare {
namespace {

using Json = nlohmann::json;

ControllerWeights SmallWeights() {
  ControllerWeights weights;
  weights.inputs = {ControllerInput::kCost, ControllerInput::kRarity};
  weights.offsets = {0.5, 1};
  weights.means = {0.25, -1};
  weights.scales = {2, 0.5};
  weights.hidden = {{1, 0.5}, {-0.25, 0}, {0, 2}};
  weights.hidden_bias = {0.1, -0.2, 0};
  weights.output = {1.5, -1, 0.25};
  weights.output_bias = 0.75;
  return weights;
}

Json SmallFile() {
  return {{"qkvshare_controller", 1},
          {"name", "small"},
          {"inputs", {"cost", "rarity"}},
          {"offsets", {0.5, 1}},
          {"means", {0.25, -1}},
          {"scales", {2, 0.5}},
          {"activation", "tanh"},
          {"hidden", {{"weights", {{1, 0.5}, {-0.25, 0}, {0, 2}}}, {"bias", {0.1, -0.2, 0}}}},
          {"output", {{"weights", {1.5, -1, 0.25}}, {"bias", 0.75}}}};
}

TEST(ControllerTest, ByHand) {
  const Result<Controller> controller = Controller::Make("small", SmallWeights());
  ASSERT_TRUE(controller);
  const std::vector<double> costs = controller->Predict({{0.5}, {0}});
  // log(1) = 0: z = (0 - 0.25) / 2 = -0.125. log(1) = 0: z = (0 + 1) / 0.5 = 2.
  const double h0 = std::tanh(0.1 - 0.125 + 1), h1 = std::tanh(-0.2 + 0.03125), h2 = std::tanh(4.0);
  ASSERT_EQ(costs.size(), 1U);
  EXPECT_NEAR(costs[0], std::exp(0.75 + 1.5 * h0 - h1 + 0.25 * h2), 1e-12);
}

// Far from all that it was trained on it does not change any more, and no input makes it anything but a number above 0.
TEST(ControllerTest, InputsAreHeld) {
  const Result<Controller> controller = Controller::Make("small", SmallWeights());
  ASSERT_TRUE(controller);
  const double beyond = 0.5 * std::exp(0.25 + 2 * (kInputLimit + 1));
  const std::vector<double> costs = controller->Predict({{beyond, beyond * 1e6, 0}, {3, 3, 1e300}});
  EXPECT_EQ(costs[0], costs[1]);
  for (const double cost : costs) {
    EXPECT_TRUE(std::isfinite(cost));
    EXPECT_GT(cost, 0);
  }
}

TEST(ControllerTest, ALargeBiasGivesAFiniteCost) {
  ControllerWeights weights = SmallWeights();
  for (const double bias : {1e9, -1e9}) {
    weights.output_bias = bias;
    const Result<Controller> controller = Controller::Make("small", weights);
    ASSERT_TRUE(controller);
    const double cost = controller->Predict({{1}, {1}})[0];
    EXPECT_TRUE(std::isfinite(cost));
    EXPECT_GT(cost, 0);
  }
}

TEST(ControllerTest, ReadsItsFile) {
  const std::string text = SmallFile().dump();
  const Result<Controller> read = Controller::Parse(text);
  ASSERT_TRUE(read) << read.status().message();
  EXPECT_EQ(read->name(), "small");
  EXPECT_EQ(read->weights().inputs, SmallWeights().inputs);
  EXPECT_EQ(read->features().Names(), (std::vector<std::string>{"attention", "rarity"}));
  const std::vector<std::vector<double>> columns = {{0.1, 2, 30}, {0, 1, 5}};
  EXPECT_EQ(read->Predict(columns), Controller::Make("small", SmallWeights())->Predict(columns));
  EXPECT_NE(read->id(), Controller::Parse(text + "\n")->id());
}

TEST(ControllerTest, RefusesWrongFiles) {
  const auto status = [](const Json& json) { return Controller::Parse(json.dump()).status(); };
  const auto refuses = [&](const char* pointer, const Json& value, StatusCode code, const std::string& says) {
    Json json = SmallFile();
    json[Json::json_pointer(pointer)] = value;
    EXPECT_EQ(status(json).code(), code) << pointer;
    EXPECT_NE(status(json).message().find(says), std::string::npos) << status(json).message();
  };
  ASSERT_TRUE(status(SmallFile()).ok());
  refuses("/qkvshare_controller", 2, StatusCode::kUnsupported, "version 2");
  refuses("/inputs/1", "mood", StatusCode::kCorrupt, "mood");
  refuses("/inputs/1", "cost", StatusCode::kCorrupt, "input cost is there twice");
  refuses("/inputs", Json::array(), StatusCode::kCorrupt, "no inputs");
  refuses("/offsets/0", 0, StatusCode::kCorrupt, "offset");
  refuses("/scales/1", -1, StatusCode::kCorrupt, "scale");
  refuses("/scales", {2}, StatusCode::kCorrupt, "scales has 1 numbers, not 2");
  refuses("/means/0", nullptr, StatusCode::kCorrupt, "null");  // how JSON writes NaN
  refuses("/name", "a,b", StatusCode::kCorrupt, "name");
  refuses("/activation", "relu", StatusCode::kCorrupt, "tanh");
  refuses("/hidden/weights/1", {1, 2, 3}, StatusCode::kCorrupt, "a hidden unit has 3 numbers, not 2");
  refuses("/hidden/weights", Json::array(), StatusCode::kCorrupt, "hidden units");
  refuses("/hidden/bias", {1}, StatusCode::kCorrupt, "hidden bias");
  refuses("/output/weights", {1}, StatusCode::kCorrupt, "output");
  refuses("/output/bias", "x", StatusCode::kCorrupt, "string");
  Json json = SmallFile();
  json.erase("scales");
  EXPECT_NE(status(json).message().find("scales"), std::string::npos);
  EXPECT_EQ(Controller::Parse("{\"a\": 1}").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(Controller::Parse("no JSON").status().code(), StatusCode::kCorrupt);
}

TEST(ControllerTest, RefusesNumbersThatAreNone) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  for (const double bad : {kNan, kInf, 1e10}) {
    for (int place = 0; place < 6; ++place) {
      ControllerWeights w = SmallWeights();
      const std::vector<double*> places = {&w.means[1],       &w.scales[0], &w.hidden[2][1],
                                           &w.hidden_bias[0], &w.output[1], &w.output_bias};
      *places[static_cast<size_t>(place)] = bad;
      EXPECT_EQ(Controller::Make("bad", w).status().code(), StatusCode::kInvalidArgument) << place;
    }
  }
}

TEST(ControllerTest, BuiltInOnesCanBeUsed) {
  const std::vector<std::string> names = BuiltInControllers();
  ASSERT_FALSE(names.empty());
  EXPECT_NE(std::find(names.begin(), names.end(), kDefaultController), names.end());
  for (const std::string& name : names) {
    const auto controller = OpenController(name);
    ASSERT_TRUE(controller) << controller.status().message();
    EXPECT_EQ((*controller)->name(), name);
  }
}

TEST(ControllerTest, NoSuchFile) {
  const Status status = OpenController("no-such-controller").status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find(kDefaultController), std::string::npos);
}

}  // namespace
}  // namespace qkvshare
