"""The style sheet of the page: one column on a phone, two on a desktop. Light or dark follows the system."""

from __future__ import annotations

STYLE = """\
:root{color-scheme:light dark;--page:#f6f6f3;--card:#fff;--ink:#17191c;--soft:#5a6068;--rule:#dfe1e0;--accent:#1f6fd1;
--c0:#e07b1a;--c1:#1f6fd1;--c2:#12866a;--c3:#8a4fc4;--c4:#b3323f;--same:#e4e5e3;--mark:#17191c;
--q0:#a9c8ea;--q1:#8db7e2;--q2:#71a6db;--q3:#4787c9;--q4:#2a67ab;--q5:#1a4a82;--q6:#0d2d57}
@media screen and (prefers-color-scheme:dark){
:root{--page:#121416;--card:#1b1e21;--ink:#eceeef;--soft:#a3abb3;--rule:#32373c;
--accent:#6db0ff;--c0:#f2a154;--c1:#5aa5f7;--c2:#3fc09b;--c3:#b98cf0;--c4:#f0727d;--same:#2a2e32;--mark:#fff;
--q0:#2d4f7a;--q1:#2b5c97;--q2:#2664a8;--q3:#3f86d0;--q4:#6fa9e6;--q5:#a5cbf3;--q6:#dcebfb}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5
system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:68rem;margin:0 auto;padding:1.25rem 1rem 3rem}
h1{font-size:1.05rem;font-weight:600;margin:0;color:var(--soft);overflow-wrap:anywhere}
h1 code{color:var(--ink)}
h2{font-size:1.3rem;margin:2.5rem 0 .25rem;overflow-wrap:anywhere}
h3{font-size:1rem;margin:0 0 .5rem;overflow-wrap:anywhere}
p{margin:.25rem 0 .75rem;overflow-wrap:anywhere}
.verdict{background:var(--card);border:1px solid var(--rule);border-left:5px solid var(--accent);border-radius:8px;
padding:.9rem 1rem;margin:.75rem 0}
.verdict p{font-size:1.15rem;margin:.4rem 0 0}
.verdict .asked{font-size:1rem;margin:0;color:var(--soft)}
.verdict .sure{font-size:.95rem;margin:.4rem 0 0;color:var(--soft)}
.chip{display:inline-block;background:var(--page);border:1px solid var(--rule);border-radius:99px;padding:.05rem .7rem;
font-size:.9rem;max-width:100%;overflow-wrap:anywhere}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem;align-items:start}
figure{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:1rem;margin:0;min-width:0}
figure svg{display:block;width:100%;max-width:34rem;height:auto;margin:0 auto}
figcaption{color:var(--soft);font-size:.92rem;margin-top:.6rem;overflow-wrap:anywhere}
.legend{display:flex;flex-wrap:wrap;gap:.15rem 1rem;font-size:.88rem;margin:0 0 .5rem;padding:0;list-style:none}
.legend i{display:inline-block;width:.8rem;height:.8rem;border-radius:3px;margin-right:.4rem;vertical-align:-.08rem}
.legend .mark{width:0;height:.95rem;border-radius:0;background:none}
.ramp i{margin:0;border-radius:0;width:1rem}
.switch{position:relative}
.switch input{position:absolute;opacity:0;width:1px;height:1px}
.switch label{display:inline-block;border:1px solid var(--rule);border-radius:99px;padding:.3rem .8rem;
margin:0 .35rem .5rem 0;font-size:.88rem;cursor:pointer;overflow-wrap:anywhere}
.switch input:checked+label{border-color:var(--accent);color:var(--accent);font-weight:600}
.switch input:focus-visible+label{outline:2px solid var(--accent);outline-offset:2px}
.shade{display:none}
.k0:checked~.shade.k0,.k1:checked~.shade.k1,.k2:checked~.shade.k2,.k3:checked~.shade.k3,.k4:checked~.shade.k4,
.k5:checked~.shade.k5,.k6:checked~.shade.k6,.k7:checked~.shade.k7{display:block}
svg text{font-size:12px;fill:var(--ink)}
svg .tick,svg .title{fill:var(--soft)}
svg .name{font-size:12.5px}
svg .value{font-weight:600}
.grid{stroke:var(--rule);stroke-width:1}
.axis{stroke:var(--soft);stroke-width:1}
.line{fill:none;stroke:var(--of);stroke-width:2;stroke-linejoin:round}
.chance{stroke-width:1.4;stroke-dasharray:4 3}
.mark.chance{border-left:2px dashed var(--soft)}
.band{fill:var(--of);opacity:.18}
.dots{stroke:var(--of);stroke-width:3.2;stroke-linecap:round;fill:none;opacity:.75}
.few{stroke-width:5.5;opacity:.9}
.bar,.cell{fill:var(--of)}
.swatch{background:var(--of)}
.floor{stroke:var(--mark);stroke-width:2;stroke-dasharray:3 2}
.ceiling{stroke:var(--mark);stroke-width:2.5}
.mark.floor{border-left:2px dashed var(--mark)}
.mark.ceiling{border-left:3px solid var(--mark)}
.c0{--of:var(--c0)}.c1{--of:var(--c1)}.c2{--of:var(--c2)}.c3{--of:var(--c3)}.c4{--of:var(--c4)}.same{--of:var(--same)}
.q0{--of:var(--q0)}.q1{--of:var(--q1)}.q2{--of:var(--q2)}.q3{--of:var(--q3)}.q4{--of:var(--q4)}.q5{--of:var(--q5)}
.q6{--of:var(--q6)}
details{margin:1rem 0 0}
summary{cursor:pointer;color:var(--accent)}
table{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums;margin-top:.5rem}
th,td{text-align:right;padding:.3rem .6rem;border-bottom:1px solid var(--rule);vertical-align:top}
th:first-child,td:first-child,td:last-child,th:last-child{text-align:left;overflow-wrap:anywhere}
thead th{color:var(--soft);font-weight:600}
td:last-child{color:var(--soft)}
th:first-child,td:first-child{min-width:7.5rem;overflow-wrap:break-word}
td[data-of]{white-space:nowrap}
footer{margin-top:3rem;color:var(--soft);font-size:.88rem}
@media screen and (max-width:40rem){
thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
tr{display:grid;grid-template-columns:repeat(3,1fr);border-bottom:1px solid var(--rule);padding:.4rem 0}
td{border:0;padding:.1rem 0;text-align:left;overflow-wrap:anywhere}
td:first-child,td:last-child{grid-column:1/-1}
td:first-child{font-weight:600}
td[data-of]::before{content:attr(data-of) " ";color:var(--soft)}
td:empty,td.none{display:none}
svg text,svg .name{font-size:15px}
svg .tick{font-size:13px}
figure{padding:.85rem}
}
@media print{svg text,svg .name{font-size:14.5px}svg .tick{font-size:13px}}
"""


# The style of both pages in print: light colours, and each heading on the page of its section.


PRINT = """\
@page{margin:14mm}
@media print{
:root{color-scheme:light}
body{background:#fff;font-size:11pt}
main{max-width:none;padding:0}
h1,h2,h3,summary,section>p,h2+p{break-after:avoid}
.plots{grid-template-columns:repeat(auto-fit,minmax(min(100%,18rem),1fr));break-before:avoid}
figure,.verdict,.gate,tr,dl,p{break-inside:avoid}
figure svg{max-height:11cm}
thead{display:table-header-group}
.scroll{overflow:visible}
details::details-content{content-visibility:visible}
.switch input:not(:checked)+label{display:none}
.swatch,.key{print-color-adjust:exact;-webkit-print-color-adjust:exact}
}
"""
