"""What a Kafka runs on: a Java of this machine and the jars that Maven Central has.

The jars (43 MB) are fetched once, with the machine's own Maven and its settings, and shared between runs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.devstack import debian
from tests.devstack.service import Unavailable, clean_env, devstack_folder, machine_lock

VERSION = "4.4.0"
OLDEST_JAVA = 17  # Kafka's brokers need it since 4.0

#: For what is over in a second or is never measured: not compiled twice, and collected by one thread.
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>postdate</groupId><artifactId>devstack-kafka</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
DEPENDENCY = """
    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>
"""
BROKER = (("org.apache.kafka", "kafka_2.13", VERSION), ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"))
TOOLS = (("org.apache.kafka", "kafka-tools", VERSION),)

#: Called before the slow download of the jars; callers replace it to show progress.
announce: Callable[[], object] = bool


@dataclass(frozen=True)
class KafkaInstall:
    """Where Java and Kafka's jars are, and the file of their classes as a JVM has them in memory once it has started.

    With that file a broker starts in half the time. A JVM that it does not fit goes on without it.
    """

    java: str
    jars: Path

    @property
    def classes(self) -> Path:
        return self.jars.with_name(self.jars.name + ".jsa")

    def command(self, *words: str) -> tuple[str, ...]:
        """Java with Kafka's classes: `words` are further options, a main class and its arguments."""
        return (self.java, f"-XX:SharedArchiveFile={self.classes}", "-cp", f"{self.jars}/*", *words)

    def recording(self, classes: Path, *words: str) -> tuple[str, ...]:
        """The same without the file, which this run writes when it ends."""
        return (self.java, f"-XX:ArchiveClassesAtExit={classes}", "-cp", f"{self.jars}/*", *words)


def find_place() -> KafkaInstall:
    """Java from the machine or from Debian, jars from an earlier run or from Maven."""
    return KafkaInstall(_java(), _jars())


def run_tool(command: tuple[str, ...], env: Mapping[str, str]) -> None:
    """A command that ends by itself; its output is shown in `Unavailable` when it fails."""
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)} failed: {(done.stderr or done.stdout)[-1_500:]}")


def tools_jars() -> Path:
    """The folder of the jar with Kafka's command-line programs, which run beside a broker's jars."""
    return _once(f"kafka-tools-{VERSION}", _fetch_tools)


def _jars() -> Path:
    return _once(f"kafka-{VERSION}", _fetch)


def _once(name: str, fetch: Callable[[Path], None]) -> Path:
    """A folder of jars, fetched when it is not there yet. It bears its name only when it is complete."""
    jars = devstack_folder() / name
    with machine_lock(name):
        if not jars.exists():
            unfinished = jars.with_name(jars.name + ".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            fetch(unfinished)
            unfinished.rename(jars)
    return jars


def _fetch(folder: Path) -> None:
    _copy(folder, BROKER)


def _fetch_tools(folder: Path) -> None:
    # What they need beyond a broker's jars is what they have for Kafka Connect, which is not used.
    _copy(folder, TOOLS, "-DexcludeTransitive=true")


def _copy(folder: Path, wanted: Iterable[tuple[str, str, str]], *options: str) -> None:
    pom = folder / "pom.xml"
    lines = [DEPENDENCY.format(group=group, artifact=artifact, version=version) for group, artifact, version in wanted]
    pom.write_text(POM.format(dependencies="".join(lines)))
    goal = ("dependency:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime", *options)
    maven = program("mvn", "maven")
    announce()
    run_tool((maven, "-q", "-B", "-f", str(pom), *goal), os.environ)
    pom.unlink()


def _java() -> str:
    java = program("java", "default-jre-headless")
    printed = subprocess.run([java, "-version"], env=clean_env(), capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', printed)
    if found is None or int(found[1]) < OLDEST_JAVA:
        version = found[1] if found else "unknown"
        raise Unavailable(f"Kafka {VERSION} needs Java {OLDEST_JAVA} or newer, and {java} is {version}")
    return java


def program(name: str, package: str) -> str:
    """A program of this machine, installed from Debian where it is missing."""
    if shutil.which(name) is None:
        debian.install(package)
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"no {name} on this machine")
    return found
