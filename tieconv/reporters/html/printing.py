"""The style of both pages in print: light colours, and each heading on the page of its section."""

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
