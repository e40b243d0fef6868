"""Commands that are killed at random moments and given again: the answer, what is done twice, and what saving costs.

Each case is a command in a process of its own that gets SIGKILL, at a moment drawn from the time of an unbroken run
(every third time from its start, else from its first block on), and is then given again, sometimes to be killed again,
until it ends. Every other time it saves after every block, else at an interval. Checked: what is written is that of the
unbroken run bit for bit; nothing that is incomplete ever has an output's name; nothing is left beside the outputs; and
what is done again is no more than one interval holds. Last, the time of unbroken runs that save as they do by default,
to that of runs that save nothing:

    python benchmarks/kills.py --kills 25       # ends with 1 if a check fails
    python benchmarks/kills.py --rounds 0       # without the cost of saving

An interval is what is asked for, or forty times as long as a save takes where that is more; when it is over, each
thread ends the block it is at. So what may be done again is counted, for each kill, from when blocks were done.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fresh import alternating, folder, machine, print_table, tell
from synthetic import npy_of, strokes, textures
from watched import Note, read_notes

from streampca.planning.blocks import SPANS_A_WORKER

SPACED = 40  # times as long as a save took that the next one waits at least
MOST_COST = 0.03  # of the time, for saving
AGAIN = 1 / 3  # how often what was killed is killed again
PASSES = 2 / 3  # how often moments are drawn after the first block only: starting takes seconds, above all workers
PATIENCE = 600  # seconds: a command that takes longer hangs
WORKERS = 2
HELD_SPANS = 3  # that are with a worker at once: one being folded, two done
BIRTH = ("provenance", "id", "digests")  # in a model's metadata: when and how it was made, what tells it from others
WATCHED = Path(__file__).with_name("watched.py")


class Case(NamedTuple):
    """A command, what it writes, the schedule it is held to if it may have several, and what its workers may hold."""

    name: str
    words: list[str]
    outputs: tuple[str, ...]
    schedule: str = ""
    held: int = 0  # samples that are with workers at most, done and not yet added up


@dataclass
class Attempt:
    """One process: how it ended, after how many seconds, and what was noted until then."""

    code: int
    seconds: float
    said: str
    notes: list[Note]
    began: float = 0.0  # as notes tell the time

    @property
    def started(self) -> float:
        """Seconds until the first block was done."""
        return next((note.at - self.began for note in self.notes if note.what == "done"), 0.0)

    @property
    def samples(self) -> int:
        """Samples done, over all passes."""
        return int(sum(note.much for note in self.notes if note.what == "done"))

    @property
    def saves(self) -> list[float]:
        """Seconds of every save."""
        return [note.much for note in self.notes if note.what == "saved"]


@dataclass
class Whole:
    """The unbroken run of a case: its answer and what else it leaves, its times, and its work."""

    digests: dict[str, str]
    names: list[str]
    attempt: Attempt


@dataclass
class Outcome:
    """What happened to a case: kills; samples done again in a chain of kills, and most that might be; seconds more."""

    kills: int = 0
    in_passes: int = 0
    repeated: list[tuple[int, int]] = field(default_factory=list)
    extra: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


# -- killing


def attempt(case: Case, place: Path, options: Sequence[str], moment: float | None = None) -> Attempt:
    """Give a command in a folder, and kill it after so many seconds if it has not ended."""
    noted = place.parent / "notes"
    noted.unlink(missing_ok=True)
    command = [sys.executable, str(WATCHED), str(noted), case.schedule, *case.words, *options]
    began = time.monotonic()
    with subprocess.Popen(command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            _, said = process.communicate(timeout=PATIENCE if moment is None else moment)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            _, said = process.communicate()
    return Attempt(process.returncode, time.monotonic() - began, said.strip(), read_notes(noted), began)


def unbroken(case: Case, place: Path, options: Sequence[str]) -> Whole:
    """Carry out a case, and say what came out.

    Raises
    ------
    SystemExit
        If it fails.
    """
    with emptied(place):
        done = attempt(case, place, options)
        if done.code:
            sys.exit(f"{case.name}: ended with {done.code} unbroken: {done.said}")
        return Whole({name: digest(place / name) for name in case.outputs}, left_in(place), done)


def broken(case: Case, whole: Whole, place: Path, every: float, moments: Iterator[float], outcome: Outcome) -> None:
    """Kill a case at each moment, let it end, and add to the outcome."""
    killed: list[Attempt] = []
    options = saving(case, every)
    with emptied(place):
        for moment in moments:
            last = attempt(case, place, options, moment)
            if last.code != -signal.SIGKILL:
                break
            killed.append(last)
            outcome.wrong += [f"{case.name}: {name} was incomplete after a kill" for name in differing(whole, place)]
        else:
            last = attempt(case, place, options)
        outcome.wrong += [f"{case.name}: {text}" for text in problems(case, whole, place, last)]
    if not killed:
        return
    outcome.kills += len(killed)
    outcome.in_passes += sum(one.samples > 0 for one in killed)
    done = sum(one.samples for one in [*killed, last])
    again, most = done - whole.attempt.samples, sum(case.held + at_stake(one, whole.attempt, every) for one in killed)
    outcome.repeated.append((max(0, again), most))
    outcome.extra.append((sum(one.seconds for one in [*killed, last]) - whole.attempt.seconds) / len(killed))
    if again > most and options:  # commands without checkpoints begin anew
        outcome.wrong.append(f"{case.name}: {again} samples were done again, and intervals hold {most}")


def problems(case: Case, whole: Whole, place: Path, last: Attempt) -> Iterator[str]:
    """What is wrong after the command that was not killed."""
    complete = all((place / name).exists() for name in case.outputs)
    refused = complete and "exists already" in last.said  # it was killed when all was done
    if last.code and not refused:
        yield f"ended with {last.code}: {last.said}"
        return
    yield from (f"{name} is not that of the unbroken run" for name in differing(whole, place))
    yield from (f"{name} is missing" for name in case.outputs if not (place / name).exists())
    left = sorted(set(left_in(place)) - set(whole.names))
    if left:
        yield f"left {', '.join(left)} behind"


def at_stake(killed: Attempt, whole: Attempt, every: float) -> int:
    """Samples that one interval held when a run was killed: those of its last seconds, and a block of each thread."""
    blocks = [note for note in killed.notes if note.what == "done"]
    if not blocks:
        return 0
    cost = max([*killed.saves, *whole.saves], default=0.0)
    seconds = max(every, SPACED * cost) + 2 * cost if every else 0.0  # twice: threads wait for each other's saves
    latest = sum(note.much for note in blocks if note.at > killed.notes[-1].at - seconds)
    return int(latest + threads_of(killed) * max(note.much for note in blocks))


def threads_of(run: Attempt) -> int:
    """Threads that did blocks of one pass, at most."""
    passes: list[set[int]] = [set()]
    for note in run.notes:
        if note.what == "pass":
            passes.append(set())
        elif note.what == "done":
            passes[-1].add(note.thread)
    return max(map(len, passes))


@contextlib.contextmanager
def emptied(place: Path) -> Iterator[None]:
    """A folder that is made for one run and emptied after it."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    yield
    shutil.rmtree(place)


