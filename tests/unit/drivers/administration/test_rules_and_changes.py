"""Rules of subscriptions and updates, as XML and back."""

from __future__ import annotations

from xml.etree.ElementTree import fromstring

import pytest

from twinbus.drivers.administration.entity_xml import (
    parse_access_rules,
    parse_page,
    set_key,
    set_status,
    update_xml,
)
from twinbus.drivers.administration.rule_xml import (
    CorrelationRuleFilter,
    Filter,
    NamedRuleFilter,
    RuleProperties,
    SqlRuleFilter,
    parse_rule,
    rule_xml,
)
from twinbus.errors import ConfigurationError

TOLD = b"""<entry xmlns="http://www.w3.org/2005/Atom"><title>orders</title>
<content type="application/xml">
<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
  xmlns:i="http://www.w3.org/2001/XMLSchema-instance">
<LockDuration>PT1M</LockDuration><SizeInBytes>7</SizeInBytes><MessageCount>3</MessageCount>
<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule">
<Rights><AccessRights>Send</AccessRights><AccessRights>Listen</AccessRights></Rights>
<KeyName>app</KeyName><PrimaryKey>one</PrimaryKey><SecondaryKey>two</SecondaryKey>
</AuthorizationRule></AuthorizationRules>
<Status>Active</Status><Novelty>kept</Novelty></QueueDescription></content></entry>"""


@pytest.mark.parametrize(
    "wanted",
    [
        SqlRuleFilter("a < 'b' & c"),
        NamedRuleFilter("TrueFilter"),
        NamedRuleFilter("FalseFilter"),
        CorrelationRuleFilter(label="<x>", session_id="s"),
        CorrelationRuleFilter(properties={"t": "x", "b": False, "n": -3, "big": 2**40, "f": 0.5}),
    ],
)
@pytest.mark.parametrize("action", [None, "SET a = '<'"])
def test_a_rule_is_read_as_it_was_written(wanted: Filter, action: str | None) -> None:
    """M4: with the types of what it compares."""
    rule = RuleProperties(name="mine", filter=wanted, action=action)
    (entry,) = parse_page(rule_xml(rule)).entries
    assert parse_rule(entry) == rule


def test_what_xml_cannot_spell_is_refused() -> None:
    """M4: before it is sent."""
    with pytest.raises(ConfigurationError):
        rule_xml(RuleProperties(name="x", filter=SqlRuleFilter("a = '\x00'")))


def test_an_update_sends_back_what_it_does_not_understand() -> None:
    """M5: an update replaces everything, so everything goes back, but for what is counted."""
    (entry,) = parse_page(TOLD).entries
    set_status(entry.described, "SendDisabled")
    assert set_key(entry.described, "APP", "secondary", "new")
    assert not set_key(entry.described, "nobody", "secondary", "new")
    (sent,) = parse_page(update_xml(entry.described)).entries
    names = [str(each.tag).rpartition("}")[2] for each in sent.described]
    assert names == ["LockDuration", "AuthorizationRules", "Status", "Novelty"]
    (rule,) = parse_access_rules(sent.described)
    assert (rule.name, rule.rights) == ("app", ("Send", "Listen"))
    assert (rule.primary_key, rule.secondary_key) == ("one", "new")
    assert "one" not in repr(rule) and "new" not in repr(rule)
    kind = "{http://www.w3.org/2001/XMLSchema-instance}type"
    assert kind in {
        name for each in fromstring(update_xml(sent.described)).iter() for name in each.attrib
    }
