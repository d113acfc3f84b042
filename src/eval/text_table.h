// A table of texts, as a terminal and as Markdown show it.
#pragma once

#include <string>
#include <vector>

namespace qkvshare {

struct TextTable {
  std::string title;
  std::vector<std::string> heads;
  std::vector<std::vector<std::string>> rows;  // each as long as heads
  std::string note;                            // below it; may be empty
};

// Columns as wide as they need, the first one to the left and the others to the right.
std::string TerminalTable(const TextTable& table);
// With the title as a heading of this level.
std::string MarkdownTable(const TextTable& table, int level = 3);

}  // namespace qkvshare
