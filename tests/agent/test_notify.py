import email
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from email import policy
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlmodel import select

from agent.loop import Agent
from agent.notify import NOTIFIERS, Deliverer, DeliveryError, Message, make_notifier, sign, verify
from agent.notify._post import is_public, resolve
from agent.ranking import Ranking, note
from assay.errors import UsageError
from assay.settings import Settings
from assay.specs import NotifySpec
from storage import events, outbox
from storage.tables import Event, Notification, StudyState
from tests.agent.boards import Board, fill, open_database
from tests.agent.receivers import Received, hook_server, mail_server
from tests.world import World

MESSAGE = Message(
    "event-7",
    "study.finished",
    "Study 7 done\nBcc: all@example.org",
    "All <well> & good: ünïcode \u202e",
    {"n": 1},
)


@contextmanager
def receiver(kind: str) -> Iterator[tuple[Received, NotifySpec]]:
    """A service that takes what a notifier sends, and the target's entry for it."""
    if kind == "email":
        with mail_server() as received:
            yield (
                received,
                NotifySpec(
                    name="t",
                    kind=kind,
                    smtp_host="127.0.0.1",
                    smtp_port=received.port,
                    smtp_tls="none",
                    sender="assay@example.org",
                    to=["a@example.org", "b@example.org"],
                ),
            )
    else:
        with hook_server() as received:
            yield received, NotifySpec(name="t", kind=kind, url=received.url, allow_private=True)


@pytest.mark.parametrize("kind", sorted(NOTIFIERS.builtins))
class TestEveryNotifier:
    def test_delivers(self, kind: str) -> None:
        with receiver(kind) as (received, spec):
            notifier = make_notifier(spec)
            assert notifier.check()
            notifier.send(MESSAGE)
            assert len(received.bodies) == 1
            assert b"Study 7" in received.bodies[0]

    def test_says_that_a_refused_message_did_not_arrive(self, kind: str) -> None:
        with receiver(kind) as (received, spec):
            received.statuses = [550] if kind == "email" else [410]
            with pytest.raises(DeliveryError) as refused:
                make_notifier(spec).send(MESSAGE)
            assert not refused.value.again

    def test_says_that_another_try_may_help(self, kind: str) -> None:
        with receiver(kind) as (_, spec):
            pass  # now nobody listens there
        with pytest.raises(DeliveryError) as failed:
            make_notifier(spec).send(MESSAGE)
        assert failed.value.again

    def test_incomplete_entry_says_what_is_missing(self, kind: str) -> None:
        with pytest.raises(UsageError, match="'t'") as wrong:
            make_notifier(NotifySpec(name="t", kind=kind)).check()
        assert wrong.value.hint

    def test_secret_that_is_not_set_is_named_and_never_shown(self, kind: str, monkeypatch) -> None:
        monkeypatch.delenv("A_SECRET", raising=False)
        with receiver(kind) as (_, spec):
            variable = "password_env" if kind == "email" else "secret_env"
            with pytest.raises(UsageError, match="A_SECRET"):
                make_notifier(spec.model_copy(update={variable: "A_SECRET"})).check()


def test_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="webhok") as wrong:
        make_notifier(NotifySpec(name="t", kind="webhok"))
    assert "webhook" in wrong.value.hint


class TestForms:
    def test_webhook_is_signed(self, monkeypatch) -> None:
        monkeypatch.setenv("HOOK_SECRET", "s3cret")
        with receiver("webhook") as (received, spec):
            make_notifier(spec.model_copy(update={"secret_env": "HOOK_SECRET"})).send(MESSAGE)
        body, headers = received.bodies[0], received.headers[0]
        assert json.loads(body)["facts"] == {"n": 1}
        assert headers["X-Assay-Delivery"] == "event-7"
        assert verify("s3cret", body, headers["X-Assay-Signature"], time.time())
        assert "s3cret" not in str(headers)

    def test_slack_text_mentions_nobody(self) -> None:
        with receiver("slack") as (received, spec):
            make_notifier(spec).send(MESSAGE)
        assert json.loads(received.bodies[0])["text"].endswith("All &lt;well&gt; &amp; good: ünïcode \u202e")

    def test_mail_has_one_subject_line(self) -> None:
        with receiver("email") as (received, spec):
            make_notifier(spec).send(MESSAGE)
        mail = email.message_from_bytes(received.bodies[0], policy=policy.default)
        assert mail["Subject"] == "Study 7 done Bcc: all@example.org"
        assert mail["Bcc"] is None
        assert "ünïcode" in mail.get_content()


