"""Raw basic properties for tests: a model of them that knows every byte, and Hypothesis strategies over it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

Entry = tuple[bytes, str, bytes]

_FIXED = {
    "t": 1,
    "b": 1,
    "B": 1,
    "s": 2,
    "U": 2,
    "u": 2,
    "I": 4,
    "i": 4,
    "l": 8,
    "L": 8,
    "f": 4,
    "d": 8,
    "D": 5,
    "T": 8,
}

#: In wire order; None is the headers table, 0 a short text, else a number of bytes.
ORDER: dict[str, int | None] = {
    "content_type": 0, "content_encoding": 0, "headers": None, "delivery_mode": 1, "priority": 1, "correlation_id": 0,
    "reply_to": 0, "expiration": 0, "message_id": 0, "timestamp": 8, "type": 0, "user_id": 0, "app_id": 0,
    "cluster_id": 0,
}  # fmt: skip


def sized(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def encode_entry(entry: Entry) -> bytes:
    name, tag, value = entry
    return bytes((len(name),)) + name + tag.encode() + value


@dataclass
class Props:
    """``headers`` None is absent; ``others`` holds the wire bytes of each other property that is present."""

    headers: list[Entry] | None = None
    others: dict[str, bytes] = field(default_factory=dict)

    def encode(self) -> bytes:
        flags, body = 0, b""
        for place, name in enumerate(ORDER):
            part = self.others.get(name)
            if name == "headers" and self.headers is not None:
                part = sized(b"".join(map(encode_entry, self.headers)))
            if part is not None:
                flags |= 0x8000 >> place
                body += part
        return flags.to_bytes(2, "big") + body


def short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def every_property(headers: list[Entry] | None) -> Props:
    """All fourteen; a short text holds the property's own name."""
    return Props(
        headers,
        {n: short(n.encode()) if size == 0 else b"\1" * (size or 0) for n, size in ORDER.items() if n != "headers"},
    )


NAMES = st.one_of(st.sampled_from([b"x-delay", b"X-Delay", b"CC", b"x-death", b"", b"tenant"]), st.binary(max_size=255))

_fixed_values = st.sampled_from(sorted(_FIXED)).flatmap(
    lambda tag: st.tuples(st.just(tag), st.binary(min_size=_FIXED[tag], max_size=_FIXED[tag]))
)
_scalars = st.one_of(
    _fixed_values,
    st.just(("V", b"")),
    st.tuples(st.sampled_from("Sx"), st.binary(max_size=40).map(sized)),
)


def _nested(inner: st.SearchStrategy[tuple[str, bytes]]) -> st.SearchStrategy[tuple[str, bytes]]:
    tables = st.lists(st.tuples(st.binary(max_size=5), inner), max_size=3).map(
        lambda fields: ("F", sized(b"".join(encode_entry((name, *value)) for name, value in fields)))
    )
    arrays = st.lists(inner, max_size=3).map(
        lambda values: ("A", sized(b"".join(tag.encode() + raw for tag, raw in values)))
    )
    return tables | arrays


VALUES = st.recursive(_scalars, _nested, max_leaves=8)
ENTRIES = st.builds(lambda name, value: (name, *value), NAMES, VALUES)
HEADERS = st.lists(ENTRIES, max_size=8)


def _other(name: str, size: int) -> st.SearchStrategy[bytes]:
    if size:
        return st.binary(min_size=size, max_size=size)
    return st.binary(max_size=255).map(lambda text: bytes((len(text),)) + text)


_others = st.fixed_dictionaries(
    {}, optional={name: _other(name, size) for name, size in ORDER.items() if size is not None}
)
PROPS = st.builds(Props, st.none() | HEADERS, _others)