def left_in(place: Path) -> list[str]:
    """Names of what is in a folder, and in a run directory in it."""
    return sorted(str(path.relative_to(place)) for pattern in ("*", "run/*") for path in place.glob(pattern))


def differing(whole: Whole, place: Path) -> list[str]:
    """Outputs that are there and are not those of the unbroken run."""
    return [name for name, text in whole.digests.items() if (place / name).exists() and digest(place / name) != text]


def digest(path: Path) -> str:
    """A text that tells an output from others; of a model, all but when and how it was made."""
    found = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file()):
        content = file.read_bytes()
        if file.name == "zarr.json":
            content = json.dumps(json.loads(content, object_hook=without_birth)).encode()
        found.update(f"{file.relative_to(path)} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


def without_birth(about: dict[str, Any]) -> dict[str, Any]:
    """Metadata without what is another in every run."""
    return {key: value for key, value in about.items() if key not in BIRTH}


# -- cases


def cases_of(directory: Path, samples: int, wide: int, side: int, wanted: Sequence[str] = ("",)) -> list[Case]:
    """Every method and schedule, and what is done with a model, which is fitted first; of those so named."""
    narrow, pictures = npy_of(directory, strokes, samples, 28), npy_of(directory, textures, wide, side)
    model, config = directory / f"model-{samples}.zarr", directory / f"run-{samples}.yaml"
    config.write_text(
        f"collection: {{source: {json.dumps(str(narrow))}}}\nmodel: {{kind: pca, n_components: 20}}\n"
        "run: {memory: 128 MiB}\noutput: {directory: run, transform: true}\n"
    )
    parts = [directory / f"part-{number}-of-{samples}.zarr" for number in (1, 2)]
    fit = ["fit", str(narrow), "-k", "20", "--memory", "128MiB", "--method", "covariance", "-o", "model.zarr"]
    several = [word if word != "covariance" else "randomized" for word in fit]
    dual = ["fit", str(pictures), "-k", "20", "--memory", "128MiB", "--method", "dual", "-o", "model.zarr"]
    some = [str(narrow), "--samples", f"0:{samples // 40}", "--memory", "128MiB"]  # as all pairs are looked at
    few = ["--samples", f"0:{samples // 4}"]  # images take more time to write than scores
    apply = partial(applied, str(model), str(narrow))
    covariance, sweep = Case("covariance", fit, ("model.zarr",)), Case("dual, sweep", dual, ("model.zarr",), "sweep")
    randomized = Case("randomized", several, ("model.zarr",))
    em = Case("EM", [*fit[:2], "-k", "5", "--missing", "em", "--max-passes", "4", "-o", "model.zarr"], ("model.zarr",))
    names = [f"scores.{suffix}" for suffix in ("zarr", "npy")]
    scores = [Case(f"transform to {name}", apply("transform", name), (name,)) for name in names]
    rebuilt = Case("reconstruct", [*apply("reconstruct", "images.zarr"), *few], ("images.zarr",))
    run = Case("run file", ["run", str(config)], ("run/model.zarr", "run/scores.zarr"))
    cases = [
        covariance,
        Case("covariance, part 2/3", [*fit, "--part", "2/3"], ("model.zarr",)),
        sweep,
        sweep._replace(name="dual, scratch", schedule="scratch"),
        randomized,
        em,
        Case("merge", ["merge", *map(str, parts), "-o", "model.zarr"], ("model.zarr",)),
        *scores,
        rebuilt,
        Case("copy", ["copy", str(narrow), "-o", "copy.zarr"], ("copy.zarr",)),
        Case("report", ["report", str(model), "-o", "report.html"], ("report.html",)),
        Case("neighbors", ["neighbors", *some, "--method", "exact", "-o", "graph.zarr"], ("graph.zarr",)),
        Case("isomap", ["fit", *some, "--kind", "isomap", "-o", "places.zarr"], ("places.zarr",)),
        run,
        *(on_workers(case, samples) for case in (covariance, randomized, em, *scores, run)),
        on_workers(sweep._replace(name="dual", schedule=""), wide),
        on_workers(rebuilt, samples // 4),
    ]
    cases = [case for case in cases if any(word in case.name for word in wanted)]
    if any(str(model) in case.words for case in cases) and not model.exists():
        prepared("fit", str(narrow), "-k", "50", "--memory", "128MiB", "-o", str(model))
    for number, part in enumerate(parts, 1):
        if any(str(part) in case.words for case in cases) and not part.exists():
            prepared(*fit[:-1], str(part), "--part", f"{number}/{len(parts)}")
    return cases


def prepared(*words: str) -> None:
    """Carry out a command that others need the output of."""
    subprocess.run([sys.executable, "-m", "streampca", *words, "--quiet"], check=True, stdout=subprocess.DEVNULL)


def on_workers(case: Case, samples: int) -> Case:
    """A case whose samples are shared by workers; they hold spans that no checkpoint has."""
    words = ["--workers", f"{WORKERS}"]
    if case.words[0] == "run":
        words = ["--set", f"run.workers={WORKERS}"]
    span = -(-samples // (WORKERS * SPANS_A_WORKER))
    name = f"{case.name}, {WORKERS} workers"
    return case._replace(name=name, words=[*case.words, *words], held=WORKERS * HELD_SPANS * span)


def applied(model: str, source: str, command: str, output: str) -> list[str]:
    """A command that applies a model."""
    return [command, model, source, "--memory", "64MiB", "-o", output]


def saving(case: Case, every: float) -> list[str]:
    """The options that make a case save every so many seconds; none of commands that begin anew."""
    if case.words[0] in ("copy", "merge", "report"):
        return []
    return ["--set", f"run.checkpoint_every={every}"] if case.words[0] == "run" else ["--checkpoint-every", f"{every}"]


# -- tables


def kill_all(cases: Sequence[Case], kills: int, every: float, seed: int, place: Path) -> dict[str, Outcome]:
    """Kill cases in turns, so many times in all."""
    rng = np.random.default_rng(seed)
    outcomes = {case.name: Outcome() for case in cases}
    wholes: dict[tuple[str, float], Whole] = {}
    turns = cycle([(case, each) for each in (0.0, every) for case in cases])
    while (done := sum(outcome.kills for outcome in outcomes.values())) < kills:
        case, each = next(turns)
        tell(f"kill {done + 1} of {kills}: {case.name}, saving every {each:g} s")
        if (case.name, each) not in wholes:
            wholes[case.name, each] = unbroken(case, place, saving(case, each))
        whole = wholes[case.name, each]
        count = 1 + int(rng.random() < AGAIN)
        first = whole.attempt.started if rng.random() < PASSES else 0.0
        moments = iter(rng.uniform(first, whole.attempt.seconds, min(count, kills - done)).tolist())
        broken(case, whole, place, each, moments, outcomes[case.name])
    tell("")
    return outcomes


def print_kills(outcomes: dict[str, Outcome]) -> None:
    """Print what happened to each case."""
    rows = []
    for name, outcome in outcomes.items():
        again, most = max(outcome.repeated, key=lambda one: one[0] / max(1, one[1]), default=(0, 0))
        extra = [f"{pick(outcome.extra):.1f}" for pick in (statistics.median, max)] if outcome.extra else ["", ""]
        rows.append([name, str(outcome.kills), str(outcome.in_passes), str(again), str(most), *extra])
    headings = ("killed", "kills", "in passes", "samples again", "in intervals", "seconds more", "most")
    print_table(headings, rows)


def print_costs(cases: Sequence[Case], rounds: int, place: Path) -> list[str]:
    """Print the time of runs that save as they do by default, and of those that do not; return which take too long."""
    rows, wrong = [], []
    for case in cases:
        if not saving(case, 0.0):
            continue
        without = ["--set", "checkpoint.enabled=false"] if case.words[0] == "run" else ["--no-checkpoint"]
        jobs = {f"{case.name}{words}": partial(unbroken, case, place, words) for words in ([], without)}
        kept, bare = ([one.attempt.seconds for one in found] for found in alternating(rounds, jobs).values())
        costs = [pick(kept) / pick(bare) - 1 for pick in (statistics.median, min)]
        medians = [f"{statistics.median(seconds):.2f}" for seconds in (kept, bare)]
        rows.append([case.name, *medians, *(f"{cost:+.1%}" for cost in costs)])
        if min(costs) > MOST_COST:  # least times are those least disturbed by others on the machine
            wrong.append(f"{case.name}: saving takes {min(costs):.1%} of the time, more than {MOST_COST:.0%}")
    print_table(("unbroken, s", "saving", "not saving", "more, medians", "more, least"), rows)
    return wrong


def main() -> None:
    """Read the command line and run."""
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("--kills", type=int, default=25, help="in all")
    about.add_argument("--every", type=float, default=0.25, help="seconds between saves, every other time")
    about.add_argument("--samples", type=int, default=400_000, help="of 28 x 28 pixels")
    about.add_argument("--wide", type=int, default=1200, help="pictures for the dual method")
    about.add_argument("--side", type=int, default=256, help="pixels along each side of those")
    about.add_argument("--cases", default="", help="only those whose names contain one of these words, after commas")
    about.add_argument("--rounds", type=int, default=3, help="of measuring what saving costs; 0: not at all")
    about.add_argument("--cores", type=int, help="of this machine to use, as the number of threads follows it")
    about.add_argument("--seed", type=int, default=0, help="of the moments")
    about.add_argument("--directory", type=Path, help="where the data are kept for the next run")
    asked = about.parse_args()
    if asked.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked.cores])
    with folder(asked.directory) as directory:
        directory, place = directory.resolve(), directory.resolve() / "killed"
        cases = cases_of(directory, asked.samples, asked.wide, asked.side, asked.cases.split(","))
        print(machine())
        outcomes = kill_all(cases, asked.kills, asked.every, asked.seed, place)
        print_kills(outcomes)
        wrong = [text for outcome in outcomes.values() for text in outcome.wrong]
        if asked.rounds:
            print()
            wrong += print_costs(cases, asked.rounds, place)
    for text in wrong:
        print(f"WRONG {text}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
