#include "eval/facts_text.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/hash.h"

namespace qkvshare {
namespace {

TEST(FactsTextTest, TheSameSeedGivesTheSameText) {
  FactsWriter one(7, 2), same(7, 2), other(8, 2), next(7, 3);
  const FactsSection section = one.Next();
  const std::string text = section.Text(SIZE_MAX);
  EXPECT_EQ(same.Next().Text(SIZE_MAX), text);
  EXPECT_NE(other.Next().Text(SIZE_MAX), text);
  EXPECT_NE(next.Next().Text(SIZE_MAX), text);
}

TEST(FactsTextTest, TheTextStaysWhatItWas) {
  // Another text would be another evaluation.
  FactsWriter writer(1, 0);
  std::string text;
  for (int i = 0; i < 60; ++i) text += writer.Next().Text(SIZE_MAX);
  EXPECT_EQ(text.substr(0, 40), "## The foundry at Great Ildwater\nIlse Fe");
  EXPECT_EQ(Xxh3({reinterpret_cast<const uint8_t*>(text.data()), text.size()}), 1730402989899618793U);
}

TEST(FactsTextTest, EverySlotIsFilledAndAnswersAreInTheText) {
  FactsWriter writer(3, 0);
  size_t facts = 0;
  for (int i = 0; i < 300; ++i) {
    const FactsSection section = writer.Next();
    EXPECT_EQ(section.Text(SIZE_MAX).find_first_of("{}"), std::string::npos);
    EXPECT_FALSE(section.sentences[0].question.empty());
    for (const FactsSentence& sentence : section.sentences) {
      EXPECT_EQ(sentence.question.empty(), sentence.answer.empty());
      if (sentence.question.empty()) continue;
      ++facts;
      EXPECT_TRUE(sentence.question.ends_with('?')) << sentence.question;
      EXPECT_EQ((sentence.question + sentence.answer).find_first_of("{}"), std::string::npos);
      // Without the words around it that belong to the answer alone ("a goat", "the green one").
      std::string found = sentence.answer;
      for (const char* before : {"a ", "the "}) {
        if (found.starts_with(before)) found.erase(0, std::string(before).size());
      }
      if (found.ends_with(" one")) found.erase(found.size() - 4);
      EXPECT_NE(sentence.text.find(found), std::string::npos) << sentence.text << " / " << found;
    }
  }
  EXPECT_GT(facts, 1800U);
}

TEST(FactsTextTest, TitlesAndQuestionsAreDistinctWithinADocument) {
  FactsWriter writer(4, 1);
  std::set<std::string> titles, questions;
  size_t facts = 0;
  for (int i = 0; i < 300; ++i) {
    const FactsSection section = writer.Next();
    EXPECT_TRUE(titles.insert(section.title).second) << section.title;
    for (const FactsSentence& sentence : section.sentences) {
      if (sentence.question.empty()) continue;
      ++facts;
      questions.insert(sentence.question);
    }
  }
  EXPECT_EQ(questions.size(), facts);
}

TEST(FactsTextTest, ASectionMayBeCutAfterAnySentence) {
  FactsSection section;
  section.title = "The mill at Corvale";
  section.sentences = {{"One.", "", ""}, {"Two.", "", ""}};
  EXPECT_EQ(section.Text(0), "## The mill at Corvale\n\n\n");
  EXPECT_EQ(section.Text(1), "## The mill at Corvale\nOne.\n\n");
  EXPECT_EQ(section.Text(9), "## The mill at Corvale\nOne. Two.\n\n");
}

TEST(FactsTextTest, FillersAreAllThereInAnyOrder) {
  std::vector<std::string> one = FactsWriter(1, 0).Fillers(), two = FactsWriter(1, 1).Fillers();
  EXPECT_NE(one, two);
  EXPECT_EQ(std::set<std::string>(one.begin(), one.end()), std::set<std::string>(two.begin(), two.end()));
  EXPECT_EQ(one.size(), FillerSentences().size());
}

}  // namespace
}  // namespace qkvshare
