"""Third-party Kafka clients: Kafka's own command-line programs, and kcat."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.devstack.kafka_java import QUICK, KafkaInstall, find_place, program, run_tool, tools_jars
from tests.devstack.service import clean_env

CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONSOLE_SHARE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
CONFIGS = "org.apache.kafka.tools.ConfigCommand"
PERF_TEST = "org.apache.kafka.tools.ProducerPerformance"


@dataclass(frozen=True)
class KafkaTools:
    """Java programs on Kafka's jars. ``jars`` is the folder that has the command-line programs."""

    place: KafkaInstall
    jars: Path
    javac: str
    maven: str

    def command(self, *words: str, classes: Path | None = None) -> tuple[str, ...]:
        """``words`` are a main class and its arguments; ``classes`` is a folder with more classes."""
        path = f"{self.place.jars}/*:{self.jars}/*" + (f":{classes}" if classes else "")
        # A broker of this devstack has left this file; where another one is used there may be none.
        shared = (f"-XX:SharedArchiveFile={self.place.classes}",) if self.place.classes.exists() else ()
        return (self.place.java, *shared, *QUICK, "-cp", path, *words)

    def compile(self, folder: Path, *sources: Path) -> Path:
        """The folder, with the classes of these sources."""
        path = f"{self.place.jars}/*"
        run_tool((self.javac, "-d", str(folder), "-cp", path, *map(str, sources)), clean_env())
        return folder


def find_tools() -> KafkaTools:
    """Java and a compiler from the machine or from Debian, the programs from Maven Central. Raises ``Unavailable``."""
    return KafkaTools(find_place(), tools_jars(), program("javac", "default-jdk-headless"), program("mvn", "maven"))


def find_kcat() -> str:
    """kcat from the machine or from Debian. Raises ``Unavailable``."""
    return program("kcat", "kcat")
