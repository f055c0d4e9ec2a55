"""What a refusal may say: a sentence or two for people, and nothing that was to stay secret."""

from __future__ import annotations

# A sentence with its facts and a hint; more would be a page, or the peer's own bytes.
ANSWER_LENGTH_MAX = 400
TELLTALES = ("Traceback", 'File "', "Exception", "0x7f", "object at", "sig=", "SharedAccessKey=")


def assert_well_put(text: str | None, *secrets: str) -> None:
    """One line of whole sentences that say what to do, without a secret or our insides."""
    assert text, "a refusal says why"
    assert len(text) <= ANSWER_LENGTH_MAX
    assert text.isprintable(), f"it would break a log line: {text!a}"
    assert (text[0].isalnum() or text[0] == "'") and text.endswith("."), f"no sentence: {text!r}"
    says_what_is_right = any(word in text for word in (" must ", " may ", " at most "))
    assert says_what_is_right or ". " in text, f"no hint: {text!r}"
    for word in TELLTALES:
        assert word not in text
    for secret in secrets:
        assert secret not in text
