"""How the page looks: on screens, phones and paper, light and dark.

Colours of runs are those of Okabe and Ito, which colour-blind readers tell
apart, made darker for light pages and lighter for dark ones so that each
stands out from the page by 3 to 1 and more. A letter and the shape of a mark
say the same without any colour.
"""

from __future__ import annotations

# Name -> (on light pages and on paper, on dark pages).
COLOURS = {
    'page': ('#ffffff', '#16181d'),
    'panel': ('#f5f6f8', '#1f232a'),
    'ink': ('#1b1f24', '#e8eaed'),
    'soft': ('#57606a', '#a9b1bb'),
    'line': ('#c9d0d8', '#414852'),
    'link': ('#0b5cad', '#79b8ff'),
    'run0': ('#0072b2', '#56b4e9'),
    'run1': ('#c24e00', '#ff9a52'),
    'run2': ('#007a5a', '#3ecfa3'),
    'run3': ('#a3457f', '#f0a3cf'),
    'run4': ('#7a6000', '#e9cf4a'),
    'run5': ('#3f4a9e', '#aab4ff'),
}
NUM_RUN_COLOURS = sum(name.startswith('run') for name in COLOURS)


def css() -> str:
  """The page's style sheet."""
  light, dark = (
      ''.join(f'--{name}:{both[place]};' for name, both in COLOURS.items())
      for place in (0, 1))
  return (f':root{{color-scheme:light dark;{light}}}'
          f'@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}'
          + _RULES)


_RULES = '''
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0;background:var(--page);color:var(--ink);
 font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",
 "DejaVu Sans",sans-serif;overflow-wrap:anywhere}
header,main,footer{max-width:76rem;margin:0 auto;padding:0 .75rem}
h1{font-size:1.6rem;line-height:1.2;margin:1.2rem 0 .4rem}
h2{font-size:1.3rem;margin:2.2rem 0 .5rem;padding-top:.6rem;
 border-top:1px solid var(--line)}
h3{font-size:1.05rem;margin:1.4rem 0 .3rem}
p,li{max-width:46rem}
a{color:var(--link)}
a:focus-visible,summary:focus-visible,[tabindex]:focus-visible{
 outline:3px solid var(--link);outline-offset:2px}
.skip{position:absolute;left:-999rem}
.skip:focus{position:static}
nav ul{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.2rem 1rem}
nav a{display:inline-block;padding:.25rem 0}
.note{background:var(--panel);border-left:4px solid var(--soft);
 padding:.1rem .75rem;margin:1rem 0}
.figures{display:grid;gap:1rem 1.5rem;align-items:start;
 grid-template-columns:repeat(auto-fill,minmax(min(100%,21rem),1fr))}
figure{margin:.5rem 0;min-width:0;max-width:34rem}
figure.wide{width:min-content;min-width:min(100%,20rem);max-width:100%}
.beside{display:flex;flex-wrap:wrap;gap:.5rem 2rem;align-items:flex-start}
.beside>*{max-width:100%}
.beside>figure:not(.wide){flex:1 1 20rem;max-width:26rem}
figcaption{font-size:.9rem;color:var(--soft);margin:.2rem 0}
svg{display:block;max-width:100%;height:auto}
svg.chart{width:100%}
svg.chart *{stroke-linejoin:round;stroke-linecap:butt}
svg text{font-family:"DejaVu Sans","Liberation Sans",Verdana,system-ui,
 sans-serif}
.graph svg{max-width:none}
.scroll,.graph{overflow-x:auto;max-width:100%}
.graph{border:1px solid var(--line);padding:.25rem}
td.n{white-space:nowrap}
table{border-collapse:collapse;font-size:.9rem;overflow-wrap:normal}
caption{text-align:left;color:var(--soft);padding:.25rem 0}
th,td{padding:.25rem .6rem .25rem 0;text-align:left;vertical-align:top;
 border-bottom:1px solid var(--line)}
th{font-weight:600}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
summary{cursor:pointer;padding:.3rem 0;color:var(--link)}
article{border-top:1px solid var(--line);margin-top:1.5rem}
footer{color:var(--soft);font-size:.9rem;margin:3rem auto 1rem}
@media (prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
@media print{
 body{font-size:10pt}
 nav,.skip{display:none}
 header,main,footer{max-width:none;padding:0}
 .scroll,.graph{overflow:visible}
 figure.wide{width:auto}
 .graph svg{max-width:100%;max-height:22cm}
 table{font-size:8pt}
 figure,tr,h2,h3{break-inside:avoid}
 h2,h3{break-after:avoid}
 .figures{display:block;columns:2}
 figure details{display:none}
 summary{color:var(--ink);list-style:none}
 details::details-content{content-visibility:visible;block-size:auto}
}
'''
