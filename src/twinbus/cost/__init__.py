"""What messaging costs: units, prices, estimates, reports and reconciliation, as values.

units             operations and what they are billed as
prices            price sheets; price_sheets/ those that come along
estimate          what an outage would cost
report            what was paid
reconciliation    what became of every message
html/             a report as one HTML file
"""
