// What a report's page has in its style besides that of a run's page. Series' colours are of the palette of Okabe and
// Ito, and their marks have shapes, so that both tell them apart.
#pragma once

#include <string_view>

namespace qkvshare {

inline constexpr std::string_view kReportStyle = R"(
:root { --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; --c4: #56b4e9; --c5: #a67c00; --c6: #7a3e63;
  --c7: #6b7680; --c8: #22307f; --c9: #4c7a00 }
@media (prefers-color-scheme: dark) { :root { --c0: #4aa8e0; --c1: #f08a4b; --c2: #3fc79f; --c3: #e3a3c6; --c4: #8fd0f5;
  --c5: #e0b93f; --c6: #c58fb0; --c7: #a9b3bd; --c8: #93a2f0; --c9: #a6d15a } }
.s0 { --c: var(--c0) } .s1 { --c: var(--c1) } .s2 { --c: var(--c2) } .s3 { --c: var(--c3) } .s4 { --c: var(--c4) }
.s5 { --c: var(--c5) } .s6 { --c: var(--c6) } .s7 { --c: var(--c7) } .s8 { --c: var(--c8) } .s9 { --c: var(--c9) }
.plot { display: block; width: 100%; min-width: 860px; height: auto; font-size: 12px }
.plot.sample { display: inline-block; width: 14px; min-width: 0; height: 14px; margin-right: .35rem; vertical-align: -.12rem }
.plot text { fill: var(--muted); font-variant-numeric: tabular-nums }
.plot .end { text-anchor: end } .plot .mid { text-anchor: middle }
.plot .grid { stroke: var(--line); stroke-width: 1 }
.plot .front { fill: none; stroke: var(--edge); stroke-width: 1.5; stroke-dasharray: 6 4 }
.plot .level { stroke: var(--muted); stroke-width: 1; stroke-dasharray: 2 3 }
.plot .lead { stroke: var(--edge); stroke-width: .75 }
.plot .mark { fill: var(--c); stroke: var(--c); stroke-width: 1.5 }
.plot.hollow .mark, .plot .hollow .mark { fill: var(--page) }
.plot .error { stroke: var(--c); stroke-width: 1.5; opacity: .65 }
.plot .join { fill: none; stroke: var(--c); stroke-width: 1.75; opacity: .8 }
.plot .name { fill: var(--text); font-size: 11.5px; paint-order: stroke; stroke: var(--page); stroke-width: 3px;
  stroke-linejoin: round }
h3 { margin: 1.6rem 0 .4rem }
.bar b { background: var(--c) }
.key b[class] { background: var(--c) }
.bars > em { font-style: normal; white-space: nowrap }
details.more { margin: .8rem 0 }
pre { font: .8rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; background: var(--panel); padding: .6rem .8rem }
)";

}  // namespace qkvshare
