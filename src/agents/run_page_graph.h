// A drawing of turns and of what they hand on, for a run's page.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace qkvshare {

struct GraphNode {
  size_t level = 0;           // column; higher than those of all that it takes from
  std::vector<size_t> takes;  // nodes before it
  std::string name;           // one line each; long ones are cut
  std::string detail = {};
  std::string title = {};   // shown by browsers where the pointer rests
  std::string handed = {};  // label of what leads on from it; may be empty
  std::string link = {};    // href
  bool worker = false;
  bool done = true;
};

// SVG from left to right, in the classes and colours of the page. Empty for no nodes.
std::string GraphSvg(const std::vector<GraphNode>& nodes);

}  // namespace qkvshare
