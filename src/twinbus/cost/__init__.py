"""What messaging costs: units, prices, estimates, reports and reconciliation, as values.

units             operations and their billable units
prices            price sheets; price_sheets/ those that twinbus includes
estimate          what a pair costs, and what an outage would cost
report            what was charged
reconciliation    the status of every message that was sent
html/             a report as one HTML file
"""
