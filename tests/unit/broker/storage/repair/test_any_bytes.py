"""M15: the doctor examines anything; what it cannot understand is a finding, never an error."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from twinbus.broker.data_repair import examine_data
from twinbus.broker.storage.repair.page_file import MAGIC, PageFile, TreeReader, record_values
from verification.crash_consistency.rot import image
from verification.crash_consistency.scratch import STORE_NAME, lay_out

FILES = image(3).files

# To shrink a store of 256 KB would take minutes; the files themselves say enough.
QUICK = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)

junk = st.binary(max_size=6_000)
with_magic = junk.map(lambda rest: MAGIC + rest)
pieces = st.lists(
    st.tuples(st.integers(0, 1 << 18), st.binary(min_size=1, max_size=300)), min_size=1, max_size=12
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, bytes]:
    """A real store with pieces of its files overwritten, cut off or exchanged."""
    files = dict(FILES)
    for name in draw(st.sets(st.sampled_from(sorted(files)), min_size=1)):
        content = bytearray(files[name])
        for at, data in draw(pieces):
            start = at % len(content)
            content[start : start + len(data)] = data
        if draw(st.booleans()):
            del content[draw(st.integers(0, len(content))) :]
        files[name] = bytes(content)
    return files


def check(files: dict[str, bytes], keys: bytes | None = None) -> None:
    with TemporaryDirectory() as root:
        namespace = Path(root) / "data" / "namespace-x"
        namespace.mkdir(parents=True)
        lay_out(namespace, files)
        if keys is not None:
            (Path(root) / "data" / "keys.json").write_bytes(keys)
        report = examine_data(Path(root) / "data", Path(root) / "new")
        assert all(finding.sentence for finding in report.all_findings())
        if report.repaired is not None:
            again = examine_data(report.repaired)
            assert again.is_healthy, again.all_findings()
            assert again.totals.found == report.totals.found


@given(
    files=st.dictionaries(
        st.sampled_from([STORE_NAME, f"{STORE_NAME}-wal", f"{STORE_NAME}.mark"]),
        st.one_of(junk, with_magic),
        min_size=1,
    ),
    keys=st.one_of(st.none(), junk),
)
@QUICK
def test_files_of_junk(files: dict[str, bytes], keys: bytes | None) -> None:
    """M15: no exception but our own, whatever the files hold."""
    check(files, keys)


@given(files=damaged())
@QUICK
def test_stores_with_pieces_overwritten(files: dict[str, bytes]) -> None:
    """M15: however much is lost, what is written is a store that opens."""
    check(files)


def test_a_free_place_of_no_bytes_is_passed(tmp_path: Path) -> None:
    """M15: a search in a damaged page comes to an end."""
    path = tmp_path / STORE_NAME
    path.write_bytes(FILES[STORE_NAME])
    with PageFile(path) as pages:
        page = bytearray(pages.page_bytes)
        # No rows, and their content begins right behind the head.
        page[:8] = b"\x0d\x00\x00\x00\x00\x00\x08\x00"
        assert TreeReader(pages).search_page(bytes(page), lambda _row: True) == []


@given(data=st.binary(max_size=200))
def test_any_bytes_as_a_row(data: bytes) -> None:
    """M15: a row is read or it is not."""
    assert record_values(data) is None or isinstance(record_values(data), list)
