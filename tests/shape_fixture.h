// Tiny models of every shape of attention, for tests over all of them.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "tests/tiny_model.h"

namespace qkvshare {

struct Shape {
  const char* name;
  const char* architecture;
  int heads, kv_heads, key_dim, value_dim;  // value_dim 0: as key_dim
  int window = 0;
};

inline void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }
inline std::string ShapeName(const testing::TestParamInfo<Shape>& shape) { return shape.param.name; }

inline constexpr Shape kShapes[] = {
    {"mha_64", "llama", 4, 4, 64, 0},        {"gqa_64", "llama", 6, 2, 64, 0},
    {"mqa_64", "llama", 4, 1, 64, 0},        {"gqa_72", "llama", 4, 2, 72, 0},
    {"gqa_80", "llama", 4, 2, 80, 0},        {"gqa_96", "llama", 4, 2, 96, 0},
    {"gqa_128", "qwen2", 4, 2, 128, 0},      {"gqa_256", "gemma3", 2, 1, 256, 0},
    {"window", "gemma3", 4, 2, 64, 0, 40},   {"k_128_v_64", "plamo3", 4, 2, 128, 64, 40},
    {"soft_cap", "gemma2", 4, 2, 64, 0, 40}, {"sinks", "gpt-oss", 4, 2, 64, 0, 40},
};

template <class Fixture>
class ShapeFixture : public Fixture, public testing::WithParamInterface<Shape> {
 protected:
  TinyModelSpec Spec() const override {
    const Shape& shape = GetParam();
    TinyModelSpec spec;
    spec.architecture = shape.architecture;
    spec.heads = shape.heads;
    spec.kv_heads = shape.kv_heads;
    spec.key_dim = shape.key_dim;
    spec.value_dim = shape.value_dim;
    spec.sliding_window = shape.window;
    spec.tied = spec.architecture != "gpt-oss";
    return spec;
  }
};

}  // namespace qkvshare
