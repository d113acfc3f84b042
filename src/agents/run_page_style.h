// How a run's page looks. Colours of widths go from pale to strong in lightness too, and those of stages are of the
// palette of Okabe and Ito, so that both can be told apart without seeing all hues.
#pragma once

#include <string_view>

namespace qkvshare {

inline constexpr std::string_view kRunPageStyle = R"(
:root { color-scheme: light dark; --page: #fff; --panel: #f5f6f8; --text: #1c2126; --muted: #5a6570; --line: #d4dae0;
  --edge: #8c97a3; --link: #0b5cad; --rule: #aab3bd;
  --w0: #fff3bf; --w1: #d5e9ab; --w2: #a3d6b8; --w3: #58b5bf; --w4: #2473a8; --w5: #22307f; --low: #1c2126; --high: #fff;
  --open: #009e73; --attach: #5fd0b1; --context: #aab3bd; --prefill: #e69f00; --first: #0072b2; --generate: #56b4e9;
  --probe: #7a3e63; --plan: #a85a8c; --anchors: #bb6b99; --quantize: #cc79a7; --write: #e6b8d2; --other: #6b7680 }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --panel: #1d2125; --text: #e3e7ea; --muted: #9aa5b0;
  --line: #343b42; --edge: #717c87; --link: #82bbf2; --rule: #5c6670;
  --w0: #2b2e4a; --w1: #2a4668; --w2: #27607c; --w3: #3a9a99; --w4: #93d0a0; --w5: #f7efb2; --low: #eef2f5; --high: #14171a;
  --context: #6b7680; --first: #2a8fd0; --probe: #9a5580; --other: #98a3ae } }
* { box-sizing: border-box }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100% }
body { margin: 0 auto; max-width: 76rem; padding: 2.5rem 1.5rem 5rem; background: var(--page); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere }
h2 { font-size: 1.2rem; margin: 3rem 0 .8rem; padding-top: 1rem; border-top: 1px solid var(--line) }
h3 { font-size: 1rem; margin: 0 }
h4 { font-size: .8rem; font-weight: 600; color: var(--muted); margin: .9rem 0 .25rem }
p { margin: .4rem 0; max-width: 72ch }
a { color: var(--link); text-decoration: none }
a:hover { text-decoration: underline }
.meta, .note { color: var(--muted); font-size: .875rem }
.meta { overflow-wrap: anywhere }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: .9rem 0 0; font-size: .9rem }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(11.5rem, 1fr)); gap: 1.2rem; margin: 1.8rem 0 }
.facts dt { color: var(--muted); font-size: .875rem }
.facts dd { margin: 0; font-size: 1.5rem; font-weight: 600; line-height: 1.3; font-variant-numeric: tabular-nums }
.facts dd + dd { font-size: .875rem; font-weight: 400; color: var(--muted) }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; min-width: 100% }
th, td { padding: .35rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line) }
th { font-weight: 600; color: var(--muted); vertical-align: bottom; font-size: .8rem; line-height: 1.3 }
th:first-child, td:first-child { text-align: left; padding-left: 0; position: sticky; left: 0; background: var(--page) }
th.text, td.text { text-align: left }
tfoot td { font-weight: 600; border-bottom: 0 }
.graph { display: block; width: 100%; height: auto; font-size: 11.5px }
.graph text { fill: var(--muted); font-variant-numeric: tabular-nums }
.graph .name { fill: var(--text); font-size: 13px; font-weight: 600 }
.graph .label { fill: var(--text); font-size: 11px; text-anchor: middle; paint-order: stroke; stroke: var(--page);
  stroke-width: 4px; stroke-linejoin: round }
.graph rect { fill: var(--panel); stroke: var(--edge); stroke-width: 1 }
.graph .worker rect { stroke: var(--link); stroke-width: 2; stroke-dasharray: 6 3 }
.graph .undone { opacity: .55 }
.graph .edge { fill: none; stroke: var(--edge); stroke-width: 1.25 }
.graph .tip { fill: var(--edge) }
.graph a:hover rect { stroke: var(--link) }
.graph a:hover { text-decoration: none }
.bars { display: grid; grid-template-columns: minmax(4rem, max-content) 1fr max-content; gap: .3rem .8rem;
  align-items: center; font-size: .875rem; font-variant-numeric: tabular-nums }
