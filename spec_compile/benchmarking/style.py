"""The style sheet of the HTML report, for light and dark screens."""

from __future__ import annotations

STYLE = """
:root{--ink:#1c2430;--soft:#5b6675;--paper:#fff;--ground:#f4f6f9;--edge:#dfe4ea;--alone:#a9b2bd;
--c0:#2563b8;--c1:#d9822b;--c2:#2a9d6f;--c3:#8b5cc7;--c4:#c2416b;--c5:#5f7f1f;
--s0:#d8e3f2;--s1:#a8c4e6;--s2:#74a1d6;--s3:#437dc2;--s4:#1f5299}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa5b3;--paper:#1b212a;
--ground:#12161c;--edge:#323b47;--alone:#667180;--c0:#6aa3f0;--c1:#f0a95c;--c2:#5cc79a;
--c3:#b494e8;--c4:#e87a9c;--c5:#a3c25a;--s0:#263448;--s1:#33527d;--s2:#4577b5;--s3:#6a9ddb;
--s4:#a9cbf5}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:980px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px}h2{font-size:18px;margin:0 0 2px}
h3{font-size:14px;margin:14px 0 2px}p{color:var(--soft);margin:0 0 10px;max-width:75ch}
section{background:var(--paper);border:1px solid var(--edge);border-radius:10px;
padding:18px 20px;margin-top:18px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(180px,1fr));gap:14px;
margin-top:18px}
.card{background:var(--paper);border:1px solid var(--edge);border-radius:10px;padding:14px 16px}
.card b{display:block;font-size:26px;line-height:1.2}.card span{color:var(--soft);font-size:13px}
svg{width:100%;height:auto;display:block}text{fill:var(--ink);font-size:12.5px}
text.axis,text.note{fill:var(--soft)}.rule{stroke:var(--edge);fill:none}
rect.alone,i.alone{fill:var(--alone);background:var(--alone)}
.c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}
.c3{--c:var(--c3)}.c4{--c:var(--c4)}.c5{--c:var(--c5)}
.s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}.s4{--c:var(--s4)}
rect{fill:var(--c)}i{background:var(--c)}
.line polyline{fill:none;stroke:var(--c);stroke-width:2.2}
.line circle{fill:var(--c)}
.dashed polyline{stroke-dasharray:6 5}
.dashed circle{fill:var(--paper);stroke:var(--c);stroke-width:1.8}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin-top:8px;font-size:13px;
color:var(--soft)}
.legend i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;width:100%}
th,td{padding:5px 8px;border-bottom:1px solid var(--edge);text-align:right;white-space:nowrap}
th{color:var(--soft);font-weight:600}
th:first-child,td:first-child,th:nth-child(2),td:nth-child(2){text-align:left}
.facts th,.facts td{white-space:normal;text-align:left;vertical-align:top}
@media print{body{background:#fff}section{break-inside:avoid}}
"""
