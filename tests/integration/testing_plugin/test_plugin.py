"""The pytest plugin, used as its users use it: in a run of pytest of its own."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

DOCUMENT = Path(__file__).parents[3] / "docs" / "TESTING.md"
# The stock client leaves sockets to the garbage collector; that is its own affair.
OPTIONS = ("-p", "no:cacheprovider", "-W", "ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def plain_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without the settings of this project."""
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


def documented_example() -> str:
    found = re.search(
        r"<!-- example: test_orders\.py -->\n```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL
    )
    assert found is not None
    return found[1]


def test_the_documented_example_passes(pytester: pytest.Pytester) -> None:
    """M10: the stock client, sync and aio, against the fixture."""
    example = documented_example()
    pytester.makepyfile(test_orders=example)
    result = pytester.runpytest_subprocess(*OPTIONS)
    result.assert_outcomes(passed=example.count("\ndef test_"))


def test_workers_of_xdist_have_a_broker_each(pytester: pytest.Pytester) -> None:
    """M9: nothing is shared, so nothing collides."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(8))
        def test_clean(servicebus, number):
            assert servicebus.queue("orders").active_message_count == 0
            assert servicebus.port > 0
        """
    )
    result = pytester.runpytest_subprocess(*OPTIONS, "-n", "2")
    result.assert_outcomes(passed=8)


def test_a_pair_is_two_namespaces(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import socket
        import pytest

        def reaches(bus):
            with socket.create_connection(("127.0.0.1", bus.port), timeout=2):
                return True

        def test_pair(servicebus_pair):
            primary, secondary = servicebus_pair.primary, servicebus_pair.secondary
            assert primary.connection_string != secondary.connection_string
            with servicebus_pair.outage():
                with pytest.raises(OSError):
                    reaches(primary)
                assert reaches(secondary)
            assert reaches(primary)
        """
    )
    pytester.runpytest_subprocess(*OPTIONS).assert_outcomes(passed=1)


def test_a_mistake_is_told_in_one_sentence(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_wrong(servicebus):
            with servicebus.outage("earthquake"):
                pass
        """
    )
    result = pytester.runpytest_subprocess(*OPTIONS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*ConfigurationError: *'earthquake'. Use one of: *refused, black-hole,*crash-subsystem*"]
    )


def test_a_wrong_option_of_an_outage_is_told_with_those_there_are(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        def test_wrong(servicebus):
            with servicebus.outage("throttled", rate=10):
                pass
        """
    )
    result = pytester.runpytest_subprocess(*OPTIONS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ConfigurationError: *'throttle' *option 'rate'. *rate_per_s*"])


def seconds_of(pytester: pytest.Pytester, source: str) -> float:
    """What a run takes of a processor; other work on the machine does not count."""
    pytester.makepyfile(test_speed=source)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pytester.runpytest_subprocess(*OPTIONS).assert_outcomes(passed=20)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_run_takes_less_than_a_second_longer(pytester: pytest.Pytester) -> None:
    """Twenty tests with a namespace each, next to twenty without; the best of eight counts."""
    head = "import pytest\n@pytest.mark.parametrize('number', range(20))\n"
    # A neighbour on the same core makes every run slower, but not for long.
    for _attempt in range(8):
        without_s = seconds_of(pytester, head + "def test_it(number):\n    pass\n")
        with_s = seconds_of(
            pytester, head + "def test_it(servicebus, number):\n    servicebus.queue('orders')\n"
        )
        if with_s - without_s < 1.0:
            return
    raise AssertionError(f"{with_s - without_s:.2f} s more")
