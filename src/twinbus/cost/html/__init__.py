"""A cost report as one self-contained HTML file.

page              the page
report_charts     its charts; svg_charts bars, axes and ticks as SVG
markup            escaping, elements and tables
formatting        numbers, money and times for people
style             the style sheet: light, dark, phone, paper
"""