.bars > a { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; max-width: 14rem }
.bars > span { text-align: right; color: var(--muted) }
.bar { display: flex; height: 1.15rem; background: repeating-linear-gradient(to right, var(--line) 0 1px, transparent 1px
  var(--tick)) }
.bar b { flex: none; border-right: 1px solid var(--page) }
.axis { position: relative; height: 1.4rem; color: var(--muted); font-size: .8rem }
.axis i { position: absolute; font-style: normal; white-space: nowrap }
.key { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; font-size: .875rem; margin: 0 0 1rem; max-width: none }
.key b { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; vertical-align: -.08rem }
.st-open { background: var(--open) } .st-attach { background: var(--attach) } .st-context { background: var(--context) }
.st-prefill { background: var(--prefill) } .st-first_token { background: var(--first) }
.st-generate { background: var(--generate) } .st-probe { background: var(--probe) } .st-plan { background: var(--plan) }
.st-anchors { background: var(--anchors) } .st-quantize { background: var(--quantize) }
.st-write { background: var(--write) } .st-other { background: var(--other) }
article { margin: 0 0 2.2rem }
article .meta { margin: .1rem 0 .3rem; max-width: none }
.said { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; max-width: 76ch; padding: .1rem 0 .1rem .9rem;
  border-left: 3px solid var(--line) }
.answer { border-left-color: var(--link) }
details > summary { cursor: pointer; color: var(--link); font-size: .9rem }
.map { border-top: 1px solid var(--line); padding: .6rem 0 }
.map > summary { color: var(--text) }
.map > summary b { margin-right: .4rem }
.legend { font-size: .8rem; color: var(--muted); margin-left: .6rem; font-variant-numeric: tabular-nums }
p > .legend { margin: 0; font-size: .875rem }
.legend > span { white-space: nowrap; margin-right: .5rem }
.chip { padding: .1rem .4rem; border-radius: 3px; font-size: .75rem }
.segment { display: grid; grid-template-columns: 6rem 1fr; gap: 0 .8rem }
.segment h4 { margin: .35rem 0; grid-column: 1; overflow-wrap: anywhere }
.segment > div, .segment > p { grid-column: 2 }
.tokens { white-space: pre-wrap; overflow-wrap: anywhere; font: .8125rem/1.75 ui-monospace, "SF Mono", Menlo, Consolas,
  "DejaVu Sans Mono", monospace; margin: .2rem 0; tab-size: 4;
  overflow-x: clip }
.tokens i, .tokens u { font-style: normal; padding: .12rem 0; box-shadow: inset -1px 0 var(--page) }
.tokens u { text-decoration: underline; text-decoration-thickness: 2px; text-underline-offset: 3px }
.tokens s { text-decoration: none; opacity: .55; font-size: .9em }
.w0 { background: var(--w0); color: var(--low) } .w1 { background: var(--w1); color: var(--low) }
.w2 { background: var(--w2); color: var(--low) } .w3 { background: var(--w3); color: #10201f }
.w4 { background: var(--w4); color: var(--high) } .w5 { background: var(--w5); color: var(--high) }
footer { margin-top: 4rem; color: var(--muted); font-size: .8rem }
@media (max-width: 40rem) { body { padding: 1.5rem 1rem 3rem; font-size: 15px }
  .segment { display: block } .segment h4 { margin: .6rem 0 .1rem } .bars > a { max-width: 6.5rem }
  .facts { grid-template-columns: 1fr 1fr } .facts dd { font-size: 1.25rem } .map .legend { display: block; margin: .3rem 0 } }
@media print { .wide { overflow: visible } body { max-width: none } }
)";

}  // namespace qkvshare