class TestSignature:
    @given(st.binary(max_size=50), st.text(min_size=1, max_size=20))
    def test_round_trip(self, body: bytes, secret: str) -> None:
        header = sign(secret, body, 1000)
        assert verify(secret, body, header, 1010)
        assert not verify(secret + "x", body, header, 1010)
        assert not verify(secret, body + b"x", header, 1010)
        assert not verify(secret, body, header, 1400)
        assert not verify(secret, body, header.replace("t=1000", "t=1001"), 1010)

    @given(st.text(max_size=60))
    def test_takes_any_header(self, header: str) -> None:
        assert not verify("secret", b"body", header, 1000)


class TestGuard:
    @pytest.mark.parametrize(
        "host",
        [
            "127.0.0.1",
            "10.1.2.3",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "[::1]",
            "[fe80::1]",
            "[fd00::1]",
            "[::ffff:127.0.0.1]",
            "[64:ff9b::7f00:1]",
            "[2002:7f00:1::]",
            "2130706433",
            "0x7f.1",
            "localhost",
        ],
    )
    def test_private_addresses_are_refused(self, host: str) -> None:
        url = httpx.URL(f"http://{host}/x")
        with pytest.raises(DeliveryError) as refused:
            resolve(url, allow_private=False)
        assert not refused.value.again or "resolve" in str(refused.value)

    @pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "2002:808:808::"])
    def test_public_addresses_are_taken(self, address: str) -> None:
        import ipaddress

        assert is_public(ipaddress.ip_address(address))

    def test_one_private_address_among_public_ones_is_refused(self, monkeypatch) -> None:
        found = [(2, 1, 6, "", ("8.8.8.8", 80)), (2, 1, 6, "", ("127.0.0.1", 80))]
        monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
        with pytest.raises(DeliveryError, match="not public"):
            resolve(httpx.URL("http://example.org/"), allow_private=False)

    def test_connection_goes_to_the_address_that_was_checked(self, monkeypatch) -> None:
        """The name is resolved once: what it resolves to afterwards does not matter."""
        asked: list[str] = []

        def getaddrinfo(host, port, *_, **__):
            asked.append(str(host))
            return [(2, 1, 6, "", ("127.0.0.1", port))]

        with receiver("webhook") as (received, spec):
            monkeypatch.setattr("agent.notify._post.socket.getaddrinfo", getaddrinfo)
            url = received.url.replace("127.0.0.1", "hooks.example.org")
            make_notifier(spec.model_copy(update={"url": url})).send(MESSAGE)
        assert asked[0] == "hooks.example.org"
        assert set(asked[1:]) <= {"127.0.0.1"}
        assert received.headers[0]["Host"].startswith("hooks.example.org:")

    def test_redirects_are_not_followed(self) -> None:
        with receiver("webhook") as (received, spec):
            received.statuses = [302]
            with pytest.raises(DeliveryError, match="redirects") as refused:
                make_notifier(spec).send(MESSAGE)
            assert len(received.bodies) == 1
            assert not refused.value.again

    @pytest.mark.parametrize(
        "url", ["ftp://x/", "file:///etc/passwd", "http://u:p@x/", "nonsense", "http://"]
    )
    def test_other_urls_are_refused(self, url: str) -> None:
        with pytest.raises(UsageError):
            make_notifier(NotifySpec(name="t", kind="webhook", url=url)).check()


@pytest.fixture
def database(tmp_path: Path):
    database = open_database(tmp_path)
    yield database
    database.close()


