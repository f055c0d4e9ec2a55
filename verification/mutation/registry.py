"""Every planted bug, with the harness that must catch it and the words in which it says so."""

from __future__ import annotations

from typing import Final

import pytest

from tests.support.queue_simulation import mutants
from tests.unit.broker.model import test_session_queue as sessions
from tests.unit.broker.model import test_topic as topics
from verification.mutation.bug import Bug, Harness, Layer
from verification.mutation.bugs import (
    broker,
    catalogue,
    connector,
    costs,
    fairness,
    rights,
    store,
    syphon,
)
from verification.mutation.bugs.core import REPLACED, Replaced
from verification.mutation.harnesses import simulated
from verification.mutation.harnesses.administrative import Administrative
from verification.mutation.harnesses.campaigns import ShortCampaign
from verification.mutation.harnesses.connected import OnSpark
from verification.mutation.harnesses.costly import Costly
from verification.mutation.harnesses.crashes import CrashStates
from verification.mutation.harnesses.damages import Damages
from verification.mutation.harnesses.homeward import Homeward
from verification.mutation.harnesses.kills import Kills
from verification.mutation.harnesses.models import Model
from verification.mutation.harnesses.neighbours import Neighbours
from verification.mutation.harnesses.rights import Rights
from verification.mutation.harnesses.rotten import FlippedBits
from verification.mutation.harnesses.simulated import Simulated
from verification.mutation.harnesses.stories import Stories
from verification.mutation.planting import Plant

SIMULATION: Final = Simulated()
CATALOGUE: Final = Administrative()
COSTLY: Final = Costly()
CAMPAIGN: Final = ShortCampaign()
HOMEWARD: Final = Homeward()
SPARK: Final = OnSpark()
STORIES: Final = Stories()
STORIES_ON_DISK: Final = Stories("stories on disk", rounds_max=300, is_on_disk=True)
QUEUE_MODEL, SESSION_MODEL, TOPIC_MODEL = Model("queue"), Model("sessions"), Model("topic")
SEND_KILLS, KILLS = Kills("sends"), Kills("messages")
SESSION_KILLS, REPEAT_KILLS = Kills("sessions"), Kills("repeats")
CRASHES: Final = CrashStates()
DAMAGES: Final = Damages()
ROTTEN: Final = FlippedBits()
RIGHTS: Final = Rights()
NEIGHBOURS: Final = Neighbours()


def _simulated(replaced: Replaced) -> Bug:
    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(simulated, "PARTS", replaced.parts)

    name, _parts, check = replaced
    is_mover = check.startswith("Y")
    return Bug(
        name=name,
        layer=Layer.SYPHON if is_mover else Layer.CORE,
        plant=plant,
        harness=SIMULATION,
        check=check,
    )


def _of(layer: Layer, *rows: tuple[str, Plant, Harness, str]) -> tuple[Bug, ...]:
    return tuple(
        Bug(name=name, layer=layer, plant=plant, harness=harness, check=check)
        for name, plant, harness, check in rows
    )


