"""The SDK's own tests against our broker: ``make conformance``.

__main__.py    the run: fetch the tests, start a broker, run pytest, tell the counts
sdist.py       the source distribution of the installed azure-servicebus, fetched and checked
plugin.py      the pytest plugin: puts the stand-ins in place and counts
preparers.py   stands in for the tests' own servicebus_preparer: entities on our broker
stand_ins.py   stands in for the other modules that only Microsoft's repository has
service.py     the running broker, as the tests' processes see it
left_out.toml  the tests that are not run, each with its reason

Rule 1: the test files are run as they were published; nothing in them is edited.
Rule 2: what is left out stands in one table, by name and with a reason. A name there that no
        test has, and a test that is skipped without standing there, fail the run.
"""