class TestOutbox:
    def test_a_target_gets_one_notification_per_event(self, database) -> None:
        with database.begin() as session:
            event = events.emit(session, "odd", {})
            assert outbox.enqueue(session, event.id, "ops", {})
            assert not outbox.enqueue(session, event.id, "ops", {})
            assert outbox.enqueue(session, event.id, "team", {})

    def test_a_lease_is_one_sender_s_until_it_runs_out(self, database) -> None:
        with database.begin() as session:
            outbox.enqueue(session, None, "ops", {})
            first = outbox.claim(session, "one", timedelta(seconds=60))
            assert outbox.claim(session, "two", timedelta(seconds=60)) is None
            outbox.again(session, first.id, "one", "no", timedelta(0))
            second = outbox.claim(session, "two", timedelta(0))
            assert (second.id, second.attempts) == (first.id, 2)
            outbox.sent(session, first.id, "one")  # its lease is gone: says nothing any more
            assert outbox.counts(session) == {"queued": 1}
            assert outbox.claim(session, "three", timedelta(0)).attempts == 3

    def test_survives_a_restart_and_retries_until_it_arrives(self, database, tmp_path, monkeypatch) -> None:
        monkeypatch.setattr("agent.notify._deliver.FIRST_WAIT", timedelta(0))
        with hook_server() as received:
            received.statuses = [503, 503, 200]
            spec = NotifySpec(name="ops", url=received.url, allow_private=True)
            settings = Settings(data_dir=tmp_path, notify=[spec])
            with database.begin() as session:
                outbox.enqueue(session, None, "ops", MESSAGE.as_dict())
            for _ in range(3):
                assert Deliverer(database, settings).deliver()  # each as after a restart
            assert not Deliverer(database, settings).deliver()
        ids = {headers["X-Assay-Delivery"] for headers in received.headers}
        assert (len(received.bodies), ids) == (3, {"event-7"})
        with database.read() as session:
            assert outbox.counts(session) == {"sent": 1}

    @pytest.mark.parametrize("target", ["gone", "ops"])
    def test_is_given_up_with_the_reason(self, database, tmp_path, target: str) -> None:
        spec = NotifySpec(name="ops", url="http://127.0.0.1:9/")  # private, and not allowed
        with database.begin() as session:
            outbox.enqueue(session, None, target, MESSAGE.as_dict())
        assert Deliverer(database, Settings(data_dir=tmp_path, notify=[spec])).deliver()
        with database.begin() as session:
            (row,) = outbox.recent(session)
            assert row.state == "failed"
            assert ("not public" in row.error) == (target == "ops")
            assert outbox.requeue_failed(session) == 1

    def test_many_senders_send_each_once(self, database, tmp_path) -> None:
        with hook_server() as received:
            settings = Settings(
                data_dir=tmp_path, notify=[NotifySpec(name="ops", url=received.url, allow_private=True)]
            )
            with database.begin() as session:
                for i in range(12):
                    outbox.enqueue(session, None, "ops", {**MESSAGE.as_dict(), "id": str(i)})

            def send() -> None:
                while Deliverer(database, settings).deliver():
                    pass

            threads = [threading.Thread(target=send) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sorted(h["X-Assay-Delivery"] for h in received.headers) == sorted(map(str, range(12)))


class TestAgent:
    def test_finished_study_reaches_its_targets(self, tmp_path) -> None:
        with hook_server() as received:
            hook = NotifySpec(
                name="ops", url=received.url, allow_private=True, on=["study.*", "rank.changed"]
            )
            other = NotifySpec(name="other", url=received.url, on=["budget.*"])
            world = World.open(tmp_path, notify=[hook, other]).with_history()
            study = world.add_study(world.add_model("m19"))
            world.settle()
            assert world.study(study).state == StudyState.DONE
            while Deliverer(world.database, world.settings).deliver():
                pass
            world.database.close()
        said = [json.loads(body) for body in received.bodies]
        assert [m["kind"] for m in said].count("study.finished") == 1
        (finished,) = [m for m in said if m["kind"] == "study.finished"]
        assert finished["title"] == f"Study {study} on trivia finished"
        assert "m19: 0." in finished["text"]

    def test_a_budget_at_80_and_at_100_percent_is_told_of(self, tmp_path) -> None:
        with hook_server() as received:
            hook = NotifySpec(name="ops", url=received.url, allow_private=True, on=["budget.*"])
            world = World.open(tmp_path, notify=[hook]).with_history()
            world.add_study(world.add_model("m19"), caps={"calls": 10}, max_usd=None, max_prompts=20)
            world.settle()
            while Deliverer(world.database, world.settings).deliver():
                pass
            world.database.close()
        said = {m["kind"]: m for m in map(json.loads, received.bodies)}
        assert said["budget.warning"]["title"].startswith("Budget warning: study")
        assert "% of the study cap of 10 calls." in said["budget.warning"]["text"]
        assert "10 calls spent, 100 % of" in said["budget.spent"]["text"]

    def test_event_and_message_are_one_transaction(self, tmp_path, monkeypatch) -> None:
        world = World.open(tmp_path, notify=[NotifySpec(name="ops", url="http://x/", on=["*"])])
        with world.database.begin() as session:
            events.emit(session, "odd", {})
        monkeypatch.setattr("storage.events.mark_handled", lambda *_: False)  # another agent was faster
        Agent(world.agent_context()).tick()
        assert world.rows(Notification) == []
        monkeypatch.undo()
        Agent(world.agent_context()).tick()
        Agent(world.agent_context()).tick()
        assert len(world.rows(Notification)) == 1
        world.database.close()

    def test_changed_ranks_are_announced_once(self, database) -> None:
        with database.begin() as session:
            fill(session)
            board = Board.create(session)
            for order in (("a", "b"), ("a", "b"), ("b", "a"), ("b", "a")):
                note(session, Ranking(board.benchmark.name, order))
            found = session.exec(select(Event).where(Event.kind == "rank.changed")).all()
            assert [e.payload for e in found] == [
                {"benchmark": "trivia", "before": ["a", "b"], "after": ["b", "a"]}
            ]


def test_settings_reach_children(tmp_path, monkeypatch) -> None:
    settings = Settings(data_dir=tmp_path, notify=[NotifySpec(name="ops", url="https://example.org/")])
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert Settings().notify == settings.notify