CORE: Final = (
    *map(_simulated, REPLACED),
    *_of(
        Layer.CORE,
        (
            "a diverted send is acknowledged before the backlog has it",
            *(syphon.acknowledge_before_the_backlog_has_it, CAMPAIGN, "lost:"),
        ),
        (
            "a send that broke off counts as accepted",
            *(syphon.take_a_write_for_an_answer, CAMPAIGN, "lost:"),
        ),
        (
            "properties of the diversion stay on the message",
            *(syphon.leave_the_aliases_on, HOMEWARD, "not as it was sent: properties"),
        ),
        (
            "the time to live is not restored",
            *(syphon.forget_the_time_to_live, HOMEWARD, "not as it was sent: time_to_live"),
        ),
        (
            "the session is not restored",
            *(syphon.forget_the_session, HOMEWARD, "not as it was sent: session_id"),
        ),
    ),
)
SYPHON: Final = _of(
    Layer.SYPHON,
    ("a mover completes before it sends", syphon.complete_before_sending, CAMPAIGN, "lost:"),
    ("a mover completes what is unsure", syphon.complete_what_is_unsure, CAMPAIGN, "lost:"),
    ("a mover hides its doubt", syphon.hide_doubt, CAMPAIGN, "unexplained duplicates:"),
    ("poison is completed", syphon.complete_poison, HOMEWARD, "lost:"),
    (
        "poison is buried without a reason",
        *(syphon.give_no_reason, HOMEWARD, "dead-lettered without a reason:"),
    ),
    ("set aside and forgotten", syphon.forget_what_was_set_aside, HOMEWARD, "left behind:"),
    ("only its own queues", syphon.look_at_known_queues_only, HOMEWARD, "left behind:"),
    ("messages of another pair", syphon.move_what_belongs_to_others, HOMEWARD, "not ours:"),
)
CONNECTOR: Final = _of(
    Layer.CONNECTOR,
    (
        "settled before the batch is written",
        *(connector.settle_before_the_batch_is_written, SPARK, "lost:"),
    ),
    ("the message that rang is dropped", connector.drop_the_message_that_rang, SPARK, "lost:"),
    (
        "locks are not renewed during a batch",
        *(connector.renew_no_locks, SPARK, "written and not settled:"),
    ),
)
BROKER: Final = _of(
    Layer.BROKER,
    (
        "an administrative change holds before it is written",
        *(catalogue.apply_before_written, CATALOGUE, "memory is not the disk"),
    ),
    (
        "a refused plan leaves its first half",
        *(catalogue.keep_what_a_refused_plan_did, CATALOGUE, "not what the calls said"),
    ),
    (
        "two entities of one path are written",
        *(catalogue.take_a_path_twice, CATALOGUE, "and 0 were refused for it"),
    ),
    (
        "map keys whose hashes collide are free",
        *(costs.count_no_keys, COSTLY, "keys that collide held the loop"),
    ),
    (
        "a performative is as large as a message",
        *(costs.let_performatives_grow, COSTLY, "elements was built"),
    ),
    (
        "a large body is checked in one piece",
        *(costs.check_bodies_in_one_piece, COSTLY, "was checked in one piece"),
    ),
    (
        "acknowledged before the commit",
        *(mutants.acknowledge_before_commit, SEND_KILLS, "was accepted, and is lost"),
    ),
    (
        "attempts are counted in memory only",
        *(broker.count_attempts_in_memory, KILLS, "its delivery count fell"),
    ),
    (
        "ids that were seen are kept in memory only",
        *(broker.keep_ids_in_memory, REPEAT_KILLS, "is handed out twice"),
    ),
    (
        "states of sessions are kept in memory only",
        *(broker.keep_session_states_in_memory, SESSION_KILLS, "the state of "),
    ),
    ("a ping is handed out", broker.hand_out_pings, CAMPAIGN, "pings seen:"),
    (
        "the window of duplicate detection is ignored",
        *(broker.ignore_the_window, CAMPAIGN, "duplicates where they are detected:"),
    ),
    ("a subscription gets no copy", broker.forget_a_subscription, CAMPAIGN, "lost:"),
    (
        "a lock token is used again",
        *(broker.reuse_lock_tokens, STORIES, "a lock settles once, by its holder"),
    ),
    (
        "a lock that ran out still settles",
        *(mutants.settle_after_the_lock_ran_out, STORIES, "a lock settles once, by its holder"),
    ),
    (
        "a refused commit is acknowledged",
        *(broker.acknowledge_what_the_disk_refused, STORIES, "is on disk"),
    ),
    (
        "a move is written in two transactions",
        *(mutants.write_the_two_sides_of_a_move_apart, STORIES, "lost:"),
    ),
    (
        "a refused batch keeps its numbers",
        *(
            mutants.keep_the_numbers_of_a_refused_batch,
            STORIES,
            "sequence numbers have no gap and come once",
        ),
    ),
    ("a due message is taken twice", mutants.schedule_it_again, STORIES, "is removed once"),
    ("a look for due messages is the last", mutants.look_once, STORIES, "overdue:"),
    (
        "what has expired lives on",
        *(mutants.let_the_expired_live, STORIES, "an expired message is not delivered"),
    ),
    ("a renewal is forgotten", mutants.forget_a_renewal, QUEUE_MODEL, "the_counts_agree:"),
    ("a dead letter has no reason", broker.give_no_reason, QUEUE_MODEL, "the dead letters differ"),
    (
        "a session is given to every receiver",
        *(broker.take_a_session_from_its_holder, SESSION_MODEL, "accept:"),
    ),
    (
        "what was let go counts as tried",
        *(sessions.count_what_was_let_go, SESSION_MODEL, "what is left differs"),
    ),
    (
        "a rule that was removed comes back",
        *(topics.keep_removed_rules_on_disk, TOPIC_MODEL, "what is left differs"),
    ),
    (
        "a change of rules is overlooked",
        *(topics.overlook_a_change_of_rules, TOPIC_MODEL, "what is left differs"),
    ),
)
RIGHTS_THAT_SPREAD: Final = _of(
    Layer.BROKER,
    (
        "the key of a queue opens what is below its path",
        *(rights.cover_what_is_below, RIGHTS, "a right too many: AMQP receive at"),
    ),
    (
        "Manage on one entity is Send to all",
        *(rights.let_every_administrator_forward, RIGHTS, "a right too many: ATOM forward"),
    ),
    (
        "Listen on its target lets an entity forward",
        *(rights.take_any_token_as_proof, RIGHTS, "a right too many: ATOM forward"),
    ),
    (
        "a token for the target is not verified",
        *(rights.believe_whatever_is_in_the_header, RIGHTS, "a right too many: ATOM forward"),
    ),
)
FAIRNESS: Final = _of(
    Layer.BROKER,
    (
        "pending bytes belong to the loudest",
        *(fairness.give_everything_to_the_loudest, NEIGHBOURS, "not read from:"),
    ),
    (
        "turns are given first come first served",
        *(fairness.serve_whoever_came_first, NEIGHBOURS, "stalled:"),
    ),
)
STORE: Final = _of(
    Layer.STORE,
    ("synchronous=NORMAL", store.leave_syncing_to_the_checkpoint, CRASHES, "was acknowledged"),
    (
        "the ledger is written apart",
        *(store.write_the_ledger_apart, CRASHES, "the content is not that of commit"),
    ),
    ("the mark runs ahead", store.mark_what_is_not_yet_durable, CRASHES, "are missing"),
    (
        "the directory is not synced at creation",
        *(store.leave_the_directory_unsynced, CRASHES, "the database is missing"),
    ),
    ("created under its final name", store.create_it_in_its_place, CRASHES, "refused:"),
    (
        "tombstones are not read back",
        *(store.read_no_tombstones, KILLS, "was settled, and is back"),
    ),
    ("states are not read back", store.read_no_states, CRASHES, "the content is not that of"),
    (
        "sequence numbers are used again after a restart",
        *(
            store.number_from_the_last_row,
            STORIES_ON_DISK,
            "sequence numbers have no gap and come once",
        ),
    ),
    (
        "ids of queues are used again after a restart",
        *(store.number_queues_from_the_last_one, CRASHES, "the content is not that of commit"),
    ),
    (
        "a scheduled message is not written",
        *(store.lose_the_schedule, STORIES_ON_DISK, "its counters show"),
    ),
    (
        "the mark is not written",
        *(store.write_no_mark, DAMAGES, "damage went unnoticed: bring back an older copy"),
    ),
    (
        "the mark is not compared",
        *(store.compare_with_no_mark, DAMAGES, "damage went unnoticed: cut the log"),
    ),
    (
        "checksums of bodies are not checked",
        *(store.believe_every_body, ROTTEN, "it answers something else"),
    ),
    (
        "the counters are not compared",
        *(store.balance_no_books, DAMAGES, "damage went unnoticed: lose a row"),
    ),
)
BUGS: Final[tuple[Bug, ...]] = (
    *CORE,
    *SYPHON,
    *CONNECTOR,
    *BROKER,
    *RIGHTS_THAT_SPREAD,
    *FAIRNESS,
    *STORE,
)
