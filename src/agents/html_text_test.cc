#include "agents/html_text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace qkvshare {
namespace {

TEST(HtmlTextTest, NothingOfATextIsMarkup) {
  EXPECT_EQ(HtmlText("<script>alert(\"1\" & '2')</script>"),
            "&lt;script&gt;alert(&quot;1&quot; &amp; &#39;2&#39;)&lt;/script&gt;");
  EXPECT_EQ(HtmlText("&amp;"), "&amp;amp;");
  EXPECT_EQ(HtmlText("a\tb\n é 漢 😀"), "a\tb\n é 漢 😀");
}

TEST(HtmlTextTest, ControlCharactersBecomePictures) {
  EXPECT_EQ(HtmlText(std::string("\0\x01\x1B[0m\x7F", 7)), "\u2400\u2401\u241B[0m\u2421");
  EXPECT_EQ(HtmlText("\u0080\u009F"), "\uFFFD\uFFFD");
  EXPECT_EQ(HtmlText("line\r\nline\rline"), "line\nline\u240Dline");  // browsers make line ends of all three
}

TEST(HtmlTextTest, WhatIsNoUtf8IsReplacedByteByByte) {
  EXPECT_EQ(HtmlText("caf\xC3"), "caf\uFFFD");
  EXPECT_EQ(HtmlText("\xF0\x9F<"), "\uFFFD\uFFFD&lt;");       // nothing after a broken character is swallowed
  EXPECT_EQ(HtmlText("\xC0\xBC"), "\uFFFD\uFFFD");            // "<", overlong
  EXPECT_EQ(HtmlText("\xE0\x80\xBC"), "\uFFFD\uFFFD\uFFFD");  // as above
  EXPECT_EQ(HtmlText("\xF0\x80\x80\xBC"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(HtmlText("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");            // half of a surrogate pair
  EXPECT_EQ(HtmlText("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // past U+10FFFF
  EXPECT_EQ(HtmlText("\xFF\xFE"), "\uFFFD\uFFFD");
  EXPECT_EQ(HtmlText("\u07FF\u0800\uFFFF\U00010000\U0010FFFF"), "\u07FF\u0800\uFFFF\U00010000\U0010FFFF");
}

TEST(HtmlTextTest, AllOfATokenIsSeen) {
  EXPECT_EQ(HtmlToken(" <b>"), " &lt;b&gt;");
  EXPECT_EQ(HtmlToken(""), "<s>\u2205</s>");
  EXPECT_EQ(HtmlToken("\n\n\t"), "<s>\u21B5</s>\n<s>\u21B5</s>\n<s>\u21E5</s>\t");
  EXPECT_EQ(HtmlToken("\r"), "<s>\u240D</s>");
  EXPECT_EQ(HtmlToken("\xF0\x9F"), "<s>F0</s><s>9F</s>");
  EXPECT_EQ(HtmlToken("\u200B\u202E"), "<s>U+200B</s><s>U+202E</s>");
}

TEST(HtmlTextTest, CutsBetweenCharacters) {
  EXPECT_EQ(CutBefore("abc", 5), 3U);
  EXPECT_EQ(CutBefore("abcdef", 3), 3U);
  EXPECT_EQ(CutBefore("a\u6F22b", 1), 1U);
  EXPECT_EQ(CutBefore("a\u6F22b", 2), 1U);
  EXPECT_EQ(CutBefore("a\u6F22b", 3), 1U);
  EXPECT_EQ(CutBefore("a\u6F22b", 4), 4U);
  EXPECT_EQ(CutBefore(std::string(100, '\x80'), 50), 46U);  // no text at all: cut all the same
}

TEST(HtmlTextTest, NumbersForPeople) {
  EXPECT_EQ(CountText(0), "0");
  EXPECT_EQ(CountText(999), "999");
  EXPECT_EQ(CountText(1000), "1,000");
  EXPECT_EQ(CountText(UINT64_MAX), "18,446,744,073,709,551,615");
}

}  // namespace
}  // namespace qkvshare
