"""A finished report as one self-contained HTML file.

page              the page
report_charts     its charts; svg_charts bars, axes and ticks as SVG
markup            what keeps hostile names harmless
formatting        numbers, money and times for people
style             light, dark, phone, paper
"""
