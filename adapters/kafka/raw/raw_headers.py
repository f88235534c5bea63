"""Header names that are not UTF-8. Kafka's brokers carry them; aiokafka writes text only.

A batch that holds one is built by aiokafka's builder in Python, which asks a name for its bytes and does not look
whether it is text. It is several times slower than the one in C, and such records are rare.
"""

from __future__ import annotations

from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

_MAGIC = 2
#: Codecs, as Kafka numbers them.
UNCOMPRESSED, GZIP = 0, 1


class OddName:
    """A header name that is no text."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def encode(self, encoding: str) -> bytes:
        """The name, whatever the encoding."""
        return self._raw


class OddBatch(BatchBuilder):
    """A batch for records with odd names. ``size`` is bytes and ``codec`` Kafka's number, as in the producer's own."""

    def __init__(self, size: int, codec: int = UNCOMPRESSED) -> None:
        super().__init__(size, codec)
        self._builder = _DefaultRecordBatchBuilderPy(
            _MAGIC,
            codec,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=0,
            batch_size=size,
        )

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._builder.set_producer_state(producer_id, producer_epoch, base_sequence)
