"""The look of a report's page: one column on a phone, two on a desk, by day and by night."""

STYLE = """
:root{--paper:#fbfbf9;--card:#fff;--ink:#1d2228;--quiet:#68707a;--rule:#e2e4e6;--grid:#eceeef;
--one:#2a6fb0;--two:#d07a1f;--three:#8c99a6;--bad:#c0392b;--pass:#1f7a4d;--fail:#b3261e;
--inconclusive:#8a6100;--invalid:#6b3fa0;--warm:#f1efe6}
@media(prefers-color-scheme:dark){:root{--paper:#15181c;--card:#1d2126;--ink:#e4e7ea;
--quiet:#98a2ad;
--rule:#30363d;--grid:#272c32;--one:#6cb0f0;--two:#f0a550;--three:#7b8794;--bad:#f07167;
--pass:#2f9e68;--fail:#d9534a;--inconclusive:#b98a1c;--invalid:#9468cf;--warm:#262a22}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif}
main{max-width:70rem;margin:0 auto;padding:1.25rem 1rem 4rem}
h1{font-size:1.3rem;margin:0;overflow-wrap:anywhere}
h2{font-size:1.05rem;margin:2rem 0 .5rem}h3{font-size:1rem;margin:0 0 .25rem;
overflow-wrap:anywhere}
p{margin:.25rem 0}.quiet{color:var(--quiet)}
.verdict{display:flex;gap:1.1rem;align-items:center;flex-wrap:wrap;color:#fff;border-radius:.6rem;
padding:1.1rem 1.3rem}
.verdict .word{font-size:1.9rem;font-weight:700;letter-spacing:.02em;margin:0}
.verdict.pass,.tag.pass{background:var(--pass)}.verdict.fail,.tag.fail{background:var(--fail)}
.verdict.inconclusive,.tag.inconclusive{background:var(--inconclusive)}
.verdict.invalid,.tag.invalid{background:var(--invalid)}
.tag{color:#fff;border-radius:.3rem;padding:.1rem .45rem;font-size:.8rem;vertical-align:.08em}
.gate,figure,.faults{background:var(--card);border:1px solid var(--rule);border-radius:.6rem;
padding:.9rem 1rem;margin:.7rem 0}
.faults h2{margin-top:0}.faults ul{margin:.3rem 0;padding-left:1.2rem}
.help{color:var(--quiet)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.7rem;
margin:1.5rem 0}
.figures div{background:var(--card);border:1px solid var(--rule);border-radius:.6rem;
padding:.7rem .9rem;
display:flex;flex-direction:column-reverse}
.figures dt{color:var(--quiet);font-size:.85rem}.figures dd{margin:0;font-size:1.35rem;
font-weight:600;
font-variant-numeric:tabular-nums}
.charts{display:grid;grid-template-columns:1fr;gap:.9rem}.charts figure{margin:0}
@media(min-width:60rem){.charts{grid-template-columns:1fr 1fr}}
figcaption{font-weight:600;margin-bottom:.35rem;display:flex;justify-content:space-between;
flex-wrap:wrap;
gap:.2rem 1rem}
.legend{font-weight:400;font-size:.85rem;color:var(--quiet)}
.key{margin-left:.9rem}.key::before{content:"";display:inline-block;width:.8em;height:.8em;
border-radius:.2em;margin-right:.35em;vertical-align:-.05em;background:currentColor}
.key.one::before{background:var(--one)}.key.two::before{background:var(--two)}
.key.three::before{background:var(--three)}.key.bad::before{background:var(--bad)}
svg{display:block;width:100%;height:auto}
svg text{font-size:12px;fill:var(--ink)}svg text.quiet{fill:var(--quiet)}
svg text.over{fill:var(--bad)}
@media(max-width:30rem){svg text{font-size:17px}}
.grid{stroke:var(--grid)}.axis{stroke:var(--three)}.limit{stroke:var(--bad);stroke-dasharray:6 4}
.warm{fill:var(--warm)}.line{fill:none;stroke-width:1.8;stroke-linejoin:round}
.line.one{stroke:var(--one)}.line.two{stroke:var(--two)}.line.three{stroke:var(--three)}
.line.bad{stroke:var(--bad)}.dot.one{fill:var(--one)}.dot.two{fill:var(--two)}
.dot.three{fill:var(--three)}.dot.bad{fill:var(--bad)}
.area{opacity:.16;stroke:none}.area.one{fill:var(--one)}.area.three{fill:var(--three)}
.allowed{fill:var(--pass);opacity:.18}.range{fill:var(--one);opacity:.75}.seen{fill:var(--ink)}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.92rem}
th,td{text-align:left;padding:.3rem .9rem .3rem 0;border-bottom:1px solid var(--rule);
vertical-align:top;overflow-wrap:anywhere}
tbody th{font-weight:500;color:var(--quiet);min-width:8rem}
pre{background:var(--card);border:1px solid var(--rule);border-radius:.4rem;padding:.6rem .8rem;
overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}
""".replace("\n", "")
