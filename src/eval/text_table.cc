#include "eval/text_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace qkvshare {
namespace {

// Characters, not bytes, of UTF-8.
size_t WidthOf(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

std::string Padded(const std::string& text, size_t width, bool left) {
  const std::string space(width - std::min(width, WidthOf(text)), ' ');
  return left ? text + space : space + text;
}

std::string MarkdownCell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string MarkdownRow(const std::vector<std::string>& cells) {
  std::string row = "|";
  for (const std::string& cell : cells) row += fmt::format(" {} |", MarkdownCell(cell));
  return row + "\n";
}

}  // namespace

std::string TerminalTable(const TextTable& table) {
  std::vector<size_t> widths;
  for (const std::string& head : table.heads) widths.push_back(WidthOf(head));
  for (const auto& row : table.rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], WidthOf(row[i]));
  }
  std::string text = table.title + "\n";
  const auto add = [&](const std::vector<std::string>& cells) {
    std::string line = " ";
    for (size_t i = 0; i < cells.size(); ++i) line += ' ' + Padded(cells[i], widths[i] + (i > 0 ? 1 : 0), i == 0);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  };
  add(table.heads);
  for (const auto& row : table.rows) add(row);
  return table.note.empty() ? text : text + "  " + table.note + "\n";
}

std::string MarkdownTable(const TextTable& table, int level) {
  std::string text = fmt::format("{} {}\n\n", std::string(static_cast<size_t>(level), '#'), table.title);
  text += MarkdownRow(table.heads);
  text += "|---|";
  for (size_t i = 1; i < table.heads.size(); ++i) text += "---:|";
  text += "\n";
  for (const auto& row : table.rows) text += MarkdownRow(row);
  return table.note.empty() ? text : text + "\n" + table.note + "\n";
}

}  // namespace qkvshare
