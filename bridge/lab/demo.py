"""The demo: six messages from a producer to a consumer on each broker, what became of them, and how that is shown."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from socket import socket
from textwrap import wrap
from typing import Any, Literal, NamedTuple, get_args

from pydantic import SecretStr
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bridge.app.brokers import broker_of
from bridge.core.errors import PostdateError
from bridge.lab.ports import Producer, StoredMessage
from bridge.lab.trial import Trial, new_names, trial_settings
from bridge.settings import Settings
from bridge.settings.model import BrokerKind
from bridge.telemetry.printable import printable

#: When the message with a key is cancelled, counted from the start. It is due 3 s later.
CANCEL_AFTER_S = 2.0
_THIRD_DUE_MS = 3200
_LOOK_S = 0.1
_OVER_S = 9.0
#: A delivery later than this is a failure.
LATE_MAX_MS = 1000.0
#: The store's clock is known to about this.
EARLY_MAX_MS = 1.0
#: How long after its due moment a cancelled message must not arrive.
WATCH_MS = 500
#: Delays of the trickle: most messages are due soon, some stay parked for a while.
_TRICKLE_S = (2, 15, 5, 60, 3, 120, 10, 300, 4, 30, 7, 600)
_TRICKLE_EVERY_S = 0.5
#: What the messages are called, after the routes of the README.
_NOUNS: Mapping[BrokerKind, str] = {"rabbitmq": "order", "kafka": "payment"}


# -- the messages -----------------------------------------------------------------------------------------------------


#: What a message must become.
End = Literal["delivered", "dead letter", "cancelled"]


class Arrival(NamedTuple):
    """A message at the consumer: its time by the store's clock, and the due time in postdate's header, if any."""

    at_ms: float
    due_ms: int | None


@dataclass
class DemoMessage:
    """A message and what is known of it. ``name`` is also its body; ``asked`` shows its header to people.

    All times are Unix milliseconds by the store's clock.
    """

    name: str
    asked: str
    headers: Mapping[str, str | int]
    end: End = "delivered"
    sent_ms: float = 0.0
    cancel_sent: bool = False
    stored: StoredMessage | None = None
    parked_due_ms: int | None = None
    arrivals: list[Arrival] = field(default_factory=list)

    def see(self, stored: StoredMessage | None) -> None:
        """Note how the store holds it now; None if it does not."""
        self.stored = stored
        if stored is not None and stored.state == "parked":
            self.parked_due_ms = stored.due_ms

    def state(self) -> str:
        """Its state in one or two words; "" before it is sent."""
        if self.arrivals:
            return "delivered"
        if self.stored is None:
            gone = self.cancel_sent and self.parked_due_ms is not None
            return "cancelled" if gone else "sent" if self.sent_ms else ""
        return {"parked": "parked", "dead": "dead letter"}.get(self.stored.state, "on its way")

    def late_ms(self) -> float | None:
        """Its lateness; None if it has not arrived or had no delay."""
        due_ms = self.arrivals[0].due_ms if self.arrivals and self.headers else None
        return None if due_ms is None else self.arrivals[0].at_ms - due_ms

    def settled(self, now_ms: float) -> bool:
        """Whether nothing more can happen to it."""
        if self.end == "cancelled":
            due_ms = self.parked_due_ms
            return bool(self.arrivals) or (self.cancel_sent and due_ms is not None and now_ms > due_ms + WATCH_MS)
        return self.state() == self.end


def demo_messages(now_ms: int, noun: str = "order") -> list[DemoMessage]:
    """The six messages of a demo that begins at ``now_ms`` (Unix milliseconds by the store's clock)."""
    # A whole second, three or four from now, is easier to read.
    moment = datetime.fromtimestamp(-(-(now_ms + _THIRD_DUE_MS) // 1000), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        DemoMessage(f"{noun} 1", "x-delay: 2000", {"x-delay": 2000}),
        DemoMessage(f"{noun} 2", 'x-delay: "3s"', {"x-delay": "3s"}),
        DemoMessage(f"{noun} 3", f"x-deliver-at: {moment[11:]}", {"x-deliver-at": moment}),
        DemoMessage(f"{noun} 4", "no header", {}),
        DemoMessage(f"{noun} 5", 'x-delay: "tomorrow"', {"x-delay": "tomorrow"}, "dead letter"),
        DemoMessage(f"{noun} 6", "x-delay: 5000, a key", {"x-delay": 5000, "x-delay-key": f"{noun}-6"}, "cancelled"),
    ]


class BrokerMessages(NamedTuple):
    """The demo's messages on one broker, and the broker's title."""

    title: str
    messages: list[DemoMessage]


def complaints(messages: Iterable[DemoMessage]) -> list[str]:
    return [text for message in messages for text in _complaints(message)]


def _complaints(message: DemoMessage) -> list[str]:
    state, late_ms = message.state(), message.late_ms()
    if state != message.end:
        return [f"{message.name} ({message.asked}): expected {message.end}, found {state or 'not sent'}"]
    found = []
    if len(message.arrivals) > 1:
        found.append(f"{message.name} was delivered {len(message.arrivals)} times")
    if message.arrivals and message.headers and late_ms is None:
        found.append(f"{message.name} ({message.asked}) was delivered without the header x-delay-due")
    if late_ms is not None and late_ms < -EARLY_MAX_MS:
        found.append(f"{message.name} was delivered {-late_ms:.1f} ms early")
    if late_ms is not None and late_ms > LATE_MAX_MS:
        found.append(f"{message.name} was delivered {late_ms:.0f} ms late")
    return found


# -- on one broker ----------------------------------------------------------------------------------------------------


@contextmanager
def demo_on(settings: Settings, broker: BrokerKind) -> Iterator[BrokerDemo]:
    """A running bridge on one broker with a producer and a consumer. The end of the block deletes it all.

    Raises what ``Trial`` raises.
    """
    names, port = new_names("demo", broker), _free_port()
    # The messages of a demo may be lost, so the store needs no durability.
    own = trial_settings(
        settings,
        names,
        broker=broker,
        redis={"durability": "none", "shards": 1},
        bridge={"workers": 1, "shutdown_grace": 2000},
        headers={"audit": True, "on_bad": "dead", "on_same_key": "replace"},
        log={"level": "warning"},
        http={"enabled": True, "listen": f"127.0.0.1:{port}", "base_path": "", "cert_file": "", "key_file": ""},
        auth={"viewer_token": SecretStr(""), "operator_token": SecretStr(""), "admin_token": SecretStr("")},
    )
    with Trial(own, names) as trial, closing(trial.lab.producer(own, names.front)) as producer:
        demo = BrokerDemo(trial, producer, f"http://127.0.0.1:{port}/")
        with closing(trial.lab.consumer(own, names.queue, demo.receive)):
            yield demo


class BrokerDemo:
    """What the demo does on one broker. ``page`` is the address of the bridge's page."""

    def __init__(self, trial: Trial, producer: Producer, page: str) -> None:
        self.page = page
        self.found = BrokerMessages(trial.title, [])
        self._trial = trial
        self._producer = producer
        self._noun = _NOUNS[trial.kind]

    def send(self, now_ms: float) -> None:
        """Publish all messages of a demo that begins now."""
        self.found.messages.extend(demo_messages(round(now_ms), self._noun))
        for message in self.found.messages:
            message.sent_ms = self.now_ms()
            self._producer.publish(message.name.encode(), message.headers)

    def cancel(self) -> None:
        """Cancel the message that has a key, once it was seen parked: the demo shows both."""
        for message in self.found.messages:
            key, seen = message.headers.get("x-delay-key"), message.parked_due_ms is not None
            if key and seen and not message.cancel_sent:
                self._producer.publish(b"", {"x-delay-cancel": key})
                message.cancel_sent = True

    def trickle(self, number: int) -> None:
        """Publish one more message: soon due or later, with a key of its own. One of fifty has a bad header."""
        noun, delay_s = self._noun, _TRICKLE_S[number % len(_TRICKLE_S)]
        delay: str | int = "tomorrow" if number % 50 == 7 else delay_s * 1000
        self._producer.publish(
            f'{{"{noun}": {number}}}'.encode(), {"x-delay": delay, "x-delay-key": f"{noun}-{1000 + number}"}
        )
        self._trial.check()

    def look(self) -> None:
        """Note how the store holds each message now. Raises ``BridgeFailed`` if the bridge has ended."""
        self._trial.check()
        self._trial.wait_for(self._trial.store.look_at_clock())
        kept = self._trial.wait_for(self._trial.store.kept())
        body_of = broker_of(self._trial.kind).payloads.body_of
        stored = {body_of(message.payload): message for message in kept}
        for message in self.found.messages:
            message.see(stored.get(message.name.encode()))

    def settled(self) -> bool:
        """Whether nothing more can happen."""
        return all(message.settled(self.now_ms()) for message in self.found.messages)

    def now_ms(self) -> float:
        return self._trial.now_ms()

    def receive(self, body: bytes, headers: Mapping[str, Any]) -> None:
        """Note an arrival at the consumer."""
        at_ms, due_ms = self.now_ms(), headers.get("x-delay-due")
        for message in self.found.messages:
            if message.name.encode() == body:
                message.arrivals.append(Arrival(at_ms, None if due_ms is None else int(due_ms)))


def play(demos: Sequence[BrokerDemo], view: View) -> None:
    """Send, show and cancel, until everything has ended or 9 s have passed."""
    now_ms = demos[0].now_ms()
    for demo in demos:
        demo.send(now_ms)
    began = time.monotonic()
    while time.monotonic() < began + _OVER_S:
        for demo in demos:
            demo.look()
        view.show([demo.found for demo in demos], demos[0].now_ms())
        if all(demo.settled() for demo in demos):
            break
        if time.monotonic() > began + CANCEL_AFTER_S:
            for demo in demos:
                demo.cancel()
        time.sleep(_LOOK_S)


def stay(demos: Sequence[BrokerDemo]) -> None:
    """Publish a trickle of messages until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        for number in count():
            for demo in demos:
                demo.trickle(number)
            time.sleep(_TRICKLE_EVERY_S)


def _free_port() -> int:
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def judge(found: Sequence[BrokerMessages]) -> None:
    """Raise ``PostdateError`` if a message did not end as it must."""
    if wrong := [text for group in found for text in complaints(group.messages)]:
        raise PostdateError(f"The demo failed: {'; '.join(wrong)}.")


# -- how it is shown --------------------------------------------------------------------------------------------------

_STYLES = {
    "delivered": "green",
    "dead letter": "red",
    "cancelled": "yellow",
    "parked": "cyan",
}
_LINES: Mapping[BrokerKind, str] = {
    "rabbitmq": """\
On RabbitMQ:
  [routes.orders]
  intercept = "orders.delay"     # where producers publish
  deliver_to = "orders"          # where consumers stay
and in the producer:
  channel.basic_publish("orders.delay", "new", body,
      pika.BasicProperties(headers={"x-delay": 3000}))
""",
    "kafka": """\
On Kafka:
  [routes.payments]
  broker = "kafka"
  intercept = "payments.delay"   # where producers write
  deliver_to = "payments"        # what consumers read
and in the producer:
  await producer.send("payments.delay", value,
      headers=[("x-delay", b"3000")])
""",
}


class LiveTable(Live):
    """A table that is redrawn."""

    def __init__(self, console: Console) -> None:
        super().__init__(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def show(self, found: Sequence[BrokerMessages], now_ms: float) -> None:
        """Show the messages as they are at ``now_ms``."""
        tables = [_table(group, now_ms) for group in found]
        self.update(Group(*[part for table in tables for part in (Text(), table)][1:]), refresh=True)


class StateLines(AbstractContextManager["StateLines"]):
    """A line whenever the state of a message changes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[str, str] = {}

    def __exit__(self, *_: object) -> None:
        """Nothing is left to do."""

    def show(self, found: Sequence[BrokerMessages], now_ms: float) -> None:
        every = [(group.title, message) for group in found for message in group.messages]
        first_ms = min((message.sent_ms for _, message in every if message.sent_ms), default=now_ms)
        for title, message in every:
            state = message.state()
            if state and self._shown.get(message.name) != state:
                self._shown[message.name] = state
                words = ", ".join(filter(None, (message.asked, state_text(message, now_ms), late_text(message))))
                line = f"{(now_ms - first_ms) / 1000:5.2f} s  {title}, {message.name}: {words}"
                self._console.out(line, highlight=False)


#: Shows the messages many times per second.
View = LiveTable | StateLines


def view_on(console: Console) -> View:
    """A live table on a terminal, lines elsewhere."""
    return LiveTable(console) if console.is_terminal and not console.is_dumb_terminal else StateLines(console)


def state_text(message: DemoMessage, now_ms: float) -> str:
    """The state, with the remaining delay of a parked message."""
    state = message.state()
    if state == "parked" and message.stored is not None:
        return f"parked, {max(0.0, message.stored.due_ms - now_ms) / 1000:.1f} s"
    return state


def late_text(message: DemoMessage) -> str:
    """The lateness for people; "" if there is none."""
    late_ms = message.late_ms()
    return "" if late_ms is None else f"{max(0.0, late_ms):.1f} ms late"


def _table(found: BrokerMessages, now_ms: float) -> Table:
    # Always 60 columns in all: the widths are those of the longest texts.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for title, width in ((found.title, 9), ("header", 23), ("state", 13)):
        table.add_column(title, no_wrap=True, width=width)
    table.add_column("late", no_wrap=True, justify="right", width=9)
    for message in found.messages:
        state = Text(state_text(message, now_ms), style=_STYLES.get(message.state(), ""))
        table.add_row(message.name, Text(message.asked), state, late_text(message).removesuffix(" late"))
    return table


def summary(found: BrokerMessages, width: int) -> str:
    """What was delivered and how late, what became a dead letter and why, what was cancelled; in ``width`` columns."""
    lines = [found.title]
    for end in get_args(End):
        ended = [message for message in found.messages if message.state() == end]
        if ended:
            words = printable(", ".join(map(_ending, ended)))
            lines += wrap(f"{end:<13}{words}", width, subsequent_indent=" " * 13)
    return "\n".join(lines)


def _ending(message: DemoMessage) -> str:
    state = message.state()
    if state == "delivered":
        return f"{message.name} ({late_text(message) or 'at once'})"
    if state == "dead letter" and message.stored is not None:
        return f"{message.name} ({message.stored.reason})"
    return f"{message.name} (never delivered)"


def lesson(brokers: Sequence[BrokerKind]) -> str:
    """The settings and the line of producer code behind what these brokers showed."""
    lines = "".join(_LINES[broker] for broker in brokers)
    return f"All it takes; the consumers are unchanged.\n{lines}README.md continues from here."
