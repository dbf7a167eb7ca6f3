"""How the page looks: light and dark by what the reader prefers, narrow and wide, on paper. No fonts from elsewhere."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--page:#fff;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--fill:#f6f8fa;--new:#dafbe1;
--newline:#1a7f37;--stop:#fff1e5;--stopline:#bc4c00;--bad:#b3121d;--good:#116329;--link:#0550ae;--before:#6e7781;
--after:#0969da}
@media (prefers-color-scheme:dark){:root{--page:#0d1117;--ink:#e6edf3;--soft:#9ea7b3;--line:#3d444d;--fill:#161b22;
--new:#12261e;--newline:#3fb950;--stop:#2b1c10;--stopline:#f0883e;--bad:#ff8182;--good:#56d364;--link:#6cb6ff;
--before:#9198a1;--after:#58a6ff}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0 auto;max-width:76rem;padding:1rem;background:var(--page);color:var(--ink);
font:1rem/1.5 system-ui,sans-serif;overflow-wrap:break-word}
h1{font-size:1.6rem;line-height:1.25;margin:.5rem 0}
h2{font-size:1.25rem;margin:2.2rem 0 .6rem;padding-top:.6rem;border-top:1px solid var(--line)}
h3{font-size:1.05rem;margin:1.4rem 0 .4rem}h4{font-size:.95rem;margin:.4rem 0}
p,ul,pre,dl{margin:.5rem 0}a{color:var(--link)}
code,pre,svg text{font-family:ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}
code{font-size:.875em;overflow-wrap:anywhere}
pre{background:var(--fill);border:1px solid var(--line);border-radius:6px;padding:.6rem;white-space:pre-wrap;
font-size:.875rem;overflow-wrap:anywhere}
.soft{color:var(--soft)}.bad{color:var(--bad);font-weight:600}.good{color:var(--good);font-weight:600}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(9rem,1fr));gap:.6rem}
.tiles div{border:1px solid var(--line);border-radius:6px;padding:.5rem .7rem;background:var(--fill)}
.tiles dt{color:var(--soft);font-size:.875rem}.tiles dd{margin:0;font-size:1.25rem;font-weight:600}
.scroll{overflow-x:auto;max-width:100%}
.scroll:focus-visible{outline:2px solid var(--link)}
table{border-collapse:collapse;font-size:.9rem;margin:.4rem 0}
caption{text-align:left;color:var(--soft);padding:.2rem 0}
th,td{border:1px solid var(--line);padding:.3rem .5rem;text-align:left;vertical-align:top}
th{background:var(--fill)}
td.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.place{min-width:14rem}td.words{min-width:12rem}
.pair{display:flex;flex-wrap:wrap;gap:1rem;align-items:flex-start}
.pair figure{flex:0 1 auto;max-width:100%;min-width:0}
figure{margin:.4rem 0}figcaption{color:var(--soft);font-size:.9rem}
svg.graph{display:block}
svg .box rect{fill:var(--fill);stroke:var(--soft)}
svg .value rect{fill:var(--page);stroke:var(--line)}
svg .new rect{fill:var(--new);stroke:var(--newline);stroke-width:2}
svg .stop rect{fill:var(--stop);stroke:var(--stopline);stroke-width:2;stroke-dasharray:6 3}
svg text{font-size:12px;fill:var(--ink);text-anchor:middle;unicode-bidi:isolate}
svg text.head{font-weight:700}
svg .edge{fill:none;stroke:var(--soft)}svg .tip{fill:var(--soft)}
svg.chart{display:block;width:100%;max-width:27rem;height:auto}
svg.chart text{text-anchor:start}
svg .before{fill:var(--before)}svg .after{fill:var(--after)}svg .spread{stroke:var(--ink);stroke-width:1.5}
@media print{:root{--page:#fff;--ink:#000;--soft:#444;--line:#aaa;--fill:#f6f6f6;--new:#e6f6ea;--stop:#fff4ea}
body{max-width:none;padding:0;font-size:10pt}.scroll{overflow:visible}table{font-size:8pt}
th,td{padding:.1rem .25rem}td.place,td.words{min-width:0}a{color:inherit;text-decoration:none}
thead{display:table-header-group}tr,figure,.tiles div{break-inside:avoid}h2,h3,h4{break-after:avoid}
svg.graph{max-width:100%;height:auto;max-height:24cm}}
"""
