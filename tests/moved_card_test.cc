// Fan-in: cards that know nothing of each other, one after the other. The second lies elsewhere than it was packed at,
// by turning queries or by turning its keys, for every kind of RoPE: against llama.cpp, which computes keys there.
#include <gtest/gtest.h>

#include "llama.h"
#include "runtime/batch.h"
#include "runtime/inject.h"
#include "tests/fused_fixture.h"

namespace qkvshare {
namespace {

struct Kind {
  const char* name;
  const char* architecture;
  const char* rope_scaling = "";
  int rope_dims = 0;
  int window = 0;
  uint32_t context = 512;  // of the sessions
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class MovedCardTest : public FusedFixture, public testing::WithParamInterface<Kind> {
 protected:
  TinyModelSpec Spec() const override {
    TinyModelSpec spec;
    spec.architecture = GetParam().architecture;
    spec.rope_scaling = GetParam().rope_scaling;
    spec.rope_dims = GetParam().rope_dims;
    spec.sliding_window = GetParam().window;
    spec.rope_base_window = 500;
    spec.layers = spec.architecture == "smollm3" ? 4 : 2;  // the last of four has no RoPE
    return spec;
  }
  static SessionOptions Options(SessionOptions options) {
    options.context = GetParam().context;
    return options;
  }
  std::shared_ptr<const Card> CardOf(const std::vector<int32_t>& tokens, double bits) {
    const auto session = MakeSession(*model_, Options(SmallOptions()));
    Prefill(session.get(), tokens);
    return std::make_shared<const Card>(PackCard(*session, bits));
  }
  static void Decode(llama_context* llama, const std::vector<int32_t>& tokens, size_t first, int sequence) {
    for (size_t done = 0; done < tokens.size();) {
      Batch batch(64, sequence);
      for (size_t i = 0; i < 64 && done < tokens.size(); ++i, ++done)
        batch.Add(tokens[done], first + done, done + 1 == tokens.size());
      ASSERT_EQ(llama_decode(llama, batch.get()), 0);
    }
  }
  // llama.cpp alone: the second text prefilled after the first one's end without seeing it, then both in one sequence.
  std::vector<float> Expected() {
    SessionOptions options = Options(SmallOptions());
    options.sequences = 2;
    const auto session = MakeSession(*model_, options);
    llama_context* llama = session->handle();
    Decode(llama, prefix_, 0, 0);
    Decode(llama, second_, prefix_.size(), 1);
    llama_memory_seq_cp(llama_get_memory(llama), 1, 0, -1, -1);
    Decode(llama, suffix_, prefix_.size() + second_.size(), 0);
    const float* logits = llama_get_logits_ith(llama, -1);
    return {logits, logits + model_->vocab_size()};
  }

  const std::vector<int32_t> second_ = SomeTokens(90, 17);
};

TEST_P(MovedCardTest, IsWhatItsTextWouldBeThere) {
  const std::vector<float> expected = Expected();
  for (const double bits : {16.0, 8.0}) {
    const std::shared_ptr<const Card> cards[] = {CardOf(prefix_, bits), CardOf(second_, bits)};
    const std::vector<CardPart> parts = Take(PlaceCards(cards));
    EXPECT_EQ(parts[1].shift(), 150);
    for (const InjectMode mode : {InjectMode::kFused, InjectMode::kRestore}) {
      SessionOptions options = Options(FusedOptions());
      if (mode == InjectMode::kFused) options.card_tokens = 240;
      const auto session = MakeSession(*model_, options);
      EXPECT_EQ(Take(InjectCards(parts, mode, session.get())).mode, mode);
      Prefill(session.get(), suffix_);
      EXPECT_LT(RelativeError(Logits(*session), expected), bits == 16 ? kExactError : kPackedError)
          << bits << " bits, " << InjectModeName(mode);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ropes, MovedCardTest,
                         testing::Values(Kind{"norm", "llama"}, Kind{"neox", "qwen2"}, Kind{"some_layers", "smollm3"},
                                         Kind{"norm_part", "glm4", "", 32}, Kind{"neox_part", "gemma3", "", 32},
                                         Kind{"two_bases", "gemma3", "", 0, 200},
                                         Kind{"norm_linear", "llama", "linear"}, Kind{"neox_linear", "qwen2", "linear"},
                                         Kind{"norm_yarn", "llama", "yarn"}, Kind{"neox_yarn", "qwen2", "yarn"},
                                         Kind{"part_yarn", "glm4", "yarn", 32}, Kind{"llama3", "llama", "llama3"},
                                         Kind{"short_factors", "llama", "longrope"},
                                         // Rows for what follows the cards alone would be few enough for short ones.
                                         Kind{"long_factors", "llama", "longrope", 0, 0, 1200}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace qkvshare
